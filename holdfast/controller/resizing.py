"""Changes the size of an attempt that trains: to grow, or because somebody asked for another size.

The attempt is stopped at the end of a step, with a snapshot of it in memory, and the next one has
the new size. A job grows by itself when nodes are ready that it lacks, and not before the last
change of its size is long enough ago (`grow_after_s`). When somebody asked, at once; fewer by as
many at a time as memory survives, because those that go take their snapshots along.
"""

from holdfast.actions import AnyAction, Fence
from holdfast.controller import attempts, choices, incidents, nodes, sizes
from holdfast.controller.phases import Phase
from holdfast.controller.policies import ladder, restart, waits
from holdfast.controller.policies.situation import History, Rung, Trouble
from holdfast.controller.state import State
from holdfast.counts import count
from holdfast.events import Keeps, ScaleRequested


def scaled(state: State, event: ScaleRequested) -> list[AnyAction]:
    """Somebody wants so many nodes to train; within the bounds of the job."""
    limits, sizing = state.limits, state.sizing
    if not limits.elastic or state.phase is Phase.CLOSING:
        return []
    sizing.target = max(limits.fewest, limits.whole(min(limits.most, event.nodes)))
    state.scaled_by = event.by
    sizing.growths, sizing.changed_at = [], None  # what was asked for is not held back
    state.stillborn, state.ask_at, state.failed_checks = 0, None, []
    state.tell(f"{event.by} asked for {count(event.nodes, 'node')}")
    more = nodes.top_up(state, f"{event.by} asked for {count(state.target, 'node')}")
    return [*more, *(attempts.try_start(state) or review(state))]


def review(state: State) -> list[AnyAction]:
    """Whether the attempt that trains should have another size."""
    sizing = state.sizing
    before, sizing.grow_deadline = sizing.grow_deadline, None
    if not state.limits.elastic or not undisturbed(state):
        return []
    if state.size > state.target:
        least = max(state.limits.nodes_each, state.limits.whole(state.limits.copies))
        step = least if state.instrumented else state.size
        size = max(state.target, state.size - step)
        return _stop(state, size, f"{sizing_text(state, size)}: {state.scaled_by} asked for fewer")
    more = sizes.growable(state) - state.size
    if more <= 0:
        return _let_go(state)
    sizing.growths = restart.recent(sizing.growths, state.now, state.limits.window_s)
    trouble = Trouble(cause=ladder.RESIZED, trains=True)
    situation = choices.situation(state, trouble, History(growths=len(sizing.growths)))
    chosen = ladder.choose(situation)
    if chosen.rung is not Rung.GROW:
        sizing.grow_deadline = (sizing.changed_at or 0.0) + waits.grow_wait_s(situation)
        if sizing.grow_deadline != before:
            choices.record(state, chosen, trouble, incident=False)
        return []
    size = state.size + more
    sizing.growths = [*sizing.growths, state.now]
    actions = _stop(state, size, f"{sizing_text(state, size)}: {chosen.reason}")
    choices.record(state, chosen, trouble)
    return actions


def sizing_text(state: State, size: int) -> str:
    """From how many nodes to how many."""
    return f"from {state.size} to {count(size, 'node')}"


def undisturbed(state: State) -> bool:
    """It trains, nothing is wrong, and nobody has begun to leave."""
    return (
        state.phase is Phase.RUNNING
        and state.open_incident is None
        and not state.finished
        and not state.deaths
    )


def _stop(state: State, size: int, why: str) -> list[AnyAction]:
    state.sizing.changing_to = size
    incidents.open_for_size(state, why)
    keeps: Keeps = "here" if size > state.size else "elsewhere"  # nodes that go lose theirs
    grace_s, parks = state.limits.stop_grace_s, state.limits.replicas
    return attempts.stop(state, Phase.RECOVERING, why, grace_s, keeps=keeps, parks=parks)


def _let_go(state: State) -> list[AnyAction]:
    """It trains with what was asked for: nodes that wait beyond that go."""
    why = f"{state.scaled_by} asked for {count(state.target, 'node')}"
    asked = state.sizing.target is not None and state.limits.lets_go
    gone = nodes.surplus(state) if asked else []
    for node in gone:
        nodes.remove(state, node.node, why)
        state.note(state.max_step or 0, 0, f"spare {node.name} is released: {why}")
    return [Fence(node=node.node, reason=why) for node in gone]
