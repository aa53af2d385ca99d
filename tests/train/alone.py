"""A worker without any other: attempts of a small training in this process, on one arena.

An attempt ends where the test leaves its loop; the next one has new objects, as after a fault.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module
from torch.optim import Optimizer

from holdfast.checkpoint.arena import Arena
from holdfast.checkpoint.settings import CheckpointSettings
from holdfast.checkpoint.storage_page import StoragePage
from holdfast.checkpoint.streams import BackgroundCopier
from holdfast.page import Page
from holdfast.train.cadence import Cadence
from holdfast.train.early_end import EarlyEnd
from holdfast.train.layout import Ranks
from holdfast.train.placement import Placement
from holdfast.train.progress import ProgressReporter
from holdfast.train.snapshots import Snapshotter, watch_optimizers
from holdfast.train.state import State
from holdfast.train.tracked import Tracked

TURNS = 12
DEVICE = torch.device("cpu")

adamw = partial(torch.optim.AdamW, lr=0.05)


class Two(Module):
    """Two layers that losses reach separately, and one that not every turn uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.rare = Linear(6, 6), Linear(6, 3), Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.tanh(self.first(torch.dropout(x, 0.2, True))))
        return out


class Script:
    """What a training script has; its turns are functions below."""

    def __init__(self, makes: Mapping[str, Any]) -> None:
        """`makes` are optimizers of the whole model, or of the part that has their name."""
        torch.manual_seed(1)
        self.net = Two()
        self.optimizers: dict[str, Any] = {
            name: make(getattr(self.net, name, self.net).parameters())
            for name, make in makes.items()
        }
        tracked = {n: o for n, o in self.optimizers.items() if n != "untracked"}
        self.kept: dict[str, Any] = {"model": self.net, **tracked}


Turn = Callable[[Script, int, Tensor], Any]


class Job:
    """Attempts of one script on one arena."""

    def __init__(
        self,
        turn: Turn,
        every: int = 1,
        settings: CheckpointSettings | None = None,
        makes: Mapping[str, Any] = MappingProxyType({"all": adamw}),
    ) -> None:
        self.turn = turn
        self.makes = makes
        self.every = every
        self.settings = settings or CheckpointSettings()
        self.background: BackgroundCopier | None = None  # copies beside training, set by a test
        self.page: Page | None = None
        self.fd = Arena.create()
        self.storage_page = StoragePage(StoragePage.create())
        self.attempt = 0
        self.losses: dict[int, float] = {}
        self.restored: list[int] = []
        self.whole: list[int] = []  # snapshots of the newest attempt
        self.snapshots: Snapshotter
        self.state: State

    def loop(self, total: int = TURNS) -> Iterator[int]:
        """The turns of a new attempt; whoever leaves off is a fault."""
        self.attempt += 1
        script = Script(self.makes)
        place = Placement(0, 0, 1, 1, self.attempt, 0, distributed=False)
        tracked = Tracked(script.kept, DEVICE, [], Ranks(0, 1, 1), None)
        cadence = Cadence(self.every, 0.01)
        snapshots = Snapshotter(
            Arena(self.fd),
            self.storage_page,
            None,
            place,
            tracked,
            cadence,
            self.settings,
            self.background,
        )
        watch_optimizers(snapshots, [o for o in script.kept.values() if isinstance(o, Optimizer)])
        self.snapshots = snapshots
        self.state = State(None, ProgressReporter(self.page, 0), snapshots, EarlyEnd(None))
        self.restored.append(self.state.restore())
        self.whole = []
        snapshots.whole = lambda step, _: self.whole.append(step)
        for step, _ in self.state.steps(total):
            drawn = torch.Generator().manual_seed(step)
            self.losses[step] = self.turn(script, step, torch.randn(4, 6, generator=drawn)).item()
            yield step

    def run(self, until: int = TURNS) -> None:
        """An attempt that dies in the turn `until`, after all it does there."""
        for step in self.loop():
            if step == until:
                return
