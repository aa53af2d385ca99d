"""Accelerate, in a script with a loop of its own.

    from holdfast.integrations.accelerate import keep

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    kept = keep(accelerator, model=model, optimizer=optimizer, loader=loader, scheduler=scheduler)
    for step, batch in kept.steps(total=1000):
        with accelerator.accumulate(model):
            ...
        kept.run.log(loss=loss)

A step is a batch. Anything else with `state_dict()` can be kept as well, under a name of its own.

Where a snapshot waits, `prepare()` leaves out what it would replace: sending the model to all.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

from accelerate import Accelerator

from holdfast.integrations import drive, place
from holdfast.train import random_state
from holdfast.train.session import Run

NAME = "accelerate"
LEAST, BELOW = (1, 0), (2, 0)


class AcceleratedLoop:
    """The loop of a script, and what Accelerate counts in it. Made by `keep`."""

    def __init__(
        self, accelerator: Any, loader: Any, objects: dict[str, Any], reread: bool
    ) -> None:
        self._accelerator, self._loader = accelerator, loader
        self._place = place.LoaderPlace(
            place.loader_under(loader), ahead=accelerator.num_processes, reread=reread
        )
        self._drive = _taken() or drive.Drive(NAME)
        self.run: Run = self._drive.run
        self.epoch = 0
        """Of the data, counting from 0."""
        self._random: dict[str, Any] = {}
        named = {name: _inner(thing) for name, thing in objects.items() if thing is not None}
        if accelerator.scaler is not None:
            named["scaler"] = accelerator.scaler
        self._completed = self._drive.track(**named, accelerate=self)

    def steps(self, total: int) -> Iterator[tuple[int, Any]]:
        """Yield `(step, batch)` until `total` steps are done, counting from 0."""
        self._drive.begin(self._completed, total)
        while self._completed < total:
            self._loader.set_epoch(self.epoch)
            for batch in self._loader:
                self._place.used += 1
                try:
                    yield self._completed, batch
                except GeneratorExit:
                    self._drive.leave()
                    raise
                self._completed += 1
                self._drive.step_done()
                if self._completed == total:
                    break
            else:
                self.epoch += 1
        self._drive.end()

    def state_dict(self) -> dict[str, Any]:
        """What is not tracked by itself."""
        return {
            "epoch": self.epoch,
            "turn": self._accelerator.step,
            "place": self._place.state_dict(),
            "random": random_state.capture(self.run.device),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.epoch, self._accelerator.step = state["epoch"], state["turn"]
        self._random = state["random"]
        self._place.load_state_dict(state["place"])
        self._place.after_resume = self._put_random_back

    def _put_random_back(self) -> None:
        random_state.restore(self._random, self.run.device)


_expected: drive.Drive | None = None  # of a loop that is not kept yet, and that a snapshot awaits


def _taken() -> drive.Drive | None:
    global _expected
    found, _expected = _expected, None
    return found


def _preparing() -> AbstractContextManager[None]:
    """The script prepares something."""
    global _expected
    if _expected is None and drive.snapshots_anywhere():
        _expected = drive.Drive(NAME)
    return _expected.unsynced() if _expected is not None else nullcontext()


def _wrap() -> None:
    plain = Accelerator.prepare

    @wraps(plain)
    def prepare(self: Any, *given: Any, **named: Any) -> Any:
        with _preparing():
            return plain(self, *given, **named)

    Accelerator.prepare = prepare


_wrap()


def _inner(thing: Any) -> Any:
    """The optimizer or scheduler of PyTorch in Accelerate's."""
    match type(thing).__name__:
        case "AcceleratedOptimizer":
            return thing.optimizer
        case "AcceleratedScheduler":
            return thing.scheduler
        case _:
            return thing


def keep(
    accelerator: Any,
    *,
    model: Any,
    optimizer: Any,
    loader: Any,
    reread: bool = False,
    **others: Any,
) -> AcceleratedLoop:
    """Keep these objects, which `accelerator.prepare()` has returned; restores what was kept.

    `reread` allows to read an iterable dataset that does not know its position from its beginning
    again. Raises `Error` (trainer-unsupported, run-unavailable, loader-cannot-resume).
    """
    drive.require_version("accelerate", LEAST, BELOW)
    objects = {"model": model, "optimizer": optimizer, **others}
    return AcceleratedLoop(accelerator, loader, objects, reread)
