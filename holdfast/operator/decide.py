"""What to do about one TrainingJob, given everything that is known of it: a pure function.

Level-triggered: it looks at what is, never at what has just changed, so that an operator that was
away, or heard something twice, ends up at the same place. The only memory is the status of the
object itself: which spec the job was made from, and that it was suspended.

Of a job that runs only arguments, variables, code, and on some engines the image are changed, by a
hot update. What is missing is made again; any other change of the spec waits until the job has been
suspended and resumed; an operator of a newer version leaves the old objects as they are.
"""

from dataclasses import dataclass
from enum import StrEnum

from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.operator.updating import NONE, SpecUpdate, story
from holdfast.status import JobStatus

STOP_LIMIT_S = 120.0  # beyond the job's own grace time, for a controller to stop its job
SOON_S = 1.0
WATCH_S = 60.0  # between two looks at whether everything is still there
BLOCKED_S = 30.0


class Step(StrEnum):
    """What to do now."""

    WATCH = "watch"  # nothing but telling how it stands
    MAKE = "make"  # everything that is missing
    UPDATE = "update"  # the job that runs, to the arguments of the spec
    ASK_STOP = "ask_stop"
    CLEAR = "clear"  # what makes pods, and the pods
    RENEW = "renew"  # the same, and the record of the run that was suspended
    EXPIRE = "expire"  # the TrainingJob itself


@dataclass(frozen=True)
class Known:
    """Everything that counts. Times are seconds since the epoch."""

    status: Body  # of the TrainingJob, as it was left
    suspend: bool
    keep_s: int | None
    digest: str
    managed: bool
    stop_limit_s: float
    record: JobStatus | None
    outcome: str | None  # from the record, or in plain mode from the engine's object
    there: int  # how many of the objects that make pods exist
    foreign: str | None  # an object of somebody else in the place of one of ours
    retired: bool  # the controller has no pod any more, and should have none
    now: float
    ended_at: float | None = None
    stopping_since: float | None = None
    update: SpecUpdate = NONE
    pods: int = 0  # that are left of a job of which nothing that makes pods is there
    held: str = ""  # what is being deleted and does not go, and by whom it is held


@dataclass(frozen=True)
class Decision:
    """What to do, what to say, and when to look again (None: when something changes)."""

    step: Step
    phase: str | None = None  # None: as the record says
    reason: str = ""
    message: str = ""
    after_s: float | None = WATCH_S


def decide(known: Known) -> Decision:
    """What to do next."""
    if known.foreign is not None:
        return taken(known.foreign)
    if known.outcome not in (None, "stopped"):
        return _ended(known)
    if known.suspend:
        return _suspend(known)
    if was_suspended(known.status):
        return _resume(known)
    if known.outcome is not None:
        return _ended(known)
    return _run(known)


def taken(what: str) -> Decision:
    """Something of somebody else has the name of an object of ours."""
    message = (
        f"{what} already exists and does not belong to this job; delete it, or choose another name"
    )
    return Decision(Step.WATCH, "Blocked", "NameTaken", message, BLOCKED_S)


def _ended(known: Known) -> Decision:
    if known.keep_s is None or known.ended_at is None:
        return Decision(Step.WATCH, after_s=None)
    left = known.ended_at + known.keep_s - known.now
    return Decision(Step.EXPIRE) if left <= 0 else Decision(Step.WATCH, after_s=left)


def _suspend(known: Known) -> Decision:
    if not (known.there or known.pods):
        return Decision(Step.WATCH, "Suspended", "Suspended", "lifetime.suspend is true", None)
    stopped = known.outcome is not None or known.record is None or not known.managed
    stopped = stopped or not known.there  # a removal that was broken off
    since = known.stopping_since
    late = since is not None and known.now - since > known.stop_limit_s
    if stopped or late:
        told = known.held or "removing what is left of the job"
        return Decision(Step.CLEAR, "Suspending", "Stopping", told, _again_s(known))
    told = "the job has been asked to stop"
    return Decision(Step.ASK_STOP, "Suspending", "Stopping", told, 10.0)


def _resume(known: Known) -> Decision:
    """Anew: nothing of the run that was suspended may be taken for one of the next."""
    running = known.outcome is None and known.record is not None and known.there > 0
    if running and _condition(known.status, "Suspended").get("status") != "True":
        told = "the job stops, then starts again"
        return Decision(Step.ASK_STOP, "Suspending", "Stopping", told, 10.0)
    if known.there or known.pods or known.record is not None:
        told = known.held or "removing what is left of the previous run"
        return Decision(Step.RENEW, "Suspended", "Resuming", told, _again_s(known))
    return Decision(Step.MAKE)


def _again_s(known: Known) -> float:
    """A finalizer may stay for days: nobody asks for a deletion once a second for so long."""
    return BLOCKED_S if known.held else SOON_S


def _run(known: Known) -> Decision:
    started = known.status.get("startedSpec")
    if not started and known.record is not None:
        return taken("the record of an earlier job of this name")
    if known.retired:
        told = "its controller is scaled to 0, manually or because the job has ended"
        return Decision(Step.WATCH, None, "ControllerScaledDown", told)
    if known.update.missing and known.there:
        return Decision(Step.WATCH, None, "CodeMissing", known.update.missing, BLOCKED_S)
    if known.update.ask is not None and known.there:
        reason, told = story(known.update.ask, known.record)
        return Decision(Step.UPDATE, None, reason, told, SOON_S)
    if known.update.asked is not None:
        return Decision(Step.MAKE, None, *story(known.update.asked, known.record))
    changed = started != known.digest or known.update.waits
    if started and changed and known.there:
        told = (
            "the spec has changed while the job is running: suspend and resume it to apply the "
            "change"
        )
        return Decision(Step.WATCH, None, "ChangeWaits", told)
    return Decision(Step.MAKE)


def was_suspended(status: Body) -> bool:
    """Whether it was, or is about to be."""
    condition = _condition(status, "Suspended")
    return condition.get("status") == "True" or condition.get("reason") == "Stopping"


def _condition(status: Body, kind: str) -> Body:
    found: Body = next((c for c in status.get("conditions") or [] if c["type"] == kind), {})
    return found
