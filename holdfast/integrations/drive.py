"""The loop of `holdfast.train` turned around: a trainer has the loop, and says when a step is done.

A process has one run, so one trainer in it is kept. Whoever asked for that (a line in the script,
or Holdfast itself with `integrate: auto`) decides what follows where it cannot be: an error before
the first step, or one line in the log and a trainer that is left alone.
"""

import importlib.metadata
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from holdfast import rank
from holdfast.checkpoint.arena import Arena
from holdfast.errors import Error
from holdfast.integrations.unsent import Unsent
from holdfast.train import candidates, placement, session, survival
from holdfast.train.session import Run, join
from holdfast.train.state import State

Callback = TypeVar("Callback")
_taken_by = ""  # which trainer has the run of this process


class Drive:
    """Steps of a trainer, as those of a run."""

    def __init__(self, trainer: str) -> None:
        """Raises `Error` (run-unavailable) where the run of this process is taken."""
        global _taken_by
        if _taken_by or session.joined():
            raise conflict(trainer)
        _taken_by = trainer
        self.run: Run = join()
        if (kept := survival.of_this_process()) is not None:
            kept.refuse(f"the loop is that of {trainer}")
        self._state: State | None = None
        self._steps: Iterator[Any] | None = None
        self.unsent = Unsent()

    def track(self, **objects: Any) -> int:
        """Keep these objects; returns after how many steps they are restored, 0 for none.

        Raises what `run.track()` and `state.restore()` do.
        """
        self._state = self.run.track(**objects)
        completed = self._state.restore()
        self.unsent.settle(restored=completed > 0)
        return completed

    def snapshot_waits(self) -> bool:
        """Whether `track()` will restore a snapshot from memory, as far as can be told without what
        is to be tracked; all ranks have to ask."""
        return self.run._parts.snapshot_waits(self.run._ranks)

    def unsynced(self) -> AbstractContextManager[None]:
        """Models of DDP that are made within are not sent to all ranks, where a snapshot waits; all
        ranks have to ask."""
        return self.unsent.making() if self.snapshot_waits() else nullcontext()

    @property
    def completed(self) -> int:
        """Steps that are done, those before a restart included."""
        return 0 if self._state is None else self._state.completed

    def begin(self, completed: int, total: int) -> None:
        """The first step follows, number `completed` counting from 0."""
        assert self._state is not None
        self._state.completed = completed
        self._steps = self._state.steps(total)
        if next(self._steps, None) is None:
            self._steps = None

    def step_done(self) -> None:
        """A step is done, whatever belongs to it as well."""
        if self._steps is not None and next(self._steps, None) is None:
            self._steps = None

    def end(self) -> None:
        """There are no more steps: the last one is kept."""
        if self._steps is not None:
            assert self._state is not None
            self._steps = None
            self._state.end()

    def leave(self) -> None:
        """The loop is left within a step: what follows is none, however long it takes."""
        if self._steps is not None:
            self._steps.close()  # type: ignore[attr-defined]
            self._steps = None

    def section(self, name: str) -> AbstractContextManager[None]:
        """Of the run."""
        return self.run.section(name)


def conflict(trainer: str) -> Error:
    """Of two that want the run of this process."""
    other = f"the integration for {_taken_by}" if _taken_by else "holdfast.train.join()"
    return Error(
        "run-unavailable",
        f"the integration for {trainer} cannot be used for this training",
        why=f"{other} is already in use in this process, which has one run",
        help="use one of them; the other training keeps its own checkpoints",
    )


def is_taken() -> bool:
    """Whether something has the run of this process."""
    return bool(_taken_by) or session.joined()


def first_of(trainer: str, callback: Callback) -> Callback | None:
    """This callback for the first training of a process; None, and a line in the log, for a later
    one by the same trainer, which keeps its own checkpoints."""
    if _taken_by != trainer:
        return callback
    left_alone(trainer, "an earlier training in this process is already integrated")
    return None


def under_holdfast() -> bool:
    """Whether there is an agent to keep anything."""
    return "HOLDFAST_ARENA_FD" in os.environ


def has_snapshots() -> bool:
    """Whether the memory of this node has snapshots for this rank, of whatever step."""
    arena = placement.descriptor("HOLDFAST_ARENA_FD")
    return arena is not None and bool(candidates.in_memory(Arena(arena)))


def snapshots_anywhere() -> bool:
    """Whether any rank has one, wherever it has; all ranks have to ask, once they can talk."""
    if not under_holdfast() or is_taken():
        return False
    if not dist.is_initialized():
        return has_snapshots()
    device = torch.device("cpu")
    if dist.get_backend() not in ("gloo", "mpi"):
        device = torch.accelerator.current_accelerator() or device
    found = torch.tensor([int(has_snapshots())], device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found.item())


def why_not_here() -> str:
    """What of the job stands against keeping a trainer; empty if nothing does."""
    if "HOLDFAST_ELASTIC" in os.environ:
        return "the number of ranks may change (elasticity), but its state is per rank"
    return ""


def left_alone(trainer: str, why: str) -> None:
    """Say that this trainer keeps its own state only, and why."""
    rank.say(f"{trainer} is not integrated: {why}")


def switched_on(trainer: str) -> None:
    """Say that this trainer is kept although its script does not ask for it."""
    rank.say(
        f"{trainer}: steps are reported and state is kept in memory (holdfast.integrations); "
        "`integrate: off` in the job file (or: holdfast run --no-integrate) turns this off."
    )


def require_version(package: str, least: tuple[int, int], below: tuple[int, int]) -> None:
    """Raise `Error` (trainer-unsupported) unless the installed version is one that was tried."""
    found = importlib.metadata.version(package)
    numbers = re.findall(r"\d+", found)[:2]
    version = tuple(int(number) for number in (*numbers, "0"))[:2]
    if not least <= version < below:
        raise unsupported(package, found, f">={_dotted(least)},<{_dotted(below)}")


def unsupported(package: str, found: str, fitting: str) -> Error:
    """Of a trainer whose insides are not the ones we know."""
    return Error(
        "trainer-unsupported",
        f"{package} {found} is not supported by holdfast.integrations",
        why=f"supported is {package}{fitting}",
        help=f"pip install '{package}{fitting}', or remove the integration: the script then "
        "keeps its own checkpoints",
    )


def unsupported_setting(trainer: str, why: str) -> Error:
    """Of a trainer that is known, used in a way that is not."""
    return Error(
        "trainer-unsupported",
        f"this use of {trainer} is not supported by holdfast.integrations",
        why=why,
        help="remove the integration: the script then keeps its own checkpoints",
    )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
