"""Which values the trials of a sweep try, and which trial did best.

All combinations in order, the last option varying fastest, if there are as many trials; else each
value is drawn by itself. What is drawn follows from the seed, the number of the trial and the name
of the option alone, so that it is the same when the sweep goes on, and other trials may be added.
"""

import hashlib
import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.errors import Error
from holdfast.spec import Job
from holdfast.spec.sweep import Range, Sweep
from holdfast.status import TrialStatus

NUMBER = "JOB_COMPLETION_INDEX"  # as in the pods of an Indexed Job
NAME_CHARS_MAX = 50  # of a job


class SweepTrial(NamedTuple):
    """One trial; `values` by the name of the option."""

    number: int
    values: dict[str, str]
    job: Job

    @property
    def options(self) -> list[str]:
        """What comes after the arguments of the job."""
        return _options(self.values)


def trials_of(job: Job) -> list[SweepTrial]:
    """The jobs of a sweep. Raises `Error` with slug `sweep-unusable`."""
    sweep = job.sweep
    assert sweep is not None
    width = len(str(sweep.size - 1))
    longest = len(job.name) + 1 + width
    if longest > NAME_CHARS_MAX:
        raise Error(
            "sweep-unusable",
            f"the names of the trials of {job.name} would be too long",
            why=f"a trial's job is called NAME-NUMBER, at most {NAME_CHARS_MAX} characters",
            help=f"shorten the name by {longest - NAME_CHARS_MAX}",
        )
    return [
        SweepTrial(number, values, _job(job, number, width, values))
        for number, values in enumerate(_values(sweep))
    ]


def _job(job: Job, number: int, width: int, values: dict[str, str]) -> Job:
    changes = {
        "name": f"{job.name}-{number:0{width}d}",
        "args": (*job.args, *_options(values)),
        "env": {**job.env, NUMBER: str(number)},
        "sweep": None,
    }
    return job.model_copy(update=changes)


def _options(values: dict[str, str]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", value)]


def _values(sweep: Sweep) -> Iterable[dict[str, str]]:
    if not sweep.ranges and sweep.size == sweep.combinations:
        combinations = itertools.product(*sweep.over.values())
        return (dict(zip(sweep.over, found, strict=True)) for found in combinations)
    return (_drawn(sweep, number) for number in range(sweep.size))


def _drawn(sweep: Sweep, number: int) -> dict[str, str]:
    chosen = {
        name: listed[int(_share(sweep.seed, number, name) * len(listed))]
        for name, listed in sweep.over.items()
    }
    drawn = {
        name: f"{_within(one, _share(sweep.seed, number, name)):.6g}"
        for name, one in sweep.ranges.items()
    }
    return chosen | drawn


def _share(seed: int, number: int, name: str) -> float:
    """Evenly from 0 to below 1."""
    digest = hashlib.sha256(f"{seed} {number} {name}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def _within(one: Range, share: float) -> float:
    if one.log:
        low, high = math.log(one.low), math.log(one.high)
        return math.exp(low + share * (high - low))
    return one.low + share * (one.high - one.low)


def ranked(trials: Iterable[TrialStatus], goal: str) -> list[TrialStatus]:
    """The best first; those without a result at the end, by their number."""
    sign = 1.0 if goal == "min" else -1.0

    def place(one: TrialStatus) -> tuple[float, int]:
        return (math.inf if one.metric is None else sign * one.metric), one.number

    return sorted(trials, key=place)
