"""Ranks that make all others wait, and what explains it."""

from enum import StrEnum

import msgspec


class SlowBy(StrEnum):
    """What explains that a rank is slow; the first that does. `STAGE`: not a rank, but a stage of
    the pipeline is, told by the first of its ranks."""

    STAGE = "stage"
    INPUT = "input"
    PROCESSOR = "processor"
    SAVES = "saves"
    GARBAGE = "garbage"
    WORK = "work"
    ITSELF = "itself"


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that all others wait for, step after step."""

    rank: int
    share: float  # of their time that the others lose with it
    cause: SlowBy
    text: str
