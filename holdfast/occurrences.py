"""Errors of workers as they are compared with each other: where and when the same one came."""

from typing import Literal

import msgspec

Whose = Literal["code", "machine"]


class Recurrence(msgspec.Struct, frozen=True, kw_only=True):
    """Whose an error is, by where the same one came before."""

    whose: Whose  # code: or its data, or what all nodes share
    confidence: float
    text: str  # one sentence for a person, without a full stop

    @property
    def certain(self) -> bool:
        """Whether to treat it as an error of the script, whatever says so."""
        return self.whose == "code" and self.confidence >= CERTAIN


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """An error that ended an attempt."""

    cause: str  # as in the verdict
    signature: str  # exception type and place
    rank: int  # that failed first
    step: int  # that it had completed
    nodes: tuple[str, ...]  # names of those that had it in this attempt, that of the rank first
    version: int = 1  # of the code
    at: float = 0.0  # when the verdict was heard
    recurs: Recurrence | None = None


CERTAIN = 0.9
