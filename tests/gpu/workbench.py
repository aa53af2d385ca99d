"""One training in this process on a device, with its snapshots, taken apart so that a test can
stand between any two things that a worker does.

An attempt ends where a test lets go of it; the next one is a new object on the same arena, whose
parameters begin elsewhere.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from holdfast.checkpoint.arena import OWN, Arena, Cell, Key
from holdfast.checkpoint.settings import CheckpointSettings
from holdfast.checkpoint.streams import SideStream, background_copier
from holdfast.checkpoint.tensors import cloned, read
from holdfast.train.cadence import Cadence
from holdfast.train.layout import Ranks
from holdfast.train.placement import Placement
from holdfast.train.snapshots import Snapshotter, watch_optimizers
from holdfast.train.tracked import Tracked, Tree


class Size(NamedTuple):
    """Of a model."""

    layers: int
    width: int

    @property
    def layer_bytes(self) -> int:
        """Parameters and both moments of a layer."""
        return (self.width + 1) * self.width * 4 * 3


LARGE = Size(85, 1024)  # a GiB of state: a GPU takes longer to copy it than for a step
SMALL = Size(2, 256)


def size_for(device: torch.device) -> Size:
    """Large enough for a GPU to be copying still when the optimizer wants to go on."""
    return LARGE if device.type == "cuda" else SMALL


def stack(size: Size) -> nn.Module:
    """Linear layers with dropout between them, whose losses depend on the random numbers."""
    width = size.width
    parts = [(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1)) for _ in range(size.layers)]
    return nn.Sequential(*(part for group in parts for part in group))


_open: list[Any] = []  # whatever has pinned memory


def opened(background: Any) -> Any:
    """Keep this, and the memory that it has pinned, until `unpin`."""
    _open.append(background)
    return background


def unpin() -> None:
    """Let go of all pinned memory. A worker never does: it ends. Memory that was unmapped while it
    is pinned would be taken for pinned wherever its address is mapped again."""
    pins = [background for background in _open if isinstance(background, SideStream)]
    for background in pins:
        background.settle()
        for at, _ in background._pinned:
            result = torch.cuda.cudart().cudaHostUnregister(at)  # type: ignore[no-untyped-call]
            if int(result) != 0:  # a test had it refused
                background._forget_error()
    _open.clear()
    if pins:  # where many tests have run before, it takes a second
        gc.collect()


class Training:
    """A model, its optimizer and their snapshots, as a worker has them."""

    def __init__(
        self,
        device: torch.device,
        fd: int,
        size: Size,
        *,
        make: Callable[[Size], nn.Module] = stack,
        attempt: int = 1,
        beside: bool = True,
        options: dict[str, Any] | None = None,
    ) -> None:
        """`fd` is that of the arena, `options` are those of AdamW; `beside` as in the job."""
        torch.manual_seed(attempt)
        self.device = device
        self.width = size.width
        self.model = make(size).to(device)
        parameters = self.model.parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-3, **(options or {}))
        self.arena = Arena(fd)
        self.attempt = attempt
        objects = {"model": self.model, "optimizer": self.optimizer}
        self.tracked = Tracked(objects, device, [], Ranks(0, 1, 1), None)
        self.snapshots = Snapshotter(
            self.arena,
            None,
            None,
            Placement(0, 0, 1, 1, attempt, 0, distributed=False),
            self.tracked,
            Cadence(1, 1.0),
            CheckpointSettings(),
            opened(background_copier(device, 1)) if beside else None,
        )
        watch_optimizers(self.snapshots, [self.optimizer])
        self.completed = 0
        self._due: Any = None

    def restore(self) -> int:
        """As the loop does before its first step."""
        self.completed = self.snapshots.restore()
        self.snapshots.restore_random()
        return self.completed

    def inputs(self) -> Tensor:
        """Those of the step to come: the same in each attempt."""
        drawn = torch.Generator().manual_seed(self.completed)
        return torch.randn(16, self.width, generator=drawn).to(self.device)

    def step(self, inputs: Tensor | None = None) -> Tensor:
        """One step of training; its loss, which is not waited for."""
        loss = self.forward(self.inputs() if inputs is None else inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.meet()
        return loss.detach()

    def forward(self, inputs: Tensor) -> Tensor:
        """The loss."""
        out: Tensor = self.model(inputs)
        return out.square().mean()

    def meet(self) -> None:
        """The end of a step."""
        self.completed += 1
        self._due = self.snapshots.meet(self.completed, sys.maxsize)

    def snapshot(self) -> Key:
        """Take one of the steps so far; it is whole after the next step, or `settle`."""
        assert self._due is not None, "one rank has nobody to wait for"
        self.snapshots.take(self.completed, self._due)
        return Key(self.attempt, self.completed)

    def settle(self) -> None:
        """Return when the newest snapshot is whole."""
        self.snapshots.finish()

    @property
    def torn(self) -> bool:
        """Whether the newest snapshot was given up."""
        return self.snapshots.capture.writer.torn

    def cells(self, key: Key) -> list[Cell]:
        """Where this snapshot lies."""
        return [cell for part in OWN if (cell := self.arena.find(part, key)) is not None]

    def wait(self) -> None:
        """Return when the device has done all that was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def state_of(training: Training) -> list[Tree]:
    """A copy of everything that a snapshot taken now has to hold."""
    shared, private = training.tracked.capture()
    return [cloned(shared), cloned(private)]


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """Where two trees are not the same, bit for bit; devices do not matter."""
    if isinstance(expected, dict):
        if not isinstance(found, dict) or expected.keys() != found.keys():
            yield f"{path}: other keys"
            return
        for key in expected:
            yield from differences(expected[key], found[key], f"{path}.{key}")
    elif isinstance(expected, list | tuple):
        if len(expected) != len(found):
            yield f"{path}: other length"
            return
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{path}.{number}")
    elif isinstance(expected, torch.Tensor):
        if not _same_bits(expected, found):
            yield path
    elif not _equal(expected, found):
        yield path


def _same_bits(one: Tensor, other: Any) -> bool:
    if not isinstance(other, torch.Tensor) or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    here, there = (
        t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (one, other)
    )
    return torch.equal(here, there)


def _equal(one: Any, other: Any) -> bool:
    same = one == other
    return bool(same.all()) if hasattr(same, "all") else bool(same)


def contents(training: Training, key: Key) -> list[Tree]:
    """What a snapshot holds, as `state_of`."""
    cells = training.cells(key)
    assert all(cell.intact() for cell in cells) and len(cells) == len(OWN), "it is not whole"
    return [read(cell) for cell in cells]
