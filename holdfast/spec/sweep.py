"""A sweep: many independent trials of one script, and the values that they try.

A trial finds its number in JOB_COMPLETION_INDEX and gets the options that follow from `over` and
`ranges`. On Kubernetes it is an index of a Job, on this machine a job of its own.
"""

import math
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from holdfast.spec.progress import PATTERN_MAX, group_of
from holdfast.spec.section import Numeric, Section, Whole

TRIALS_MAX = 100_000
NAMES_MAX = 32
Option = Annotated[str, Field(pattern=r"^[A-Za-z][-A-Za-z0-9_.]{0,99}$")]
Value = Annotated[str, Field(max_length=1000, coerce_numbers_to_str=True)]
Values = Annotated[tuple[Value, ...], Field(min_length=1, max_length=1000)]
Bound = Annotated[float, Field(allow_inf_nan=False), Numeric]


def _finds_one(pattern: str) -> str:
    group_of(pattern, "metric")
    return pattern


class Range(Section):
    """Numbers to draw from."""

    low: Bound
    """Least."""
    high: Bound
    """Largest."""
    log: bool = False
    """Draw the logarithm evenly instead of the number."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.low >= self.high:
            raise ValueError("low must be below high")
        if self.log and self.low <= 0:
            raise ValueError("log requires low above 0")
        return self


class Sweep(Section):
    """Many independent trials of one script; each finds its number in JOB_COMPLETION_INDEX."""

    trials: Annotated[Whole, Field(ge=1, le=TRIALS_MAX)] | None = None
    """Total number of trials. Default, with `over` only: every combination."""
    parallel: Whole = Field(default=1, ge=1, le=10_000)
    """Number of trials that run in parallel; on this machine at most as many as it has GPUs for, or
    cores where there are none."""
    retries: Whole = Field(default=2, ge=0, le=1000)
    """Retries of one trial, on Kubernetes in plain mode. Elsewhere `recovery` says how often
    workers are restarted."""
    max_failed: Whole | None = Field(default=None, ge=0)
    """Number of failed trials that are tolerated; one more ends the sweep. Default: no limit."""
    over: Annotated[dict[Option, Values], Field(max_length=NAMES_MAX)] = {}
    """Values to try of each option of the script: `lr: [0.1, 0.01]` gives a trial `--lr 0.1`. All
    combinations are tried, unless `trials` is another number: then each value is drawn."""
    ranges: Annotated[dict[Option, Range], Field(max_length=NAMES_MAX)] = {}
    """Options whose values are drawn from a range."""
    seed: Whole = Field(default=0, ge=0, le=2**53 - 1)  # what API servers hold
    """Seed of the drawn values."""
    metric: Annotated[str, Field(min_length=1, max_length=100)] = "loss"
    """What `holdfast sweep` compares trials by: a name that the script gives `run.log()`."""
    metric_pattern: (
        Annotated[str, Field(min_length=1, max_length=PATTERN_MAX), AfterValidator(_finds_one)]
        | None
    ) = None
    """For a script without `holdfast.train`: regular expression that finds the metric in what rank
    0 prints; its group `metric`, or its only group. The last one counts."""
    goal: Literal["min", "max"] = "min"
    """Whether the metric is minimized or maximized."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        twice = self.over.keys() & self.ranges.keys()
        if twice:
            raise ValueError(f"{min(twice)} is in both over and ranges")
        if self.trials is None and (self.ranges or not self.over):
            raise ValueError("trials is required, unless there is `over` without `ranges`")
        if self.size > TRIALS_MAX:
            raise ValueError(f"over has {self.size} combinations; at most {TRIALS_MAX}")
        if self.parallel > self.size:
            raise ValueError("parallel is larger than trials")
        return self

    @property
    def combinations(self) -> int:
        """Of the values in `over`."""
        return math.prod(map(len, self.over.values()))

    @property
    def size(self) -> int:
        """Number of trials."""
        return self.combinations if self.trials is None else self.trials
