"""The name of a snapshot; apart from the memory that holds it, so that choosing needs no memory."""

from collections.abc import Iterable
from typing import NamedTuple


class Key(NamedTuple):
    """Which snapshot: copies with different keys never belong together.

    `step` counts completed steps; `attempt` is the one that wrote it.
    """

    attempt: int
    step: int


def progress(key: Key) -> tuple[int, int]:
    """What makes one snapshot better than another: the further step, then the newer attempt."""
    return key.step, key.attempt


def newest_first(keys: Iterable[Key]) -> list[Key]:
    """The furthest step first; of the same step the newest attempt."""
    return sorted(keys, key=progress, reverse=True)
