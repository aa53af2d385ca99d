"""Where the output of a script tells its step and its loss: regular expressions, checked here.

What a pattern finds is its group of that name (`(?P<step>...)`), or the only group that it has.
"""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from holdfast.spec.section import Section

PATTERN_MAX = 500


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
    """Where the output of a script that does not use `holdfast.train` tells how far it is. A line
    counts up to 1,000 bytes; a carriage return ends one too."""

    step_pattern: Annotated[_Text, _with_group("step")] | None = None
    """Regular expression (Python) that finds the step in a line of output: its group `step`, or its
    only group."""
    loss_pattern: Annotated[_Text, _with_group("loss")] | None = None
    """The same for the loss, by the name `loss`. One that is NaN or infinite is handled as
    recovery.on_nan says, so let the pattern match `nan` and `inf`, too: `loss[=:] ?(?P<loss>\\S+)`.
    """

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.step_pattern is None and self.loss_pattern is None:
            raise ValueError("set at least one of step_pattern and loss_pattern")
        return self
