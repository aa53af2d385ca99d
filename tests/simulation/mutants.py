"""Planted bugs: one line of the code under test each, and the promise it breaks.

Applied to the functions of the package (`planting`). A line that is no longer there, or is there
twice, fails the test: then the mutant has to move with the code.
"""

from holdfast.simulation.environment import Promise
from holdfast.simulation.hardship import SUCCESSION_SEEDS
from tests.simulation.book_mutants import OF_BOOKS
from tests.simulation.check_mutants import OF_CHECKS
from tests.simulation.error_mutants import OF_ERRORS
from tests.simulation.mutant import Mutant
from tests.simulation.port_mutants import OF_PORTS
from tests.simulation.removal_mutants import OF_REMOVALS
from tests.simulation.successor_mutants import OF_SUCCESSORS

ONE, GIVEN, SNAPSHOT = Promise.ONE_ATTEMPT, Promise.GIVEN_UP, Promise.SNAPSHOT
HEALTHY, LIMIT, REPLAY = Promise.EFFICIENCY, Promise.PERSISTENCE, Promise.REPLAY
BOOKS, CALM, TIME = Promise.BOOKS, Promise.LIVENESS, Promise.TIME
SPARES, ENDS, NAMED = Promise.SPARES, Promise.END, Promise.NAMED
BOUND, TERMS, FINITE = Promise.BOUND, Promise.TERMS, Promise.FINITE
ASSEMBLY, SAMPLES = Promise.ASSEMBLY, Promise.SAMPLES
BLAME, SEEN, VERSIONS, CHOICE, KEPT, WHOLE, RATE = (
    Promise.BLAME, Promise.SEEN, Promise.VERSIONS, Promise.CHOICE, Promise.KEPT, Promise.WHOLE,
    Promise.RATE,
)  # fmt: skip

CONTROLLER, ATTEMPTS, NODES = (f"controller/{n}.py" for n in ("controller", "attempts", "nodes"))
RESTART, REPLACE = "controller/policies/restart.py", "controller/policies/replace.py"
LADDER, RECOVERY = "controller/policies/ladder.py", "controller/recovery.py"
OUTAGES = "controller/policies/outages.py"
WORKERS, LEAVING = "controller/workers.py", "controller/leaving.py"
VERDICT, STOPPING = "diagnosis/verdict.py", "detection/stopping.py"
BRIDGE, NUMERICS = "shell/bridge.py", "controller/numerics.py"
DEALING = "checkpoint/dealing.py"
CHOOSE, LEDGER = "checkpoint/choose.py", "goodput/books.py"
SHELL, SHELL_NODES, REPLICAS = (f"shell/{n}.py" for n in ("shell", "nodes", "replicas"))
DECISIONS = "shell/decisions.py"
LIVENESS, SUPERVISION = "detection/liveness.py", "shell/supervision.py"
DETECTION, HANG, HANGS = "shell/hang_detection.py", "diagnosis/hang.py", "controller/hangs.py"
CORRUPTION = "detection/corruption.py"
SAMPLING = "shell/straggler_sampling.py"
SUCCESSION, SKIPPING = "shell/succession.py", "controller/skipping.py"

MUTANTS: dict[str, Mutant] = {
    "processes are kept of attempts that may have no snapshot": Mutant(
        ATTEMPTS,
        "parks = parks and state.limits.in_process and Milestone.FIRST_STEP in state.milestones",
        "parks = parks and state.limits.in_process",
        KEPT,
        first=4,
    ),
    "a replica that lacks a node is filled up from one that is whole": Mutant(
        NODES,
        "return {first + place: to + place for first, to in pairs for place in range(each)}",
        "return {}",
        WHOLE,
        first=853,
    ),
    "nodes are left as often as they are blamed": Mutant(
        "controller/conditions.py",
        "if len(recent) >= most:",
        "if len(recent) > 1_000_000:",
        RATE,
        first=6,
        hours=9.0,
        nodes=16,
    ),
    "the dearest step is taken": Mutant(
        LADDER,
        "best = min(would_do, key=lambda one: one.cost_s)",
        "best = max(would_do, key=lambda one: one.cost_s)",
        CHOICE,
        first=10,
    ),
    "what is chosen is not what is done": Mutant(
        RECOVERY,
        "if chosen.rung is Rung.REPLACE and ladder.asks_node(failure):",
        "if ladder.asks_node(failure) or _blamed(state, verdict):",
        CHOICE,
        first=10,
    ),
    "nobody looks for hangs": Mutant(
        DETECTION,
        "if self._watch.is_due(now):",
        "if False:",
        NAMED,
        first=6,
    ),
    "a look that shows a hang stops nothing": Mutant(
        HANGS,
        "if event.judgement is not Judgement.HANG or state.finished:",
        "if event.judgement:",
        NAMED,
        first=6,
    ),
    "the wrong rank is blamed for every hang": Mutant(
        HANG,
        "free = [look for look in looks if not look.waits]",
        "free = looks[-1:]",
        BLAME,
        first=6,
    ),
    "the clocks of nodes are taken for the same": Mutant(
        SAMPLING,
        "clocks[times.rank] = (best.ahead_us, doubt_us)",
        "clocks[times.rank] = (0.0, doubt_us)",
        BLAME,
    ),
    "the majority is blamed for what differs": Mutant(
        CORRUPTION,
        "minority = [rank for ranks in alike[1:] for rank in ranks] if majority else []",
        "minority = alike[0] if majority else []",
        BLAME,
        first=20,
    ),
    "who is slow is asked once": Mutant(
        SAMPLING,
        "self._next = now + self._every_s",
        "self._next = math.inf",
        SEEN,
        first=35,
    ),
    "what differs is told to nobody": Mutant(
        CORRUPTION,
        "if not whole and not late:",
        "if not late or late:",
        SEEN,
        first=20,
    ),
    "a single alert has a node replaced": Mutant(
        LADDER,
        "return severity in (Severity.FATAL, Severity.LEAVES) or alerts >= ALERTS",
        "return severity in (Severity.FATAL, Severity.LEAVES) or alerts >= 1",
        HEALTHY,
        first=6,
    ),
    "a bad step is forgotten with its attempt": Mutant(
        NUMERICS,
        "state.restore_below = min(step, state.restore_below or step)",
        "pass",
        FINITE,
        first=16,
    ),
    "what was saved with bad numbers may be restored once training has passed them": Mutant(
        NUMERICS,
        "checkpoints.never_restore(state, (state.attempt,), state.bad_step)",
        "pass",
        FINITE,
        first=1000006,
        nodes=5,
    ),
    "what the bad step itself has left may be restored": Mutant(
        NUMERICS,
        "state.restore_below = min(step, state.restore_below or step)",
        "state.restore_below = min(step, state.restore_below or step) + 1",
        FINITE,
        first=16,
    ),
    "only the verdict may say that numbers are bad": Mutant(
        NUMERICS,
        "return attempts.stop(state, Phase.RECOVERING, why, state.limits.restart_grace_s)",
        "return []",
        CALM,
        first=41,
    ),
    "a lost node is not fenced": Mutant(
        CONTROLLER,
        "actions: list[AnyAction] = [fence]",
        "actions: list[AnyAction] = []",
        ONE,
        first=9,
    ),
    "no batches are left out though some may be": Mutant(
        SKIPPING,
        "return max(0, state.limits.skip_batches - count(state)) if known else 0",
        "return 0",
        LIMIT,
        first=41,
    ),
    "more batches are left out than may be": Mutant(
        SKIPPING,
        "state.skips.append(Skip(max(0, end - allowed), end))",
        "state.skips.append(Skip(0, end))",
        Promise.LEFT_OUT,
        first=41,
    ),
    "batches that were left out before are not counted": Mutant(
        SKIPPING,
        "given = step + state.skipped",
        "given = step",
        Promise.LEFT_OUT,
        first=77,
    ),
    "a fence is not repeated": Mutant(
        CONTROLLER,
        "Fence(node=node, reason=state.lost[node]) for node in sorted(alive & state.lost.keys())",
        "Fence(node=node, reason=state.lost[node]) for node in ()",
        ONE,
        first=895,
        when_asked=True,
    ),
    "a used store stays on offer": Mutant(
        ATTEMPTS,
        "state.nodes[state.ranks[0]].store = None  # a store serves one attempt only",
        "pass",
        ONE,
        first=119,
    ),
    "time without a controller is waiting": Mutant(
        CONTROLLER,
        "state.wait_deadline = None  # nobody waited while there was no controller",
        "pass",
        LIMIT,
        first=493,
    ),
    "restarts are not counted": Mutant(
        RECOVERY,
        "state.restarts = [*restart.recent(state.restarts, begins, state.limits.window_s), begins]",
        "pass",
        LIMIT,
        first=71,
    ),
    "the same bug is not recognised": Mutant(
        RESTART,
        "return last is not None and last.signature == signature and last.step == step",
        "return False",
        LIMIT,
        first=13,
    ),
    "one finished worker is enough": Mutant(
        LEAVING, "if len(state.finished) >= state.world_size:", "if True:", LIMIT
    ),
    "an old exit stops a new attempt": Mutant(
        WORKERS,
        "if exited.attempt != state.attempt or node is None:",
        "if node is None:",
        HEALTHY,
        first=665,
    ),
    "a stopped controller blames the silent": Mutant(
        BRIDGE,
        "self._liveness.forgive(now, silent_s)",
        "pass",
        HEALTHY,
        first=4,
    ),
    "a stopped controller blames the late": Mutant(
        STOPPING,
        "self._deadline += late_s",
        "pass",
        HEALTHY,
        first=48,
    ),
    "a reconnected node gets more time than it has": Mutant(
        BRIDGE,
        "return [self._stops]",
        "return [Stop(attempt=self._state.attempt, grace_s=30.0, term=self._term)]",
        HEALTHY,
        first=19,
    ),
    "only the first sign of life counts": Mutant(
        LIVENESS,
        "self._heard[node] = at",
        "self._heard.setdefault(node, self.__dict__.setdefault(node, at))",
        HEALTHY,
    ),
    "a lost member still has to answer": Mutant(
        BRIDGE,
        "told = _some(self._tally.lost(action.node, now))",
        "told = _some(None)",
        CALM,
        first=8,
    ),
    "late members are not named": Mutant(
        STOPPING, "return sorted(self._pending)", "return []", CALM, first=98
    ),
    "a lost member stops nothing": Mutant(
        CONTROLLER,
        "return attempts.stop(state, Phase.RECOVERING, lost, grace_s, parks=True)",
        "return attempts.stop(state, Phase.CLOSING, lost, grace_s, parks=True)",
        LIMIT,
        first=4,
    ),
    "an order to stop is not repeated": Mutant(
        CONTROLLER,
        "return [attempts.stop_again(state)]",
        "return []",
        CALM,
        first=4,
    ),
    "a reconnected node is not told to start": Mutant(
        BRIDGE,
        "return [_start(self._state.start, member.node_rank, self._term)]",
        "return []",
        CALM,
        first=4,
    ),
    "nothing follows a back-off": Mutant(
        RECOVERY,
        "state.start_deadline = None",
        "return []",
        TIME,
        first=6,
    ),
    "spares are not asked for again": Mutant(
        CONTROLLER,
        'actions += nodes.top_up(state, "nodes were lost while the controller was down")',
        "pass",
        SPARES,
        first=330,
    ),
    "an ended job does not end again": Mutant(
        CONTROLLER,
        "return [EndJob(outcome=state.outcome, reason=state.why)]",
        "return []",
        ENDS,
        first=1236,
    ),
    "a job that is asked to stop awaits no answer": Mutant(
        CONTROLLER,
        "awaited = state.phase in (Phase.RECOVERING, Phase.CLOSING) and not state.stopped",
        "awaited = state.phase is Phase.RECOVERING and not state.stopped",
        ENDS,
        first=2,
    ),
    "a snapshot of another size needs not all of its parts": Mutant(
        CHOOSE,
        "return [one for one in shared if set(private.get(one, ())) >= set(range(one.world_size))]",
        "return [one for one in shared if private.get(one)]",
        ASSEMBLY,
        first=3,
    ),
    "nothing of another size is gone on from": Mutant(
        CHOOSE,
        "return [one for one in shared if set(private.get(one, ())) >= set(range(one.world_size))]",
        "return []",
        ASSEMBLY,
        56,
    ),
    "what cannot be divided evenly is left out": Mutant(
        DEALING,
        "first, last = turn.size * rank // ranks, turn.size * (rank + 1) // ranks",
        "first, last = turn.size // ranks * rank, turn.size // ranks * (rank + 1)",
        SAMPLES,
        134,
    ),
    "a copy is supposed to be at the buddy": Mutant(
        CHOOSE,
        "return buddy if buddy is not None and key in held[buddy].buddy else None",
        "return buddy",
        SNAPSHOT,
        105,
        when_asked=True,
    ),
    "back-off has jitter": Mutant(
        RESTART,
        "return float(min(FIRST_BACKOFF_S * 2**doublings, LAST_BACKOFF_S))",
        'return float(fruitless * __import__("random").random())',
        REPLAY,
        first=4,
    ),
    "a lost node is forgotten": Mutant(NODES, "state.lost[node_id] = why", "pass", ONE, first=1696),
    "the furthest step is forgotten": Mutant(
        CONTROLLER,
        "state.max_step = max(state.max_step or 0, step)",
        "state.max_step = step",
        BOOKS,
        first=324,
    ),
    "every member is told to be the first": Mutant(
        BRIDGE,
        "starts = [(node, _start(action, rank, self._term)) for rank, node in ranks]",
        "starts = [(node, _start(action, 0, self._term)) for rank, node in ranks]",
        ONE,
    ),
    "a replaced node stays a member": Mutant(
        RECOVERY,
        "nodes.remove(state, node_id, why)",
        "pass",
        GIVEN,
        first=221,
    ),
    "a node is replaced at its first fault": Mutant(
        REPLACE,
        "return 0 < limit <= faults and (spares > 0 or fruitless >= max(1, limit - 1))",
        "return 0 < limit and (spares > 0 or fruitless >= max(1, limit - 1))",
        HEALTHY,
        first=10,
    ),
    "the wrong node is replaced": Mutant(
        RECOVERY,
        'return state.ranks.get(verdict.rank // state.workers_per_node, "")',
        'return state.ranks.get(0, "")',
        HEALTHY,
        first=11,
    ),
    "parts of two attempts are put together": Mutant(
        CHOOSE,
        "if key in held[rank].private:",
        "if any(one.step == key.step for one in held[rank].private):",
        SNAPSHOT,
        first=1385,
        when_asked=True,
    ),
    "who has no copy restores from its own": Mutant(
        CHOOSE,
        "shared = tuple(r if key in h.shared else givers[r % len(givers)]"
        " for r, h in enumerate(held))",
        "shared = tuple(range(len(held)))",
        SNAPSHOT,
        first=3,
    ),
    "some parts are enough": Mutant(
        CHOOSE,
        "return RestorePlan(key, shared, known) if len(known) == len(held) else None",
        "return RestorePlan(key, shared, known) if known else None",
        SNAPSHOT,
        105,
        when_asked=True,
    ),
    "the cap never forgets": Mutant(
        RESTART,
        "return [at for at in restarts if at > now - window_s]",
        "return list(restarts)",
        LIMIT,
        first=65,
    ),
    "a survivor is to blame": Mutant(
        VERDICT,
        "if error is not None and is_symptom(error):",
        "if False:",
        LIMIT,
        first=303,
    ),
    "errors of the environment are the script's": Mutant(
        VERDICT,
        "case _ if is_environment(error):",
        "case _ if False:",
        LIMIT,
        first=4,
    ),
    "storage that is away uses up the restarts": Mutant(
        OUTAGES,
        "return s.trouble.environment and not s.means.exact and bool(s.history.restarts)",
        "return False",
        LIMIT,
        first=155,
    ),
    "trouble that is over still counts": Mutant(
        RECOVERY,
        "state.barren, state.trouble_since = 0, None",
        "state.barren = 0",
        LIMIT,
        first=140,
    ),
    "trouble is given a minute": Mutant(
        OUTAGES,
        "return s.history.trouble_s is not None and s.history.trouble_s >= s.means.window_s",
        "return s.history.trouble_s is not None and s.history.trouble_s >= 60.0",
        LIMIT,
        first=42,
    ),
    "a rank that leaves early is a fault at once": Mutant(
        WORKERS,
        "return group.first.exit_code == 0",
        "return group.first.exit_code == 0 and group.first.progress.finished",
        HEALTHY,
    ),
    "who has left its loop is taken to train": Mutant(
        "detection/progress.py",
        "page.progress.step is not None and not page.progress.finished and page.phase not in LEFT",
        "page.progress.step is not None and not page.progress.finished",
        HEALTHY,
        first=169,
    ),
    "nobody asks whether the others train on": Mutant(
        LEAVING,
        'return [Survey(attempt=state.attempt, reason=f"{_told(first)}: are others training?")]',
        "return []",
        CALM,
        first=13,
    ),
    "the bridge writes to the state": Mutant(
        BRIDGE,
        "if hello.node in self._state.lost:",
        "if self._state.lost.pop(hello.node, None):",
        REPLAY,
        first=25,
    ),
    "anybody's store is taken for that of the first": Mutant(
        STOPPING,
        "if answer.node == self._first:",
        "if True:",
        CALM,
        first=300,
    ),
    "nobody is asked to replace a lost node": Mutant(
        CONTROLLER,
        "actions += arrivals.gone(state, node, why, planned=planned)",
        "pass",
        SPARES,
        first=9,
    ),
    "a node that came is still awaited": Mutant(
        NODES,
        "state.asked = max(0, state.asked - 1)",
        "pass",
        SPARES,
        first=21,
    ),
    "only the node that came first can be silent": Mutant(
        LIVENESS,
        "if now - min(self._heard.values(), default=now) < timeout_s:",
        "if now - next(iter(self._heard.values()), now) < timeout_s:",
        NAMED,
        first=6,
    ),
    "a duty that died is not started again": Mutant(
        SUPERVISION,
        "return float(min(LAST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (len(recent) - 1)))",
        "return 1e9",
        NAMED,
        first=50,
    ),
    "nodes that exist are not expected by a new controller": Mutant(
        SHELL,
        "self.nodes.expect(node, self._settings.connects_within_s)",
        "pass",
        NAMED,
        first=115,
    ),
    "nobody else is asked to hold a copy": Mutant(
        DECISIONS,
        "if self._replicas is not None and self._batch.durable and not self._batch.held:",
        "if False:",
        BOUND,
        first=71,
    ),
    "an order leaves before a copy is held": Mutant(
        DECISIONS,
        "if self._replicas is not None and not self._replicas.held(connected):",
        "if False:",
        TERMS,
        first=1,
    ),
    "a copy on the controller's own machine is enough": Mutant(
        REPLICAS,
        "return [node for node in there if not self._near(node)] or there",
        "return there",
        TERMS,
        first=19,
    ),
    "whoever may have lost the lease acts": Mutant(
        SHELL,
        "return bool(not self._begun or self.paused or self.doubt() or self.is_over)",
        "return bool(not self._begun or self.is_over)",
        TERMS,
        first=526,
        when_asked=True,
    ),
    "not every agent is asked for its copy": Mutant(
        SUCCESSION,
        "self._far.discard(node)",
        "self._far.clear()",
        TERMS,
        first=SUCCESSION_SEEDS[0],
    ),
    "nodes are not told which version an attempt runs": Mutant(
        BRIDGE,
        "version=order.version,",
        "",
        VERSIONS,
        first=34,
    ),
    "a duty that fails again and again never ends its process": Mutant(
        SUPERVISION,
        "recent = [at for at in self._failed if now - at < WITHIN_S]",
        "recent = [at for at in self._failed if now - at < 120.0]",
        SPARES,
        first=1016,
    ),
}
MUTANTS |= OF_BOOKS | OF_CHECKS | OF_ERRORS | OF_PORTS | OF_REMOVALS | OF_SUCCESSORS
