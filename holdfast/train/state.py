"""The training loop's state: what is tracked, restored, snapshotted, and counted in steps.

`State.steps()` is the loop. It restores first, then yields each step with its batch, and after the
script's part of a step reports it and takes a snapshot when one is due. A step counts as complete
when the script asks for the next one, so whatever the script does in the loop body belongs to it;
gradients must not be carried from one step into the next, because they are not part of a snapshot.

The report of a step comes before its snapshot: a worker that dies in between repeats the step and
reports it again, whereas the other order would lose what the step logged.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from holdfast.checkpoint.board import Flag
from holdfast.errors import Error
from holdfast.events import Milestone
from holdfast.page import Phase
from holdfast.train.parallel import spread
from holdfast.train.progress import Progress
from holdfast.train.snapshots import Snapshots


class State:
    """What `run.track()` returns. `completed` steps are done, restored ones included."""

    def __init__(
        self,
        loader: Iterable[Any] | None,
        progress: Progress,
        snapshots: Snapshots | None,
        apart: Sequence[torch.nn.Module] = (),
    ) -> None:
        """`apart` are modules whose parameters still differ between ranks."""
        self._loader = loader
        self._progress = progress
        self._snapshots = snapshots
        self._apart = apart
        self._batches: Iterator[Any] | None = None
        self.completed = 0
        if snapshots is not None:
            snapshots.whole = self._whole

    def steps(self, total: int) -> Iterator[tuple[int, Any]]:
        """Yield `(step, batch)` until `total` steps are done, counting from 0.

        Starts at the step after the restored one. `batch` is None without a loader. May be called
        again with a larger `total` to go on.

        Raises `Error` (not-tracked, loader-empty, snapshot-unreadable, snapshot-too-large).
        """
        if self._batches is None:
            self._begin()
        while self.completed < total:
            began = time.monotonic()
            batch = self._next_batch(began)
            self._progress.phase(Phase.STEP)
            try:
                yield self.completed, batch
            except GeneratorExit:  # left by `break`: what follows is no step, however long it takes
                self._progress.phase(Phase.FINISHED)
                raise
            self._complete_step(began, total)
        self._finish()

    def _begin(self) -> None:
        self._progress.phase(Phase.RESTORE)
        self.completed = self._snapshots.restore() if self._snapshots else 0
        if self.completed == 0:
            for module in self._apart:
                spread(module)
        self._batches = iter(_endless(self._loader))
        if self._snapshots:
            self._snapshots.restore_random()
        self._progress.restored(self.completed)

    def _next_batch(self, began: float) -> Any:
        assert self._batches is not None
        self._progress.phase(Phase.DATA)
        batch = next(self._batches)
        self._progress.waited_for_data(time.monotonic() - began)
        return batch

    def _complete_step(self, began: float, total: int) -> None:
        self.completed += 1
        took = time.monotonic() - began
        self._progress.step_done(self.completed, took)
        if self._snapshots is None:
            return
        self._snapshots.stepped(took)
        flags = self._snapshots.meet(self.completed, total)
        if flags is not None:
            self._snapshot(self._snapshots, flags)

    def _snapshot(self, snapshots: Snapshots, flags: Flag) -> None:
        self._progress.phase(Phase.SNAPSHOT)
        self._progress.publish(wait=not snapshots.beside)
        snapshots.take(self.completed, flags)
        self._progress.planned(snapshots.intervals())

    def _whole(self, step: int, seconds: float) -> None:
        assert self._snapshots is not None
        self._progress.snapshot_taken(step, self._snapshots.cadence.every, seconds)

    def _finish(self) -> None:
        self._progress.publish(wait=True)
        if self._snapshots is not None:
            flags = self._snapshots.end(self.completed)
            if flags is not None:
                self._snapshot(self._snapshots, flags)
            self._snapshots.finish()
        self._progress.phase(Phase.FINISHED)
        self._progress.reach(Milestone.FINISHED)


def _endless(loader: Iterable[Any] | None) -> Iterator[Any]:
    """Batches without end: an iterable that ends is begun again."""
    if loader is None:
        while True:
            yield None
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise Error(
                "loader-empty",
                "the loader gave no batch",
                why="the dataset is smaller than one batch, or it was used up before",
                help="use a smaller batch size or more data",
            )
