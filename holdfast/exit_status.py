"""Exit statuses, and what a kind of error consists of."""

from enum import IntEnum
from typing import NamedTuple


class ExitStatus(IntEnum):
    """Exit statuses of every `holdfast` command."""

    OK = 0
    JOB_FAILED = 1
    USAGE = 2
    PLATFORM = 3
    NOT_FOUND = 4
    GAVE_UP = 5
    INTERRUPTED = 130


class Slug(NamedTuple):
    """One kind of error: the exit status it causes and what `holdfast explain` says about it."""

    status: ExitStatus
    explanation: str
