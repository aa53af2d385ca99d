"""Planted bugs: one line of the code under test each, and the promise it breaks.

Applied to a copy of the source at test time. A line that is no longer there, or is there twice,
fails the test: then the mutant has to move with the code.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """In `file`, the line `line` (without its indentation) becomes `instead`."""

    file: str
    line: str
    instead: str
    breaks: str  # how the foul begins


ONE, GIVEN, SNAPSHOT = "one attempt", "given up for good", "the newest whole snapshot"
HEALTHY, LIMIT = "nothing healthy is touched", "restarts have a limit and a reason"
REPLAY, BOOKS, CALM = "replay gives the same", "the ledger adds up", "recovers once it is calm"
TIME, SPARES, ENDS = "time goes on", "has its spares again", "ends when asked"

CONTROLLER, ATTEMPTS = "controller/controller.py", "controller/attempts.py"
BRIDGE, STOPPING = "drivers/bridge.py", "detection/stopping.py"

MUTANTS: dict[str, Mutant] = {
    "a lost node is not fenced": Mutant(
        CONTROLLER, "actions: list[AnyAction] = [fence]", "actions: list[AnyAction] = []", ONE
    ),
    "a fence is not repeated": Mutant(
        CONTROLLER,
        "Fence(node=node, reason=state.lost[node]) for node in sorted(alive & state.lost.keys())",
        "Fence(node=node, reason=state.lost[node]) for node in ()",
        ONE,
    ),
    "a store told twice is taken for fresh": Mutant(
        CONTROLLER,
        "if state.start is None or event.store != state.start.store:  # old news, told again",
        "if True:",
        ONE,
    ),
    "a used store stays on offer": Mutant(
        ATTEMPTS,
        "state.nodes[state.ranks[0]].store = None  # a store serves one attempt only",
        "pass",
        ONE,
    ),
    "time without a controller is waiting": Mutant(
        CONTROLLER,
        "state.wait_deadline = None  # nobody waited while there was no controller",
        "pass",
        LIMIT,
    ),
    "restarts are not counted": Mutant(ATTEMPTS, "state.restarts.append(state.now)", "pass", LIMIT),
    "the same bug is not recognised": Mutant(
        "controller/policies/restart.py",
        "return last is not None and last.signature == signature and last.step == step",
        "return False",
        LIMIT,
    ),
    "one finished worker is enough": Mutant(
        CONTROLLER, "if len(state.finished) < state.world_size:", "if False:", LIMIT
    ),
    "an old exit stops a new attempt": Mutant(
        CONTROLLER,
        "if event.attempt != state.attempt or node is None:",
        "if node is None:",
        HEALTHY,
    ),
    "a stopped controller blames the silent": Mutant(
        BRIDGE, "if node not in self._expected:", "if False:", HEALTHY
    ),
    "a stopped controller blames the late": Mutant(
        STOPPING, "self._deadline += late_s", "pass", HEALTHY
    ),
    "a reconnected node gets more time than it has": Mutant(
        BRIDGE,
        "return [Stop(attempt=self._state.attempt, grace_s=self._grace_s)]",
        "return [Stop(attempt=self._state.attempt, grace_s=30.0)]",
        HEALTHY,
    ),
    "only the first sign of life counts": Mutant(
        "detection/liveness.py",
        "self._heard[node] = now",
        "self._heard.setdefault(node, self.__dict__.setdefault(node, now))",
        HEALTHY,
    ),
    "a lost member still has to answer": Mutant(
        BRIDGE, "told = _some(self._tally.lost(action.node))", "told = _some(None)", CALM
    ),
    "late members are not named": Mutant(
        STOPPING, "return sorted(self._pending)", "return []", CALM
    ),
    "a lost member stops nothing": Mutant(
        CONTROLLER,
        'state, Phase.RECOVERING, f"{node.name} was lost", state.limits.restart_grace_s',
        'state, Phase.CLOSING, f"{node.name} was lost", state.limits.restart_grace_s',
        LIMIT,
    ),
    "an order to stop is not repeated": Mutant(
        CONTROLLER,
        "return [StopAttempt(attempt=state.attempt, grace_s=0.0, reason=state.why)]",
        "return []",
        CALM,
    ),
    "a reconnected node is not told to start": Mutant(
        BRIDGE, "return [_start(self._state.start, member.node_rank)]", "return []", CALM
    ),
    "nothing follows a back-off": Mutant(
        CONTROLLER, "state.start_deadline = None", "return []", TIME
    ),
    "spares are not asked for again": Mutant(
        CONTROLLER,
        'actions += nodes.top_up(state, "nodes are missing since the controller came back")',
        "pass",
        SPARES,
    ),
    "an ended job does not end again": Mutant(
        CONTROLLER, "return [EndJob(outcome=state.outcome, reason=state.why)]", "return []", ENDS
    ),
    "the oldest snapshot is taken": Mutant(
        "checkpoint/choose.py",
        "for key in sorted(keys, key=lambda k: (k.step, k.attempt), reverse=True):",
        "for key in sorted(keys, key=lambda k: (k.step, k.attempt)):",
        SNAPSHOT,
    ),
    "a copy is supposed to be at the buddy": Mutant(
        "checkpoint/choose.py",
        "return buddy if buddy is not None and key in held[buddy].buddy else None",
        "return buddy",
        SNAPSHOT,
    ),
    "back-off has jitter": Mutant(
        "controller/policies/restart.py",
        "return float(min(FIRST_BACKOFF_S * 2**doublings, LAST_BACKOFF_S))",
        'return float(fruitless * __import__("random").random())',
        REPLAY,
    ),
    "a lost node is forgotten": Mutant(
        "controller/nodes.py", "state.lost[node_id] = why", "pass", GIVEN
    ),
    "the furthest step is forgotten": Mutant(
        CONTROLLER,
        "state.max_step = max(state.max_step or 0, progress.step)",
        "state.max_step = progress.step",
        BOOKS,
    ),
    "the step before the last is redone": Mutant(
        ATTEMPTS, "redo_until=state.max_step or 0,", "redo_until=0,", BOOKS
    ),
}
