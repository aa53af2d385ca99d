"""How many nodes the next attempt has, of a job that may train with fewer or more than it has.

Between two attempts the size changes at no cost, so every one begins with as many nodes as are
ready, up to the target. While some are missing the attempt waits until the break-even
(`policies/shrink.py`), then it starts with those that are there, if they are enough. All of it
rests on what a change has cost in this job. Where the bounds are one number nothing changes ever.
"""

from holdfast.controller import conditions, incidents, nodes
from holdfast.controller.policies import shrink
from holdfast.controller.state import State

CHANGE_S = 30.0  # until it was measured


def change_s(state: State) -> float:
    """What a change of the size costs: to stop an attempt, and until the next one trains."""
    sizing = state.sizing
    return (sizing.stop_s or 0.0) + (CHANGE_S if sizing.start_s is None else sizing.start_s)


def stopped(state: State) -> None:
    """The attempt is: that took so long."""
    if state.sizing.stop_at is not None:
        state.sizing.stop_s, state.sizing.stop_at = state.now - state.sizing.stop_at, None


def arrived(state: State, ago_s: float) -> None:
    """The first workers stand where a warm one waits: later attempts begin there."""
    if state.start is not None and state.start.restarts == 0:
        state.sizing.arrived_at = state.now - ago_s


def trains(state: State) -> None:
    """The attempt does: that took so long."""
    began = max(state.attempt_started_at, state.sizing.arrived_at or 0.0)
    state.sizing.start_s = state.now - began


def ready(state: State) -> int:
    """Nodes that can train now."""
    return len(state.ranks) + len(state.spares)


def growable(state: State) -> int:
    """The size that a job of this size could grow to with the spares that are sound."""
    return max(state.size, min(state.target, len(state.ranks) + conditions.sound_spares(state)))


def settle(state: State) -> None:
    """No attempt runs: whatever has become possible or was asked for holds from the next one on."""
    if not state.limits.elastic:
        return
    fresh = state.attempt == 0 or not state.instrumented  # no rank has anything of its own
    least = min(state.size, state.target) if fresh else state.size
    size = max(least, min(ready(state), state.target))
    if size != state.size:
        change(state, size, _asked(state) if size == state.target else _there(state))
    if not nodes.missing(state):
        state.sizing.short_since = state.sizing.shrink_deadline = None


def shrinks(state: State, *, now: bool = False) -> bool:
    """Nodes are missing: whether the next attempt goes without them. Else it is known when to look
    again. `now`: none will come."""
    sizing, left = state.sizing, ready(state)
    if not state.limits.elastic or left < state.limits.fewest:
        sizing.shrink_deadline = None
        return False
    now = now or left >= state.target
    sizing.short_since = state.now if sizing.short_since is None else sizing.short_since
    missing, costs = nodes.missing(state), change_s(state)
    even_s = shrink.break_even_s(state.size, missing, costs)
    wait_s = min(shrink.patience_s(even_s, _expected_s(state)), state.limits.node_wait_s)
    due = sizing.short_since + wait_s
    if not now and state.now < due:
        sizing.shrink_deadline = due
        state.why += f"; with {left} of them in {due - state.now:.3g} s (break-even)"
        return False
    told = (
        "no more are to come" if now else f"none came within {state.now - sizing.short_since:.3g} s"
    )
    counted = f"{missing} of {state.size} nodes missing"
    because = f"{counted}, {told}; a change costs {costs:.3g} s, so waiting pays for {even_s:.3g} s"
    change(state, left, because)
    incidents.note(state, "Shrink", f"train on with {left} nodes: {because}")
    sizing.short_since = sizing.shrink_deadline = None
    return True


def _expected_s(state: State) -> float | None:
    """How long the missing nodes will take, as nodes have taken before. None: nobody knows."""
    sizing = state.sizing
    if sizing.arrival_s is None or sizing.asked_at is None:
        return None
    left_s = sizing.asked_at + sizing.arrival_s - state.now
    return left_s if left_s > 0 else None  # they are late


def change(state: State, size: int, why: str) -> None:
    """The next attempt has so many nodes."""
    before = state.size
    nodes.resize(state, size)
    state.sizing.changed_at, state.sizing.why = state.now, why + _batch(state)
    state.tell(f"from {before} to {size} nodes: {why}")


def _batch(state: State) -> str:
    """What it means for the batch."""
    count = state.limits.node_count
    match state.limits.batch:
        case "keep_global_batch":
            return f"; each step has as many samples as on {count} nodes"
        case "scale_lr":
            return f"; the learning rate is multiplied by {state.size / count:.4g}"
        case _:
            return ""


def _asked(state: State) -> str:
    if state.sizing.target is None:
        return f"all {state.target} nodes are there"
    return f"holdfast scale asked for {state.target}"


def _there(state: State) -> str:
    return f"{ready(state)} of {state.target} nodes are there"
