"""Ranks that make all others wait, step after step: they are told, and replaced only if asked for.

Slowness is no fault: training goes on, and the cure costs a restart and a node. So the default is
to note who is slow and what explains it. With `recovery.stragglers: replace` the node is given up
for a spare, unless its input, its saves or its share of the work explain it: those would be the
same elsewhere. One at a time, and never without a spare. That a whole stage of the pipeline is slow
is noted once, and asks for nothing.
"""

from holdfast.actions import AnyAction
from holdfast.controller import attempts, choices, incidents
from holdfast.controller.phases import Phase
from holdfast.controller.policies.replace import STRAGGLER
from holdfast.controller.policies.situation import Rung, Trouble
from holdfast.controller.state import State
from holdfast.events import Diagnosed, StragglersFound
from holdfast.slow_ranks import SlowBy, Straggler

OF_THE_NODE = (SlowBy.PROCESSOR, SlowBy.ITSELF)
CONFIDENCE = 0.8


def found(state: State, event: StragglersFound) -> list[AnyAction]:
    """Other ranks are slow than before."""
    if event.attempt != state.attempt or state.phase is not Phase.RUNNING:
        return []
    before = {one.rank for one in state.stragglers if one.cause is not SlowBy.STAGE}
    state.stragglers = event.stragglers
    state.slowed = 0 if event.stragglers else state.slowed
    for straggler in event.stragglers:
        known = _was_noted(state, straggler)
        if not known if straggler.cause is SlowBy.STAGE else straggler.rank not in before:
            state.note(state.max_step or 0, straggler.rank, text_of(state, straggler))
    gone = before - {straggler.rank for straggler in event.stragglers}
    if gone and not event.stragglers:
        state.note(state.max_step or 0, min(gone), "no rank is slow any more")
    return _answered(state, before)


def _was_noted(state: State, straggler: Straggler) -> bool:
    """Of a stage, in any attempt: that layers are divided unevenly is no news each time."""
    stage = straggler.text.partition(" computes ")[0]
    return any(note.rank == straggler.rank and stage in note.text for note in state.notes)


def text_of(state: State, straggler: Straggler) -> str:
    """One sentence without a full stop."""
    if straggler.cause is SlowBy.STAGE:
        return f"{straggler.text}; the others wait for it {straggler.share:.0%} of the time"
    where = incidents.node_of(state, straggler.rank)
    slow = f"rank {straggler.rank} on {where} is slow"
    return f"{slow}: all others wait for it {straggler.share:.0%} of the time; {straggler.text}"


def _answered(state: State, before: set[int]) -> list[AnyAction]:
    slow = [one for one in state.stragglers if one.cause in OF_THE_NODE]
    ranks = slow or [one for one in state.stragglers if one.cause is not SlowBy.STAGE]
    worst = max(ranks, key=lambda one: one.share, default=None)
    if worst is None:
        return []
    why = text_of(state, worst)
    trouble = Trouble(
        cause=STRAGGLER,
        summary=why,
        confidence=CONFIDENCE,
        node=incidents.node_of(state, worst.rank),
        trains=True,
        harmless="" if slow else "it would be as slow on another node",
    )
    chosen = choices.choose(state, trouble)
    if chosen.rung is not Rung.REPLACE:
        if worst.rank not in before:
            choices.record(state, chosen, trouble, incident=False)
        return []
    state.stopped_for = Diagnosed(
        attempt=state.attempt, cause=STRAGGLER, summary=why, confidence=CONFIDENCE, rank=worst.rank
    )
    incidents.open_for_rank(state, STRAGGLER, why, worst.rank)
    choices.record(state, chosen, trouble)
    return attempts.stop(state, Phase.RECOVERING, why, state.limits.restart_grace_s)
