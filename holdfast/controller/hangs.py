"""Workers that make no progress: look at them, and stop the attempt if they hang.

Who suspects them, and what a look shows, is told as facts, so that both can be replayed. A look
that shows workers at work changes nothing but what `status` says.
"""

from holdfast.actions import AnyAction, CollectEvidence
from holdfast.controller import attempts, incidents
from holdfast.controller.phases import TRAINING, Phase
from holdfast.controller.state import State
from holdfast.counts import count
from holdfast.events import Diagnosed, HangJudged, HangSuspected, Judgement, each_of

ENDED = "script-ended"  # signature of processes that do not end: the next attempt repeats it all


def suspected(state: State, event: HangSuspected) -> list[AnyAction]:
    """Have a look."""
    if event.attempt != state.attempt or state.phase not in TRAINING:
        return []
    state.stood_after = event.counted
    reason = f"no progress for {event.ago_s:.1f} s, the limit is {event.budget_s:.1f} s"
    return [CollectEvidence(suspicion=event, reason=reason)]


def judged(state: State, event: HangJudged) -> list[AnyAction]:
    """What the look has shown. Where ranks have ended well, others may wait for them for ever
    (`leaving.py`), or write the last checkpoint: that is told, and nobody is stopped."""
    if event.attempt != state.attempt or state.phase not in TRAINING:
        return []
    if event.judgement is Judgement.OVER:
        state.standstill = ""
        return []
    if event.judgement is not Judgement.HANG or state.finished:
        state.standstill = event.summary
        if (left := len(state.finished)) and event.judgement is Judgement.HANG:
            ended = f"{left} of {count(state.world_size, 'rank')} {'has' if left == 1 else 'have'}"
            state.standstill += f"; not stopped, because {ended} exited with status 0"
        state.tell(state.standstill)
        return []
    first = next(each_of(event.ranks), None)
    state.stopped_for = Diagnosed(
        attempt=event.attempt,
        cause="hang",
        summary=event.summary,
        confidence=event.confidence,
        rank=first,
        user_error=event.ended,
        signature=ENDED if event.ended else None,
    )
    incidents.open_for_hang(state, event, first)
    grace_s, parks = state.limits.restart_grace_s, state.limits.replicas and bool(event.ranks)
    return attempts.stop(state, Phase.RECOVERING, event.summary, grace_s, parks=parks)


def comes_again(state: State) -> bool:
    """Whether a script that reports no steps hangs after as many steps as in the previous attempt,
    for the same rank or for all: it came no further, however long that took."""
    if state.instrumented or len(state.incidents) < 2:
        return False
    before, now = state.incidents[-2:]
    same = (now.hung_after, now.rank) == (before.hung_after, before.rank)
    return now.cause == before.cause == "hang" and now.hung_after is not None and same
