"""How many nodes the next attempt has, of a job that may train with fewer or more than it has.

Between two attempts the size changes at no cost, so every one begins with as many nodes as are
ready, up to the target. While some are missing the attempt waits until the break-even
(`policies/shrink.py`), then it starts with those that are there, if they are enough. All of it
rests on what a change has cost in this job. Where the bounds are one number nothing changes ever.
"""

from holdfast.controller import choices, conditions, incidents, nodes
from holdfast.controller.policies import ladder, waits
from holdfast.controller.policies.situation import Rung, Trouble
from holdfast.controller.state import State
from holdfast.counts import count
from holdfast.events import Progress

SHORT = "nodes-missing"  # what is chosen for while some are


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
    took_s = state.sizing.start_s = state.now - began
    moved, state.times.moved = state.times.moved, False
    kept, state.times.kept = state.times.kept, False
    state.times.fresh_s = state.times.fresh_s if kept else took_s
    if state.start is None or state.start.restarts == 0:
        return  # everything was new
    if moved:
        state.times.move_s = took_s
    else:
        state.times.restart_s = took_s


def paced(state: State, progress: Progress) -> None:
    """It has come so far: what a step takes, since it was first seen to do some."""
    if progress.step is None:
        return
    at, mark = state.now - progress.step_ago_s, state.times.mark
    if mark is None:
        state.times.mark = (progress.step, at)
    elif progress.step > mark[0] and at > mark[1]:
        state.times.step_s = (at - mark[1]) / (progress.step - mark[0])


def ready(state: State) -> int:
    """Nodes that can train now, in whole replicas."""
    return state.limits.whole(len(state.ranks) + len(state.spares))


def growable(state: State) -> int:
    """The size that a job of this size could grow to with the spares that are sound."""
    sound = state.limits.whole(len(state.ranks) + conditions.sound_spares(state))
    return max(state.size, min(state.target, sound))


def settle(state: State) -> None:
    """No attempt runs: whatever has become possible or was asked for holds from the next one on."""
    if not state.limits.elastic:
        return
    fresh = state.attempt == 0 or not state.instrumented  # no rank has anything of its own
    least = min(state.size, state.target) if fresh else state.size
    cold = 0 if fresh else conditions.cold_spares(state)  # nobody waits for these
    there = state.limits.whole(len(state.ranks) + len(state.spares) - cold)
    size = max(least, min(there, state.target))
    if size != state.size:
        change(state, size, _asked(state) if size == state.target else _there(state))
    if not nodes.missing(state):
        state.sizing.short_since = state.sizing.shrink_deadline = None


def shrinks(state: State, *, alone: str = "") -> bool:
    """Nodes are missing: whether the next attempt goes without them. Else it is known when to look
    again. `alone`: none will come, and why."""
    sizing, left = state.sizing, ready(state)
    able = state.limits.elastic and left >= state.limits.fewest
    if able:
        sizing.short_since = state.now if sizing.short_since is None else sizing.short_since
    else:
        sizing.shrink_deadline = None
        if not alone and (state.open_incident is None or choices.waits(state)):
            return False
    last = bool(alone) or left >= state.target
    trouble = Trouble(cause=SHORT, summary=alone or state.why, alone=last)
    situation = choices.situation(state, trouble)
    chosen = ladder.choose(situation)
    if chosen.rung is not Rung.WAIT or not choices.waits(state):
        choices.record(state, chosen, trouble)
    if chosen.rung is not Rung.SHRINK:
        if able and sizing.short_since is not None:
            due = sizing.shrink_deadline = sizing.short_since + waits.patience_s(situation)
            state.why += f"; with {left} of them in {due - state.now:.3g} s (break-even)"
        return False
    change(state, left, chosen.reason)
    incidents.note(state, "Shrink", f"continue with {count(left, 'node')}: {chosen.reason}")
    sizing.short_since = sizing.shrink_deadline = None
    return True


def change(state: State, size: int, why: str) -> None:
    """The next attempt has so many nodes."""
    before = state.size
    nodes.resize(state, size)
    batch = _batch(state)
    state.sizing.changed_at, state.sizing.why = state.now, f"{why}; {batch}" if batch else why
    if batch:
        incidents.note(state, "Batch", batch)
    state.tell(f"from {before} to {count(size, 'node')}: {why}")


def _batch(state: State) -> str:
    """What it means for the batch."""
    written_for = state.limits.node_count
    if state.limits.batch and not state.instrumented:
        return "the script, which does not use holdfast.train, sets its batch and learning rate"
    match state.limits.batch:
        case "keep_global_batch":
            return f"each step has as many samples as on {count(written_for, 'node')}"
        case "scale_lr":
            return f"the learning rate is multiplied by {state.size / written_for:.4g}"
        case _:
            return ""


def _asked(state: State) -> str:
    if state.sizing.target is None:
        return f"all {state.target} nodes are ready"
    return f"{state.scaled_by} asked for {state.target}"


def _there(state: State) -> str:
    return f"ready: {ready(state)} of {count(state.target, 'node')}"
