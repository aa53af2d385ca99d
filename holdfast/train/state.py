"""The training loop's state: what is tracked, restored, snapshotted, and counted in steps.

`State.steps()` is the loop. It restores first, then yields each step with its batch, and after the
script's part of a step reports it and takes a snapshot when one is due. A step is one turn of the
loop. It counts as complete when the script asks for the next one, so whatever the script does in
the loop body belongs to it. Gradients may be carried from one turn to the next (`gradients`).

A `break` cannot be told from an exception by the generator that is left, and what the script has
done of the step under way is not known: so nothing is snapshotted then. `stop()` is the other way.

The report of a step comes before its snapshot: a worker that dies in between repeats the step and
reports it again, whereas the other order would lose what the step logged.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from holdfast import learned_imports, step_profile
from holdfast.checkpoint.tiers import SnapshotFlag
from holdfast.errors import Error
from holdfast.events import Milestone
from holdfast.page import WorkerPhase
from holdfast.train.early_end import EarlyEnd
from holdfast.train.elastic import Elastic
from holdfast.train.outer_steps import OuterSteps
from holdfast.train.parallel import spread
from holdfast.train.progress import ProgressReporter
from holdfast.train.skipping import SkippedBatches, require_loader
from holdfast.train.snapshots import Snapshotter
from holdfast.train.survival import Survival
from holdfast.train.surviving_group import AttemptBrokenError

logger = logging.getLogger(__name__)

HOLD_LOOK_S = 0.01  # between two looks at whether this process is kept for the next attempt


class State:
    """What `run.track()` returns: the loop."""

    def __init__(
        self,
        loader: Iterable[Any] | None,
        progress: ProgressReporter,
        snapshots: Snapshotter | None,
        ending: EarlyEnd,
        apart: Sequence[torch.nn.Module] = (),
    ) -> None:
        """`ending` is asked where there are no snapshots; `apart` are modules whose parameters
        still differ between ranks."""
        require_loader(loader)
        self._loader = loader
        self._progress = progress
        self._snapshots = snapshots
        self._ending = ending
        self._apart = apart
        self._batches: Iterator[Any] | None = None
        self._skipping: SkippedBatches | None = None
        self._restored = False
        self._ended = False
        self.completed = 0
        """Completed steps, including those before a restart; 0 before `steps()` has restored."""
        self.after_step: Callable[[int], None] = lambda _step: None
        """Called with the number of each complete step, once it has been reported."""
        self.elastic: Elastic | None = None
        """What is told once the state is restored, and what the metrics of each step say of it."""
        self.outer: OuterSteps | None = None
        """What brings replicas together that train by themselves."""
        self.survival: Survival | None = None
        """Of this process, where it is kept when an attempt is broken."""
        self.next_attempt: Callable[[], None] = lambda: None
        """Takes part in the next attempt, up to the beginning of the loop."""
        self._listen(snapshots)

    def _listen(self, snapshots: Snapshotter | None) -> None:
        if snapshots is not None:
            snapshots.whole = self._whole
            snapshots.loop.numbers_bad = self._progress.unsound

    def begin_again(self, snapshots: Snapshotter | None) -> None:
        """Another attempt begins in this process, with other snapshots."""
        self._snapshots, self._batches = snapshots, None
        self._restored = self._ended = False
        self.completed = 0
        self._listen(snapshots)

    def steps(self, total: int) -> Iterator[tuple[int, Any]]:
        """Yield `(step, batch)` until `total` steps are done, counting from 0.

        Starts at the step after the restored one. `batch` is None without a loader. A step is one
        iteration of the loop: with gradient accumulation, a batch and not a step of the optimizer.
        May be called again with a larger `total` to continue.

        Raises `Error` (not-tracked, loader-empty, snapshot-unreadable, snapshot-too-large,
        replicas-differ).
        """
        while True:
            try:
                yield from self._turns(total)
                self._finish()
                return
            except AttemptBrokenError:
                self._batches = None
                self.next_attempt()

    def _turns(self, total: int) -> Iterator[tuple[int, Any]]:
        if self._batches is None:
            self._begin()
        self._enter_step(total)
        self._progress.aims(total)
        while self.completed < total and not self._ended:
            self._enter_step(total)
            began = time.monotonic()
            batch = self._next_batch(began)
            self._progress.phase(WorkerPhase.STEP)
            if self.elastic is not None and (numbers := self.elastic.numbers()):
                self._progress.log(None, None, 0, numbers)
            try:
                yield self.completed, batch
            except GeneratorExit:
                self._leave()
                raise
            self._complete_step(began, total)
            step_profile.step_ended(self.completed)
            learned_imports.step_ended()

    def _enter_step(self, total: int) -> None:
        snapshots = self._snapshots
        if self.outer is not None and snapshots is not None:
            snapshots.loop.apart = not self.outer.due(self.completed + 1, total)
        if self.survival is not None:
            self.survival.enter_loop(able=snapshots is not None and snapshots.loop.held)

    def restore(self) -> int:
        """Restore what is tracked now instead of when the loop begins; returns `completed`.

        For a script that has to know where it stands before its loop. Random numbers are put back
        when the loop begins all the same, so what is drawn in between changes nothing of it.

        Raises what `steps()` does.
        """
        if not self._restored:
            if self.survival is not None:
                self.survival.again(self._restore_again)
            self._restore()
        return self.completed

    def _restore(self) -> None:
        self._restored = True
        self._progress.phase(WorkerPhase.RESTORE)
        self.completed = self._snapshots.restore() if self._snapshots else 0
        self._ended = self._snapshots is not None and self._snapshots.loop.ended
        if self.completed == 0 and self.survival is not None:
            self.survival.unrecorded(partial(_spread, self._apart))
        elif self.completed == 0:
            _spread(self._apart)
        if self.outer is not None:
            self.outer.begin()
        if self.elastic is not None:
            ranks = self._snapshots.loop.ranks_before if self._snapshots else None
            self.elastic.resumed(self.completed, ranks)

    def _restore_again(self) -> None:
        """In a process that is kept: what it has is of a step that was given up."""
        self._restore()
        if self.completed == 0:
            raise Error(
                "snapshot-unreadable",
                "there is no snapshot to resume from in this process",
                why="its state is that of a discarded step",
                help="no action is needed: new processes start as the first ones did",
            )

    def stop(self) -> None:
        """End the loop: the step under way is the last one, or one soon after it.

        Any rank may ask, and all end after the same step. A single process ends with the step
        under way. Several ranks end with the step at whose end they learn of it: under Holdfast
        when they meet next, about a second later at most; elsewhere the next step but one at most.
        The last step is snapshotted and saved as at the end of `total` steps, and after a restart
        the loop stays ended. Code after `stop()` in the loop body runs as ever.
        """
        self._ending.ask()
        if self._snapshots is not None:
            self._snapshots.loop.ask_end()

    def end(self) -> None:
        """The loop is over after a whole step, which all ranks know: it is kept like the last of
        `total`. For whoever draws `steps()` by hand, and draws no more."""
        self._finish()

    def _begin(self) -> None:
        self.restore()
        self._batches = iter(_endless(self._loader))
        if self._snapshots:
            self._snapshots.restore_random()
        loop = self._snapshots.loop if self._snapshots else None
        self._skipping = SkippedBatches(loop) if loop is not None else None
        self._progress.restored(self.completed, loop.skipped if loop is not None else 0)

    def _next_batch(self, began: float) -> Any:
        assert self._batches is not None
        self._progress.phase(WorkerPhase.DATA)
        skips, batches = self._skipping, self._batches
        batch = skips.take(batches, self.completed) if skips is not None else next(batches)
        self._progress.waited_for_data(time.monotonic() - began)
        return batch

    def _complete_step(self, began: float, total: int) -> None:
        if self.survival is not None:
            self.survival.require_whole()
        self.completed += 1
        if self.outer is not None and self.outer.due(self.completed, total):
            self._bring_together(self.outer)
        took = time.monotonic() - began
        self._progress.step_done(self.completed, took)
        self.after_step(self.completed)
        if self._snapshots is None:
            self._ended = self._ending.step_done()
            return
        if self._snapshots.under_way:  # it is whole next, so what its steps have logged is told now
            self._progress.publish(through=self.completed - 1)
        self._snapshots.stepped(took)
        self._snapshots.replicas.step_done(self.completed, last=self.completed == total)
        flags = self._snapshots.meet(self.completed, total)
        self._progress.compared(self._snapshots.replicas.differ)
        self._ended = self._snapshots.loop.ended
        if flags is not None:
            self._snapshot(self._snapshots, flags)

    def _bring_together(self, outer: OuterSteps) -> None:
        """An outer step. Raises `AttemptBrokenError` if it was given up."""
        if self._snapshots is not None:
            self._snapshots.capture.guard()
        outer.step()
        if self.survival is not None:
            self.survival.require_whole()

    def _snapshot(self, snapshots: Snapshotter, flags: SnapshotFlag) -> None:
        self._progress.phase(WorkerPhase.SNAPSHOT)
        if snapshots.waits(flags):
            self._progress.publish(through=self.completed)
        snapshots.take(self.completed, flags)
        self._progress.planned(snapshots.intervals())
        if flags & SnapshotFlag.URGENT and self.completed < snapshots.loop.total:
            self._hold(snapshots)

    def _hold(self, snapshots: Snapshotter) -> None:
        """Where the attempt ends with this snapshot, begin no step that would be lost: wait to be
        ended, until the time for that is up."""
        loop = snapshots.loop
        if not loop.hold_s:
            return
        until = time.monotonic() + loop.hold_s
        snapshots.finish()
        if snapshots.step < self.completed:  # it was given up, and the next one takes its place
            return
        while time.monotonic() < until:
            if self.survival is not None:
                self.survival.require_whole()
            time.sleep(HOLD_LOOK_S)
        loop.hold_s = 0.0

    def _whole(self, step: int, seconds: float) -> None:
        assert self._snapshots is not None
        self._progress.snapshot_taken(step, self._snapshots.cadence.every, seconds)

    def _finish(self) -> None:
        step_profile.give_up("the training loop ended before that")
        self._progress.publish(through=self.completed)
        if self._snapshots is not None:
            if self.outer is not None and self._snapshots.loop.apart:  # it was ended early
                self._bring_together(self.outer)
                self._snapshots.loop.apart = False
            flags = self._snapshots.end(self.completed)
            if flags is not None:
                self._snapshot(self._snapshots, flags)
            self._snapshots.finish()
            self._progress.compared(self._snapshots.replicas.differ)
            _require_equal_replicas(self._snapshots)
            self._snapshots.loop.close()
        self._ending.close()
        self._ended = False
        if self.survival is not None:
            self.survival.leave_loop()
        self._progress.phase(WorkerPhase.FINISHED)
        self._progress.reach(Milestone.FINISHED)

    def _leave(self) -> None:
        """The loop is left in the middle of a step, by `break` or an exception: what follows is no
        step, however long it takes."""
        if self.survival is not None:
            self.survival.leave_loop()
        self._progress.phase(WorkerPhase.FINISHED)
        name = self._snapshots.requests.name if self._snapshots is not None else None
        if name is not None:
            logger.warning(
                "the checkpoint %s is not saved: the loop was left during the step that should "
                "have ended with it (state.stop() ends the loop after the step)",
                name,
            )


def _spread(modules: Iterable[torch.nn.Module]) -> None:
    for module in modules:
        spread(module)


def _require_equal_replicas(snapshots: Snapshotter) -> None:
    """An end with replicas that differ is none."""
    differ = snapshots.replicas.differ
    if differ is not None:
        raise Error(
            "replicas-differ",
            f"parameters differ between ranks after step {differ.step}",
            why=f"data-parallel ranks last had the same after step {differ.agreed}",
            help="holdfast why   (which rank differs from which)",
        )


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
                "the loader yielded no batch",
                why="the dataset is smaller than one batch, or already exhausted",
                help="use a smaller batch size or more data",
            )
