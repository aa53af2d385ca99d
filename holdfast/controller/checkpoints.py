"""What the controller knows of durable checkpoints, and what follows when one of them is poison.

Only books are kept here: saving needs no orders. The exception is a job that fails twice in the
same way after going on from the same place: then it has to go on from an older one.
"""

from collections.abc import Iterable

from holdfast.controller import incidents
from holdfast.controller.state import State, TierRecord, Trial
from holdfast.events import CheckpointCommitted, CheckpointFailed, Diagnosed

COMMITTED_MAX = 512  # steps remembered
BAD_KEPT = 64  # attempts of which it is remembered what is never restored
LEFT_KEPT = 16  # the newest: what these have saved beyond an older checkpoint is left with it
FAILURES_TOLD = 4  # in a row, where a tier has been saved to before


def committed(state: State, event: CheckpointCommitted) -> None:
    """A checkpoint counts."""
    tier = state.tiers.setdefault(event.tier, TierRecord())
    if (tier.attempt, tier.step) == (event.attempt, event.step):
        return  # told again by a storage process that was started anew
    if tier.step is not None:
        tier.every_s = round(state.now - tier.at, 3)
    tier.attempt, tier.step, tier.at = event.attempt, event.step, state.now
    tier.seconds, tier.bytes, tier.name = event.seconds, event.bytes, event.name
    tier.commits_count += 1
    if tier.told:
        failed = f"after {tier.failures} failed saves"
        state.note(event.step, 0, f"checkpoints.{event.tier}: step {event.step} is saved, {failed}")
    tier.failures, tier.why, tier.told = 0, "", False
    state.committed.append(event.step)
    del state.committed[:-COMMITTED_MAX]


def failed(state: State, event: CheckpointFailed) -> None:
    """A save did not come to its end. What was committed before stays."""
    tier = state.tiers.setdefault(event.tier, TierRecord())
    tier.failures_count += max(1, event.failures - tier.failures)
    tier.failures, tier.why = event.failures, event.why
    incidents.note(state, "CheckpointFailed", f"{event.tier}: {event.why}")
    if tier.told or (tier.step is not None and tier.failures < FAILURES_TOLD):
        return
    tier.told = True
    last = "nothing has ever been saved" if tier.step is None else f"step {tier.step} is the last"
    state.note(event.step, 0, f"checkpoints.{event.tier}: saving fails, {last}: {event.why}")


def trial(state: State, verdict: Diagnosed) -> Trial:
    """How the attempt that has just been stopped ended."""
    failure = verdict.signature or verdict.cause
    return Trial(state.restored or 0, failure, state.reached)


def roll_back(state: State, now: Trial, older: int) -> None:
    """The next attempt goes on from an older checkpoint: the newest that is known, and not from a
    snapshot in memory, which may be only a step older and no better. What was saved beyond it until
    now is left for good: whoever loses all that is newer would come to the same failure again."""
    state.restore_below, state.rolled_back = older + 1, now.failure
    never_restore(state, range(max(1, state.attempt + 1 - LEFT_KEPT), state.attempt + 1), older + 1)
    state.poison_step = max(now.restored, now.step or 0)
    why = f"step {now.restored} was restored and led to the same failure: {now.failure}"
    incidents.note(state, "RollBack", f"{why}; step {older} or an older one is next")


def never_restore(state: State, attempts: Iterable[int], step: int) -> None:
    """Nothing that these have saved from this step on is gone on from, ever."""
    known = dict(state.bad_steps)
    known |= {attempt: min(step, known.get(attempt, step)) for attempt in attempts}
    state.bad_steps = tuple(sorted(known.items()))[-BAD_KEPT:]


def passed(state: State) -> None:
    """Once training is past the place, what it saves may be used whatever its step; and what fails
    like this later is another poison, for which an older checkpoint has not been tried."""
    if state.poison_step is not None and (state.reached or 0) > state.poison_step:
        state.restore_below = state.poison_step = state.rolled_back = None


def outliving(state: State) -> int | None:
    """The newest step that this job has committed to a tier which no node takes along."""
    steps = [state.tiers[tier].step for tier in ("shared", "archive") if tier in state.tiers]
    return max((step for step in steps if step is not None), default=None)
