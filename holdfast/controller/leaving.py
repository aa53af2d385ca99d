"""Workers that exit with status 0 before their last step.

Ending early is no fault when everybody does: a `break` out of the loop, an early stop. So such an
exit is only noted. If nobody is left, the job has succeeded. If others fail meanwhile, or are still
in their steps when the time for leaving is over, the rank that left is what went wrong. If others
end within it, some steps later, the end says which rank was the first, and after which step. Ranks
that have left their loop as well, and save or export something, are given the time that takes.
"""

from collections.abc import Iterable

from holdfast.actions import AnyAction, Outcome, Survey
from holdfast.controller import attempts, incidents, versions
from holdfast.controller.phases import TRAINING, Phase
from holdfast.controller.state import State
from holdfast.counts import count
from holdfast.events import Milestone, Surveyed, WorkerExited

LEAVE_S = 30.0  # between the first rank that leaves and a look at the others, and between two looks


def is_early(exited: WorkerExited) -> bool:
    """Whether a worker that reports steps exited with status 0 before its last one."""
    progress = exited.progress
    return exited.exit_code == 0 and progress.step is not None and not progress.finished


def left(state: State, exits: Iterable[WorkerExited]) -> list[AnyAction]:
    """Ranks have exited with status 0 and been noted: the job is over, or others are to follow."""
    if len(state.finished) >= state.world_size:
        joined = not state.instrumented or Milestone.ARRIVED in state.milestones
        if versions.on_trial(state) and not joined:
            return _never_joined(state)
        return attempts.end(state, Outcome.SUCCEEDED, _how_it_ended(state))
    if state.leave_deadline is None and any(map(is_early, exits)):
        state.leave_deadline = state.now + LEAVE_S
    return []


def _never_joined(state: State) -> list[AnyAction]:
    """Code that is new has ended well without training: that cannot be what was meant."""
    incidents.open_for_exit(state, state.exits[0])
    why = "every worker of a new version exited with status 0 above join()"
    return attempts.stop(state, Phase.RECOVERING, why, state.limits.restart_grace_s)


def look(state: State) -> list[AnyAction]:
    """The time for the others to leave is over. An answer may be lost with a controller: again."""
    first = _first(state)
    if state.phase not in TRAINING or first is None:
        state.leave_deadline = None
        return []
    state.leave_deadline = state.now + LEAVE_S
    return [Survey(attempt=state.attempt, reason=f"{_told(first)}: are others training?")]


def surveyed(state: State, event: Surveyed) -> list[AnyAction]:
    """It is known how many ranks train on without those that left."""
    first = _first(state)
    if event.attempt != state.attempt or state.phase not in TRAINING or first is None:
        return []
    if event.training_count == 0:
        return []
    incidents.open_for_exit(state, first)
    words = "other rank still trains", "other ranks still train"
    others = count(event.training_count, *words)
    why = f"{_told(first)}; {others}"
    return attempts.stop(state, Phase.RECOVERING, why, state.limits.restart_grace_s)


def _first(state: State) -> WorkerExited | None:
    early = [exited for exited in state.exits if is_early(exited)]
    return min(early, key=lambda exited: (-exited.ago_s, exited.rank), default=None)


def _told(exited: WorkerExited) -> str:
    return f"rank {exited.rank} exited with status 0 after step {exited.progress.step}"


def _how_it_ended(state: State) -> str:
    first = _first(state)
    if first is None:
        return "every worker finished"
    left_at, last = first.progress.step or 0, state.max_step or 0
    if left_at < last:
        return f"{_told(first)}, and others with status 0 up to step {last}"
    return f"every worker exited with status 0; the job ended early, after step {state.max_step}"
