"""Why a job does not begin anew, for people: something is there, and it cannot be used.

Beginning anew is right where nothing is there. Where something is, it may be what a month of
training has come to, so that is for a person to decide: `--fresh`.
"""

from collections.abc import Mapping, Sequence

from holdfast.checkpoint.key import Key, newest_first
from holdfast.checkpoint.lineage import BAD
from holdfast.errors import Error
from holdfast.train import candidates
from holdfast.train.candidates import Candidate, Location, RankInventory
from holdfast.train.load_failure import FailureKind, LoadFailure

_TOLD = 3
_ANEW = "or start from step 0: holdfast run job.yaml --replace --fresh   (removes no checkpoint)"


def misfit(one: Candidate, failure: LoadFailure, place: str) -> Error:
    """It is sound, but not of this model; or it cannot be told how to give it to these ranks."""
    if failure.kind is FailureKind.UNCLEAR:
        return Error(
            "layout-unknown",
            f"step {one.key.step} in {one.where.words} cannot be resharded",
            why=failure.text,
            help="resume with the same number of ranks, or wrap the model with run.parallelize(), "
            "fully_shard or parallelize_module",
        )
    return Error(
        "checkpoint-unusable",
        f"step {one.key.step} of attempt {one.key.attempt} in {place} is of a different model",
        why=failure.text,
        help=f"train the model that saved it, use another checkpoint location, {_ANEW}",
    )


def unreachable(one: Candidate | None, why: str) -> Error:
    """There may be something newer than this, or (None) something at all."""
    which = "a checkpoint" if one is None else f"a checkpoint newer than step {one.key.step}"
    return Error(
        "storage-unreachable",
        f"cannot determine whether there is {which} to resume from",
        why=why,
        help="check that the storage is available; the job then resumes from it",
    )


def ahead(attempt: int, known: int) -> Error:
    """This attempt was numbered while nobody could see the checkpoints, or has been replaced."""
    return Error(
        "storage-ahead",
        f"attempt {attempt} cannot save here: attempt {known} has already saved here",
        why="attempt numbers continue from those in the checkpoint location, which did not "
        "respond when this attempt was numbered",
        help="no action is needed: the job restarts with the next free number",
    )


def in_use(rivals: Sequence[str]) -> Error:
    """Another job of this name lives: this one would continue from what it saves, and fence it."""
    return Error(
        "checkpoint-in-use",
        "another job of this name is running and saves its checkpoints in the same location",
        why="; ".join(rivals),
        help="stop the other job, or give this one another name or checkpoint location; with "
        "checkpoints.take_over: true in the job file this one continues from those checkpoints, "
        "and the other can no longer save",
    )


def vanished(step: str, environ: Mapping[str, str]) -> Error:
    """A place that is empty is most often a mount that is missing."""
    places = [candidates.place_of(where, environ) for where in (Location.SHARED, Location.ARCHIVE)]
    where = " and ".join(place for place in places if place)
    return Error(
        "storage-missing",
        f"{where}: there is no checkpoint, although this job has committed step {step}",
        why="the location is not mounted, has changed, or its contents were removed",
        help="restore it, and the job resumes from it; if it is permanently lost, start from step "
        "0: holdfast run job.yaml --replace --fresh",
    )


def refusal(
    dropped: Mapping[Candidate, LoadFailure],
    inventories: Sequence[RankInventory],
    environ: Mapping[str, str],
) -> Error | None:
    """Why the job may not begin anew now that nothing is left to try; None if it may."""
    counts = candidates.counting(inventories, environ)
    unsound = [
        one.text
        for inventory in inventories
        for one in inventory.unread
        if one.step is not None and counts(Key(one.attempt, one.step), Location(one.where))
    ]
    unsound += [one.text for c, one in dropped.items() if c.where > Location.MEMORY]
    if unsound:
        return _all_damaged(unsound)
    for one, failure in dropped.items():
        if failure.kind is FailureKind.MISFIT:
            return misfit(one, failure, one.where.words)
    if asked := environ.get(candidates.FROM):
        return Error(
            "checkpoint-not-found",
            f"{asked} is not a checkpoint that this job can start from",
            why="it has no committed checkpoint",
            help=f"holdfast checkpoint list --at {asked}",
        )
    return _past_the_limit(inventories, environ)


def _all_damaged(texts: Sequence[str]) -> Error:
    rest = f"; and {len(texts) - _TOLD} more" if len(texts) > _TOLD else ""
    return Error(
        "checkpoint-unusable",
        "checkpoints exist, but all of them are damaged",
        why="; ".join(texts[:_TOLD]) + rest,
        help=f"holdfast checkpoint verify   (lists what is damaged); {_ANEW}",
    )


def _past_the_limit(
    inventories: Sequence[RankInventory], environ: Mapping[str, str]
) -> Error | None:
    """Whether there would be something, had it not led into a failure again and again, or been
    saved with bad numbers."""
    limits = candidates.BELOW, BAD
    limitless = {name: value for name, value in environ.items() if name not in limits}
    counts = candidates.counting(inventories, limitless)
    held = [
        one.key
        for inventory in inventories
        for one in inventory.checkpoints
        if one.where != Location.ELSEWHERE and counts(one.key, Location(one.where))
    ]
    if not held:
        return None
    oldest, below = newest_first(held)[-1].step, environ.get(candidates.BELOW)
    what = f"there is no checkpoint of a step before {below}"
    why = "resuming from that step or later repeatedly led to the same failure"
    if below is None or oldest < int(below):
        what = "there is no checkpoint from before the first bad step of its attempt"
        why = "the loss was not finite, replicas differed, or training led to the same failure"
    return Error(
        "checkpoint-unusable",
        what,
        why=f"{why}; the oldest existing checkpoint is of step {oldest}",
        help=f"fix the cause of the failure and run the job again, {_ANEW}",
    )
