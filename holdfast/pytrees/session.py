"""`join()` and what it returns: the part of a worker without torch in an attempt."""

import os
import time
from collections.abc import Iterator
from typing import Any

from holdfast import meeting
from holdfast.checkpoint.arena_ahead import arena_of
from holdfast.checkpoint.settings import settings_in
from holdfast.checkpoint.storage_page import StoragePage, WorkerInfo
from holdfast.detection.numerics import FirstBad, NumberWatch
from holdfast.errors import Error
from holdfast.events import Milestone, Spike
from holdfast.page import Page, StepRecord, WorkerPhase
from holdfast.pytrees import cells
from holdfast.pytrees.channel import Channel
from holdfast.pytrees.leaves import Rebuild, Tree, like, pieces_of, take_apart
from holdfast.pytrees.restore import RestoredTrees, find
from holdfast.pytrees.snapshots import Rhythm, TreeSnapshots
from holdfast.rank import await_rank


class TreeRun:
    """This worker's part in an attempt. Made by `join()`."""

    def __init__(self, page: Page | None) -> None:
        self.rank = int(os.environ.get("RANK", 0))
        """Number of this worker among all, from 0."""
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        """Number of this worker on its node, from 0."""
        self.world_size = int(os.environ.get("WORLD_SIZE", 1))
        """Number of workers."""
        self.attempt = int(os.environ.get("HOLDFAST_ATTEMPT", 0))
        """Number of this attempt, from 1; 0 outside Holdfast."""
        self._page = page
        self._watch = NumberWatch()
        self._logged: dict[str, float] = {}
        self._tokens = 0
        self._tracked = False

    def track(self, **trees: Tree) -> "TreeState":
        """Keep these trees through faults; returns them, restored where there is something to
        restore, with the loop. Raises `Error` (not-tracked, checkpoint-unusable, loader-missing
        where batches may have to be left out, ...)."""
        if self._tracked:
            raise Error(
                "run-unavailable",
                "run.track() was called twice",
                why="a process has one run",
                help="pass all trees in one call",
            )
        if os.environ.get("HOLDFAST_SKIP_BATCHES", "0") != "0":
            raise Error(
                "loader-missing",
                "recovery.skip_batches is set, and run.track() of holdfast.pytrees has no loader",
                why="the script reads its batches itself, so Holdfast cannot skip any",
                help="remove recovery.skip_batches, or use holdfast.train with PyTorch",
            )
        self._tracked = True
        return TreeState(self, self._page, trees)

    def log(self, *, loss: Any = None, tokens: int = 0, **metrics: Any) -> None:
        """What the step under way has to say; numbers, or arrays of one."""
        self._tokens += tokens
        given = metrics if loss is None else {"loss": loss, **metrics}
        self._logged |= {name: float(value) for name, value in given.items()}

    def step_done(self, step: int, step_s: float, redo_until: int) -> bool:
        """Tell the agent; whether the numbers of the newest step are finite."""
        logged, self._logged = self._logged, {}
        tokens, self._tokens = self._tokens, 0
        if self._page is None:
            return True
        loss, norm = logged.pop("loss", None), logged.pop("grad_norm", None)
        metrics = {name: value for name, value in logged.items() if self._page.column(name)}
        record = StepRecord(step, time.monotonic(), loss, norm, tokens, metrics)
        self._page.step_done(step, step_s, record)
        match self._watch.step(step, record.at, loss, norm):
            case FirstBad(first, at, what, value):
                self._page.broke(first, at, what, value)
            case Spike() as spike:
                self._page.spiked(spike)
            case None:
                pass
        self._page.reach(Milestone.FIRST_STEP)
        if step > redo_until:
            self._page.reach(Milestone.CAUGHT_UP)
        return not self._watch.unsound or os.environ.get("HOLDFAST_ON_NAN") == "ignore"


class TreeState:
    """The tracked trees, each by its name as an attribute, which the script sets anew."""

    def __init__(self, run: TreeRun, page: Page | None, trees: dict[str, Tree]) -> None:
        own = self.__dict__
        own["_run"], own["_page"], own["_names"] = run, page, tuple(trees)
        own["completed"], own["_stall_s"] = 0, 0.0
        own.update(trees)
        own["_redo_until"] = int(os.environ.get("HOLDFAST_REDO_UNTIL", 0))
        own["_snapshots"] = self._restored()

    def __getattr__(self, name: str) -> Tree:
        raise AttributeError(f"{name!r} is not tracked: pass it to run.track()")

    def __setattr__(self, name: str, value: Tree) -> None:
        if name not in self._names:
            raise AttributeError(f"{name!r} is not tracked: pass it to run.track()")
        self.__dict__[name] = value

    def steps(self, total: int) -> Iterator[int]:
        """Yield each step, counting from 0, until `total` are done; goes on after the restored
        one. The trees as they are at the end of a step are those of its snapshot."""
        self._phase(WorkerPhase.STEP)
        while self.completed < total:
            began = time.monotonic()
            try:
                yield self.completed
            except GeneratorExit:  # `break`, or an exception: what follows is no step
                self._phase(WorkerPhase.FINISHED)
                raise
            step_s = time.monotonic() - began
            self.__dict__["completed"] += 1
            sound = self._run.step_done(self.completed, step_s, self._redo_until)
            if self._snapshots is not None:
                self._snapshots.rhythm.stepped(step_s)
                self._snapshot(self._snapshots, total, sound=sound)
        self._phase(WorkerPhase.FINISHED)
        if self._page is not None:
            self._page.reach(Milestone.FINISHED)

    def _snapshot(self, snapshots: TreeSnapshots, total: int, *, sound: bool) -> None:
        step = self.completed
        taken_s = snapshots.after_step(step, total, self._leaves()[0], sound=sound)
        self.__dict__["_stall_s"] += taken_s
        if self._page is not None and snapshots.step == step:
            self._page.snapshot(step, snapshots.rhythm.every, taken_s)
            self._page.stalls(0.0, self._stall_s)

    def _leaves(self) -> tuple[dict[str, Any], dict[str, Rebuild]]:
        leaves: dict[str, Any] = {}
        rebuild = {}
        for name in self._names:
            found, rebuild[name] = take_apart(self.__dict__[name], name)
            leaves |= found
        return leaves, rebuild

    # ── beginning ──

    def _restored(self) -> TreeSnapshots | None:
        """Load what there is; None without an agent."""
        if "HOLDFAST_ARENA_FD" not in os.environ or self._page is None:
            return None
        self._phase(WorkerPhase.RESTORE)
        run, arena = self._run, arena_of(int(os.environ["HOLDFAST_ARENA_FD"]))
        leaves, rebuild = self._leaves()
        channel = _channel()
        fingerprint = cells.fingerprint_of(leaves)
        found = find(arena, channel, run.rank, fingerprint, leaves)
        if found is not None:
            self._load(found, leaves, rebuild)
        self._page.restored(self.completed)
        self._page.reach(Milestone.RESTORED)
        storage = os.environ.get("HOLDFAST_STORAGE_PAGE_FD")
        info = WorkerInfo(
            attempt=run.attempt,
            rank=run.rank,
            world_size=run.world_size,
            local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", run.world_size)),
            parent=found.parent if found is not None else None,
        )
        every = os.environ.get("HOLDFAST_SNAPSHOT_EVERY", "auto")
        share = float(os.environ.get("HOLDFAST_SNAPSHOT_MAX_OVERHEAD", "0.01"))
        page = None if storage is None else StoragePage(int(storage))
        rhythm = Rhythm(every, share)
        snapshots = TreeSnapshots(arena, page, channel, info, settings_in(), rhythm)
        snapshots.fingerprint = fingerprint
        return snapshots

    def _load(
        self, found: RestoredTrees, leaves: dict[str, Any], rebuild: dict[str, Rebuild]
    ) -> None:
        values = []
        for name, leaf in leaves.items():
            value: Any = found.values.get(name)
            pieces = pieces_of(leaf)
            if pieces is not None and not _fit(pieces, value):
                raise _unusable(found, name)
            values.append(like(leaf, value) if pieces is not None else value)
        given = dict(zip(leaves, values, strict=True))
        if missing := set(leaves) - set(found.values):
            raise _unusable(found, min(missing))
        for name, made in rebuild.items():
            own, _ = take_apart(self.__dict__[name], name)
            self.__dict__[name] = made([given[path] for path in own])
        self.__dict__["completed"] = found.key.step

    def _phase(self, phase: WorkerPhase) -> None:
        if self._page is not None:
            self._page.phase(phase)


def join() -> TreeRun:
    """Wait for this worker's rank; the code above it is run ahead on warm workers and spares.

    With JAX call `jax.distributed.initialize()` below it, without arguments.
    """
    await_rank()
    fd = os.environ.get("HOLDFAST_PAGE_FD")
    page = None if fd is None else Page(int(fd))
    if page is not None:
        for milestone in (Milestone.STARTED, Milestone.ARRIVED, Milestone.JOINED):
            page.reach(milestone)
        page.phase(WorkerPhase.SETUP)
    return TreeRun(page)


def _channel() -> Channel:
    """The connections of the meeting before the script; else those of another one, now."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size > 1 and not meeting.kept:
        if meeting.KEY not in os.environ:
            raise Error(
                "join-invalid",
                "run.track() of holdfast.pytrees cannot meet the other workers",
                why="the job has `framework: pytorch` (the default of a script), whose workers "
                "meet by torch.distributed",
                help="set framework: jax, xgboost, mpi, or command for anything else",
            )
        met = meeting.meet(meeting.Seat.of(os.environ), "")
        meeting.kept.extend(met.connections)
    return Channel(rank, size, tuple(meeting.kept))


def _fit(pieces: Any, value: Any) -> bool:
    """Whether what was saved has every piece that is needed here, of the same type."""
    if not isinstance(value, dict):
        return False
    same = (value.get(piece.at) for piece in pieces)
    shapes = [(piece.array.shape, piece.array.dtype) for piece in pieces]
    return [(s.shape, s.dtype) if s is not None else None for s in same] == shapes


def _unusable(found: RestoredTrees, name: str) -> Error:
    return Error(
        "checkpoint-unusable",
        f"step {found.key.step} of attempt {found.key.attempt} has a different state",
        why=f"{name} is not in it, or has another shape or type",
        help="track what was saved, or start from step 0: holdfast run job.yaml --replace --fresh",
    )
