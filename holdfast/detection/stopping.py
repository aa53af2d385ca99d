"""Answers of single nodes reduced to one fact: the attempt is stopped.

A member has answered when it says that nothing of the attempt is left on it, or when it is lost and
fenced. A member that is late is named, so that it can be given up; without that one stuck node
would hold up all the others.
"""

import math
from collections.abc import Iterable

import msgspec

from holdfast.events import AttemptStopped, Progress, Store
from holdfast.messages import WorkersStopped

MARGIN_S = 10.0  # beyond the grace time, until a member that does not answer is late


class StopTally:
    """Who has still to answer the newest order to stop. Once nobody has, that is told once."""

    def __init__(self) -> None:
        self._attempt = 0
        self._first: str | None = None  # the node with rank 0, whose store is the next one
        self._pending: set[str] = set()
        self._deadline = math.inf
        self._store: Store | None = None
        self._unready: set[str] = set()  # members that answered and cannot start workers yet
        self._progress, self._step_end = Progress(), 0.0
        self._parked, self._unkept, self._refusal = 0, 0, ""

    @property
    def pending(self) -> frozenset[str]:
        """Members that have not answered."""
        return frozenset(self._pending)

    def begin(
        self, attempt: int, members: Iterable[str], first: str | None, deadline: float, now: float
    ) -> AttemptStopped | None:
        """An order went to `members`. Repeated for an attempt it can only shorten the wait."""
        if attempt == self._attempt:
            self._deadline = min(self._deadline, deadline)
        else:
            self._attempt, self._first, self._deadline = attempt, first, deadline
            self._pending, self._store, self._progress = set(members), None, Progress()
            self._unready, self._parked, self._unkept, self._refusal = set(), 0, 0, ""
        return self._told(now)

    def stopped(self, answer: WorkersStopped, now: float) -> AttemptStopped | None:
        """A member has stopped. Answers about another attempt or given twice are ignored."""
        if answer.attempt != self._attempt or answer.node not in self._pending:
            return None
        self._pending.discard(answer.node)
        if answer.store is None:
            self._unready.add(answer.node)
        if answer.node == self._first:
            self._store = answer.store
        self._parked += answer.parked
        self._unkept += answer.unkept
        self._refusal = self._refusal or answer.refusal
        if (answer.progress.step or 0) >= (self._progress.step or 0):
            self._progress, self._step_end = answer.progress, now - answer.progress.step_ago_s
        return self._told(now)

    def ready(self, node: str) -> None:
        """A member can start workers (again)."""
        self._unready.discard(node)

    def lost(self, node: str, now: float) -> AttemptStopped | None:
        """A member is gone and cannot answer any more."""
        if node not in self._pending:
            return None
        self._pending.discard(node)
        self._unready.discard(node)
        return self._told(now)

    def forgive(self, late_s: float) -> None:
        """Nobody listened for `late_s`: answers may still be there to be read."""
        self._deadline += late_s

    def late(self, now: float) -> list[str]:
        """Members that should have answered by now, in order of their ids. Named once."""
        if now < self._deadline:
            return []
        self._deadline = math.inf
        return sorted(self._pending)

    def _told(self, now: float) -> AttemptStopped | None:
        """The last answer may come long after the one of who had come furthest."""
        if self._pending:
            return None
        progress = self._progress
        if progress.step is not None:
            ago_s = max(0.0, now - self._step_end)
            progress = msgspec.structs.replace(progress, step_ago_s=ago_s)
        return AttemptStopped(
            attempt=self._attempt,
            store=self._store,
            unready=tuple(sorted(self._unready)),
            progress=progress,
            parked=self._parked,
            unkept=self._unkept,
            refusal=self._refusal,
        )
