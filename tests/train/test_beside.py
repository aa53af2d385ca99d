"""What is told of a step beside which a snapshot is copied."""

import time

import torch

from holdfast.checkpoint.arena import Arena
from holdfast.checkpoint.settings import CheckpointSettings
from holdfast.checkpoint.streams import SideThread
from holdfast.train.cadence import Cadence
from holdfast.train.layout import Ranks
from holdfast.train.placement import Placement
from holdfast.train.snapshots import Snapshotter, watch_optimizers
from holdfast.train.tracked import Tracked

ALONE = Placement(0, 0, 1, 1, 1, 0, distributed=False)


class Told(Cadence):
    """A cadence that remembers what it was told."""

    def __init__(self, every: int) -> None:
        super().__init__(every, 0.01)
        self.steps: list[tuple[float, bool]] = []
        self.waits: list[float] = []

    def stepped(self, step_s: float, *, beside: bool = False) -> None:
        self.steps.append((step_s, beside))
        super().stepped(step_s, beside=beside)

    def took(self, waited_s: float, taken_s: float = 0.0) -> None:
        self.waits.append(waited_s)
        super().took(waited_s, taken_s)


class Slow(SideThread):
    """The training thread has to wait for a copy before the optimizer's step."""

    WAIT_S = 0.05

    def guard(self) -> bool:
        end = time.monotonic() + self.WAIT_S
        while time.monotonic() < end:
            pass
        return super().guard()


def test_the_step_after_a_snapshot_is_told_without_the_wait_in_it() -> None:
    net = torch.nn.Linear(2048, 1024)
    optimizer = torch.optim.AdamW(net.parameters())
    tracked = Tracked(
        {"model": net, "optimizer": optimizer}, torch.device("cpu"), [], Ranks(0, 1, 1), None
    )
    cadence = Told(3)
    arena = Arena(Arena.create())
    snapshots = Snapshotter(
        arena, None, None, ALONE, tracked, cadence, CheckpointSettings(), Slow(1)
    )
    watch_optimizers(snapshots, [optimizer])
    snapshots.restore()
    for step in range(1, 9):
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        snapshots.stepped(1.0)
        flags = snapshots.meet(step, 100)
        if flags is not None:
            snapshots.take(step, flags)
    # snapshots after steps 1, 4 and 7, so the steps 2, 5 and 8 had copies beside them
    assert [beside for _, beside in cadence.steps] == [n in (2, 5, 8) for n in range(1, 9)]
    for step_s, beside in cadence.steps:
        assert step_s < 1.0 - Slow.WAIT_S * 0.9 if beside else step_s == 1.0
    assert len(cadence.waits) == 3 and min(cadence.waits) > Slow.WAIT_S * 0.9
