"""A rank has left a collective out: those of different steps meet, and gradients are wrong.

Training would go on for ever like this, without an error. The attempt is stopped and started again
like after a hang: the steps that are known are those of the optimizer, so what the script goes on
from is its own matter, and since when its state is wrong is what it is told. A script that saves
with `holdfast.train` never comes here: its ranks meet for snapshots at steps that all of them know,
and there they hang instead, before the next one is whole.
"""

from holdfast.actions import AnyAction
from holdfast.controller import attempts, incidents
from holdfast.controller.phases import Phase
from holdfast.controller.state import State
from holdfast.events import CollectivesShifted, Diagnosed, each_of
from holdfast.stacks import in_words

CAUSE = "collective-skipped"
KNOWN, UNKNOWN = 0.95, 0.9  # how sure, with a rank to blame and without


def shifted(state: State, event: CollectivesShifted) -> list[AnyAction]:
    """Nothing that this attempt does is of use any more."""
    if event.attempt != state.attempt or state.phase is not Phase.RUNNING:
        return []
    why, first = _story(event), next(each_of(event.ranks), None)
    state.stopped_for = Diagnosed(
        attempt=event.attempt,
        cause=CAUSE,
        summary=why,
        confidence=UNKNOWN if first is None else KNOWN,
        rank=first,
    )
    incidents.open_for_shift(state, event, CAUSE, why)
    saved = f"what the script has saved in the last {event.ago_s:.0f} s may be wrong"
    incidents.note(state, "RollBack", f"{saved}: it resumes from what it finds")
    return attempts.stop(state, Phase.RECOVERING, why, state.limits.restart_grace_s)


def _story(event: CollectivesShifted) -> str:
    count, more = abs(event.by), "more" if event.by > 0 else "fewer"
    some = f"{count} collective{'s' if count > 1 else ''} {more}"
    where = f"in group {event.group} since optimizer step {event.agreed + 1} of this attempt"
    met = "since then, those of different steps are paired and gradients are wrong"
    if not event.ranks:
        return f"One rank has entered {some} than another {where}; {met}"
    single = sum(1 for _ in each_of(event.ranks)) == 1
    who = f"Rank{'' if single else 's'} {in_words(event.ranks)}"
    return f"{who} {'has' if single else 'have'} entered {some} than the others {where}; {met}"
