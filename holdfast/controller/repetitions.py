"""A step that groups of nodes repeat while nothing trains: because somebody asks, or because
attempts in a row came to nothing and nobody is blamed.

Which groups, and what they show, is told as one fact (`NodesChecked`). A node that fails in every
group it was tried in has a fault like any other (`conditions.py`), unless these are most of
the members: then it is not known who is right. Training stands still meanwhile, so the
controller does it by itself only where a spare waits, and once in `Limits.window_s` if it finds
nobody.
"""

import math

import msgspec

from holdfast.actions import AnyAction, CheckNodes
from holdfast.controller import attempts, checkpoints, conditions, incidents, numerics, resizing
from holdfast.controller.phases import Phase
from holdfast.controller.state import State
from holdfast.digests import StepsToRepeat
from holdfast.events import Diagnosed, HealthChanged, NodesChecked, RepetitionRequested, Severity

CONDITION = "fails-in-groups"
STEPS = 10  # after the newest checkpoint, where no step is known to be bad
WISHES_KEPT = 16  # one that stands in a ConfigMap is heard by each controller
STEPS_MAX = 1000  # from there to a bad one


def requested(state: State, event: RepetitionRequested) -> list[AnyAction]:
    """Somebody asks: at the end of the next step that nothing else disturbs."""
    if state.repeating is None and not state.ended and state.phase is not Phase.CLOSING:
        state.repeating = event.wish
        state.repeat_wishes = [*state.repeat_wishes, event.wish.id][-WISHES_KEPT:]
    return review(state)


def review(state: State) -> list[AnyAction]:
    """Whether the attempt is to be stopped for it."""
    wish = state.repeating
    if wish is None or not wish.id or not resizing.undisturbed(state):
        return []
    why = f"{wish.by} asked to repeat step {wish.step}"
    incidents.open_for_repetition(state, why)
    return attempts.stop(state, Phase.RECOVERING, why, state.limits.stop_grace_s, keeps="here")


def wanted(state: State) -> StepsToRepeat | None:
    """What the controller would have repeated by itself; None where that cannot be, or may not."""
    limits, last = state.limits, state.repeated_at
    able = limits.group_tests and state.instrumented and bool(limits.replica_ranks)
    if not able or state.start is None:
        return None
    unit = -(-limits.replica_ranks // state.workers_per_node)
    if state.size < 2 * unit or state.size % unit or len(state.ranks) < state.size:
        return None
    if last is not None and state.now < last + limits.window_s:
        return None
    bad, below = state.bad_step, state.restore_below
    known = [step for step in state.committed if step < min(bad or math.inf, below or math.inf)]
    if not known or checkpoints.outliving(state) is None:  # groups need what all nodes can read
        return None
    step = bad or max(known) + STEPS
    return StepsToRepeat(step=step, unit=unit) if step - max(known) <= STEPS_MAX else None


def begin(state: State, verdict: Diagnosed, why: str) -> CheckNodes:
    """What is done about this verdict is decided once it is known what the groups have shown."""
    state.repeating, state.repeated_at = wanted(state), state.now
    state.suspicion = verdict
    return order(state, why)


def order(state: State, why: str) -> CheckNodes:
    """The members, by their ranks; also once more, for a controller that has come back."""
    members = tuple(state.ranks[rank] for rank in sorted(state.ranks))
    incidents.note(state, "RepeatSteps", why)
    return CheckNodes(nodes=members, attempt=state.attempt, repeat=state.repeating, reason=why)


def heard(state: State, event: NodesChecked) -> Diagnosed | None:
    """The verdict that has waited for this, if one has; a node that is bad has a fault now."""
    wish, verdict = state.repeating, state.suspicion
    waits = state.phase is Phase.RECOVERING and state.stopped and event.attempt == state.attempt
    if wish is None or not waits:
        return None
    state.repeating = None
    incidents.note(state, "StepsRepeated", event.told)
    incident = state.incidents[-1]
    incident.evidence = [*incident.evidence, f"step {wish.step}, repeated: {event.told}"]
    bad = [node for node in sorted(event.found) if node in state.ranks.values()]
    if not bad or 2 * len(bad) > state.size:
        return verdict
    state.repeated_at, state.nameless = None, []  # that was worth it
    for node in bad:
        conditions.remember(state, state.nodes[node], _condition(node, event.found[node]))
    if state.bad_step is not None:  # it was this node, and not the step
        numerics.go_below(state, state.bad_step)
        state.bad_step = None
    rank = state.nodes[bad[0]].node_rank or 0
    return verdict and msgspec.structs.replace(verdict, rank=rank * state.workers_per_node)


def _condition(node: str, told: str) -> HealthChanged:
    return HealthChanged(
        node=node,
        condition=CONDITION,
        severity=Severity.FATAL,
        detail=f"groups of nodes have repeated a step: {told}",
        advice="run `holdfast check` on that machine, and a burn-in over several nodes",
    )
