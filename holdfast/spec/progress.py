"""Where a script tells its step and its loss: a file, or its output by regular expressions.

What a pattern finds is its group of that name (`(?P<step>...)`), or the only group that it has.
"""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from holdfast.spec.section import Section

PATTERN_MAX = 500
RANK = "{rank}"


def group_of(pattern: str, name: str) -> str | int:
    """The group that holds the number. Raises `ValueError` unless it is clear which."""
    try:
        found = re.compile(pattern.encode())
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"is not a valid regular expression: {error}") from None
    if name in found.groupindex:
        return name
    if found.groups == 1:
        return 1
    given = f"{found.groups} groups" if found.groups else "no group"
    raise ValueError(f"has {given}; mark the number, as in {name} (?P<{name}>\\S+)")


def _with_group(name: str) -> AfterValidator:
    def check(pattern: str) -> str:
        group_of(pattern, name)
        return pattern

    return AfterValidator(check)


_Text = Annotated[str, Field(min_length=1, max_length=PATTERN_MAX)]


class ProgressPatterns(Section):
    """Where the progress of a script that does not use `holdfast.train` is read. A line of output
    counts up to 1,000 bytes; a carriage return ends one too."""

    step_pattern: Annotated[_Text, _with_group("step")] | None = None
    """Regular expression (Python) that finds the step in a line of output: its group `step`, or its
    only group."""
    loss_pattern: Annotated[_Text, _with_group("loss")] | None = None
    """The same for the loss, by the name `loss`. One that is NaN or infinite is handled as
    recovery.on_nan says, so let the pattern match `nan` and `inf`, too: `loss[=:] ?(?P<loss>\\S+)`.
    """

    file: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    """File that the program writes, in place of patterns: a number, which is the step, or a JSON
    object with `step` and `loss`; of several lines the last whole one counts. Relative to
    `workdir`. With `{rank}` in it each rank has its own; otherwise it counts for the first worker
    of each node."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        patterns = self.step_pattern is not None or self.loss_pattern is not None
        if not patterns and self.file is None:
            raise ValueError("set at least one of step_pattern, loss_pattern and file")
        if patterns and self.file is not None:
            raise ValueError("set either patterns or file")
        return self

    def file_of(self, rank: int, local_rank: int) -> str | None:
        """The file of this rank; None if it has none."""
        if self.file is None or (local_rank and RANK not in self.file):
            return None
        return self.file.replace(RANK, str(rank))
