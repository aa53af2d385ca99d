"""Exits of workers that decide nothing at once are told together: pure, like the bridge.

This stands between the queue of facts and the controller. What comes out is what came in, in the
same order, but exits next to each other for which `may_wait` holds, which become one event. They
wait for any other fact, for an exit that does decide something, or for their time to be up: a
second at first, then as long as exits of this attempt have been coming. So there are as many lines
as other facts and doublings of a second, and not as ranks.

An agent forgets its facts up to the one that was acknowledged. So no receipt of a node passes while
one of its exits waits here; a controller that dies meanwhile will hear all of them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from holdfast.controller import State
from holdfast.controller.workers import counts, may_wait
from holdfast.diagnosis import Kinds
from holdfast.events import AnyEvent, ExitGroup, Progress, WorkerExited, WorkersExited, in_rows

HOLD_S = 1.0  # that exits wait at first, and at least
MAX_KINDS = 64  # in one event; those beyond are told apart by their cause only

R = TypeVar("R", bound=tuple[str, int])  # a receipt: a node, and the number of its fact


@dataclass(slots=True)
class _Crowd:
    """Exits of one kind; `died_at` of the earliest."""

    died_at: float
    first: WorkerExited
    ranks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Furthest:
    """The progress of all that wait, by times instead of ages."""

    step: int | None = None
    step_at: float = 0.0
    data_wait_s: float = 0.0
    snapshot_s: float = 0.0
    paused_s: float = 0.0
    died_at: float = 0.0  # of the newest exit

    def add(self, exited: WorkerExited, now: float) -> None:
        """One more has died."""
        progress = exited.progress
        if progress.step is not None:
            self.step = max(self.step or 0, progress.step)
            self.step_at = max(self.step_at, now - progress.step_ago_s)
        self.data_wait_s = max(self.data_wait_s, progress.data_wait_s)
        self.snapshot_s = max(self.snapshot_s, progress.snapshot_s)
        self.paused_s = max(self.paused_s, progress.paused_s)
        self.died_at = max(self.died_at, now - exited.ago_s)

    def progress(self, now: float) -> Progress:
        """The same with ages."""
        return Progress(
            step=self.step,
            step_ago_s=_age(self.step_at, now) if self.step is not None else 0.0,
            data_wait_s=self.data_wait_s,
            snapshot_s=self.snapshot_s,
            paused_s=self.paused_s,
        )


class Exits(Generic[R]):
    """What waits to be told. `state` is the controller's, as of the event before; it is read only.

    Times are those at which the controller hears what is told.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._kinds = Kinds()
        self._began = (0, 0.0)  # newest attempt of which an exit had to wait, and since when
        self._due: float | None = None
        self._settled: list[R] = []
        self._kept: dict[str, R] = {}  # newest receipt of a node, one of whose exits waits
        self._clear()

    def _clear(self) -> None:
        self._crowds: dict[str, _Crowd] = {}
        self._furthest = _Furthest()
        self._finished: set[int] = set()  # ranks that wait and that the state does not know
        self._nodes: set[str] = set()
        self._due = None

    @property
    def due(self) -> float | None:
        """When what waits has to be told, or None: `hear` with no event then."""
        return self._due

    def hear(self, event: AnyEvent | None, receipt: R | None, now: float) -> list[AnyEvent]:
        """What the controller is to hear now; the receipt is of this fact or one before it."""
        told = self._sort(event, now)
        if self._due is not None and now >= self._due:
            told += self._flush(now)
        if receipt is not None and receipt[0] in self._nodes:
            self._kept[receipt[0]] = receipt
        elif receipt is not None:
            self._settled.append(receipt)
        return told

    def settled(self) -> Sequence[R]:
        """Receipts of facts that have been told, once each, for when that is durable."""
        settled, self._settled = self._settled, []
        return settled

    def _sort(self, event: AnyEvent | None, now: float) -> list[AnyEvent]:
        match event:
            case None:
                return []
            case WorkerExited() if not counts(self._state, event):
                return []
            case WorkerExited() if may_wait(self._state, event, len(self._finished)):
                self._hold(event, now)
                return []
            case _:
                return [*self._flush(now), event]

    def _hold(self, exited: WorkerExited, now: float) -> None:
        kind, died_at = self._kinds.of(exited), now - exited.ago_s
        if kind not in self._crowds and len(self._crowds) >= MAX_KINDS:
            kind = kind.partition(" ")[0]
        crowd = self._crowds.setdefault(kind, _Crowd(died_at, exited))
        crowd.ranks.append(exited.rank)
        if (died_at, exited.rank) < (crowd.died_at, crowd.first.rank):
            crowd.died_at, crowd.first = died_at, exited
        self._furthest.add(exited, now)
        self._nodes.add(exited.node)
        if exited.exit_code == 0 and exited.rank not in self._state.finished:
            self._finished.add(exited.rank)
        if exited.attempt != self._began[0]:
            self._began = exited.attempt, now
        if self._due is None:
            self._due = now + max(HOLD_S, now - self._began[1])

    def _flush(self, now: float) -> list[AnyEvent]:
        """Tell what waits, and let the receipts of its senders go."""
        if not self._crowds:
            return []
        groups = tuple(_group(kind, crowd, now) for kind, crowd in self._crowds.items())
        furthest, progress = self._furthest, self._furthest.progress(now)
        self._settled += self._kept.values()
        self._kept.clear()
        self._clear()
        if len(groups) == 1 and not groups[0].others:
            return [groups[0].first]
        told = WorkersExited(
            attempt=self._began[0],
            groups=groups,
            last_ago_s=_age(furthest.died_at, now),
            progress=progress,
        )
        return [told]


def _group(kind: str, crowd: _Crowd, now: float) -> ExitGroup:
    first, age_s = crowd.first, _age(crowd.died_at, now)
    waited_s, progress = age_s - first.ago_s, first.progress
    if progress.step is not None:
        step_ago_s = round(progress.step_ago_s + waited_s, 6)
        progress = msgspec.structs.replace(progress, step_ago_s=step_ago_s)
    return ExitGroup(
        kind=kind,
        first=msgspec.structs.replace(first, ago_s=age_s, progress=progress),
        others=in_rows(rank for rank in crowd.ranks if rank != first.rank),
    )


def _age(at: float, now: float) -> float:
    """In microseconds: more digits are noise of seconds since the epoch."""
    return round(now - at, 6)
