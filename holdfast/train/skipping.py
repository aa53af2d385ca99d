"""Leaving out batches that have led to numbers which are no numbers, the same ones each time.

A batch is known by its number: how many the loader had given before it, those left out included.
The controller says which numbers are left out from now on (`recovery.skip_batches`); each snapshot
says how many its training has left out. So whatever is restored, the place in the data is known,
and a batch is left out whenever training comes to it, and no other is.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.errors import Error
from holdfast.train.loop import LoopPosition

logger = logging.getLogger(__name__)

ALLOWED = "HOLDFAST_SKIP_BATCHES"
SKIPS = "HOLDFAST_SKIPS"
REPLAYED = "HOLDFAST_REPLAY_SKIPS"  # likewise, in a copy of the job, whose controller knows of none


class SkippedBatches:
    """Of one attempt. `loop` says how many have been left out before."""

    def __init__(self, loop: LoopPosition, environ: Mapping[str, str] = os.environ) -> None:
        told = environ.get(SKIPS) or environ.get(REPLAYED, "[]")
        self._spans = msgspec.json.decode(told, type=list[tuple[int, int]])
        self._loop = loop

    def take(self, batches: Iterator[Any], completed: int) -> Any:
        """The batch of the step after this many."""
        while end := self._end(completed + self._loop.skipped):
            first = completed + self._loop.skipped
            for _ in range(first, end):
                next(batches)
            self._loop.skipped += end - first
            logger.warning("batches %d to %d are skipped (counted from 0)", first, end - 1)
        return next(batches)

    def _end(self, number: int) -> int:
        """The first number after the span that this one is in; 0 if it is in none."""
        return next((end for first, end in self._spans if first <= number < end), 0)


def require_loader(loader: object, environ: Mapping[str, str] = os.environ) -> None:
    """Raises `Error` (loader-missing) where batches may have to be left out and none are known."""
    if loader is None and environ.get(ALLOWED, "0") != "0":
        raise Error(
            "loader-missing",
            "recovery.skip_batches is set, and run.track() has no loader to skip batches of",
            why="the script reads its batches itself, so Holdfast cannot skip any",
            help="pass the loader, an object with state_dict(), to run.track(loader=...), or "
            "remove recovery.skip_batches",
        )
