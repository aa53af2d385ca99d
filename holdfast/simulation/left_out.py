"""Batches that always lead to bad numbers, which batch each step has, and who watches what is left
out because of that.

Some worlds have a few such batches, and jobs that may leave some out (`recovery.skip_batches`). The
loader of an attempt stands where that of the snapshot stood from which it goes on, and passes over
what its order names. The referee knows which batches were to blame: no others end what is left
out, and never more are than may be.
"""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.actions import Entry, StartAttempt
from holdfast.checkpoint.key import Key
from holdfast.events import NumbersBroke

Spans = Sequence[tuple[int, int]]  # numbers of batches: the first, and the first after them


class _Begun(NamedTuple):
    """Where the loader of an attempt stood."""

    step: int
    given: int  # batches, those left out included
    spans: Spans


_ANEW = _Begun(0, 0, ())


class LeftOut:
    """The loader of every attempt."""

    def __init__(self, poison: Sequence[int]) -> None:
        """Batches of these numbers are bad."""
        self._poison = poison
        self._begun: dict[int, _Begun] = {}

    def begin(self, attempt: int, key: Key | None, spans: Spans) -> None:
        """It goes on from this snapshot, and leaves these out."""
        given = self.given(key.attempt, key.step) if key is not None else 0
        self._begun[attempt] = _Begun(key.step if key is not None else 0, given, spans)

    def given(self, attempt: int, step: int) -> int:
        """Batches that the loader has given, or left out, when so many steps are done."""
        begun = self._begun.get(attempt, _ANEW)
        if step <= begun.step:
            return begun.given - (begun.step - step)
        last = begun.given + step - begun.step - 1
        for first, end in sorted(begun.spans):
            first = max(first, begun.given)
            if first < end and first <= last:
                last += end - first
        return last + 1

    def skipped(self, attempt: int) -> int:
        """How many had been left out where this attempt began."""
        begun = self._begun.get(attempt, _ANEW)
        return begun.given - begun.step

    def bad_steps(self, attempt: int) -> list[int]:
        """The steps in which this attempt takes a bad batch."""
        begun = self._begun.get(attempt, _ANEW)
        met = [
            number
            for number in self._poison
            if number >= begun.given and not any(a <= number < b for a, b in begun.spans)
        ]
        return [
            begun.step + number + 1 - begun.given - self._passed(begun, number) for number in met
        ]

    @staticmethod
    def _passed(begun: _Begun, number: int) -> int:
        """Batches that are left out on the way to this one."""
        return sum(
            end - max(first, begun.given)
            for first, end in begun.spans
            if begun.given < end <= number
        )


class FairSkips:
    """What is left out was to blame, and is not more than may be."""

    def __init__(self, loaders: LeftOut, limit: int) -> None:
        self._loaders, self._limit = loaders, limit
        self._blamed: set[int] = set()  # the first batch after one of a bad step
        self._told: set[int] = set()  # attempts whose numbers were bad
        self._before: set[int] = set()  # ends of what the previous attempt left out
        self._attempt, self._count = 0, 0

    def journaled(self, entry: Entry) -> str:
        """What was bad, and what the next attempt leaves out."""
        event = entry.event
        if isinstance(event, NumbersBroke):
            self._told.add(event.attempt)
            self._blamed.add(self._loaders.given(event.attempt, event.broke.step))
        for action in entry.actions:
            if isinstance(action, StartAttempt) and action.attempt > self._attempt:
                before, self._attempt = self._attempt, action.attempt
                if how := self._started(before, action):
                    return how
        return ""

    def _started(self, before: int, order: StartAttempt) -> str:
        ends, self._count = {end for _, end in order.skips}, sum(b - a for a, b in order.skips)
        new, self._before = ends - self._before, ends
        what = f"attempt {order.attempt} leaves out {[*order.skips]}"
        if self._count > self._limit:
            return f"{what}, and {self._limit} batches may be"
        wrong = sorted(new - self._blamed) if before in self._told else []
        return f"{what}, and bad were those before {sorted(self._blamed)}" if wrong else ""

    @property
    def exhausted(self) -> bool:
        """Whether no more may be left out."""
        return self._count >= self._limit
