"""What is told of a step beside which a snapshot is copied."""

import time

import torch

from holdfast.checkpoint.arena import Arena
from holdfast.checkpoint.settings import CheckpointSettings
from holdfast.checkpoint.streams import SideThread
from holdfast.profiles import SNAPSHOT
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


class Training:
    """A model of 50 MB with its optimizer, as one rank has it."""

    def __init__(self, cadence: Cadence, background: SideThread) -> None:
        self.net = torch.nn.Linear(2048, 1024)
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        state = {"model": self.net, "optimizer": self.optimizer}
        tracked = Tracked(state, torch.device("cpu"), [], Ranks(0, 1, 1), None)
        self._arena = Arena(Arena.create())
        self.snapshots = Snapshotter(
            self._arena, None, None, ALONE, tracked, cadence, CheckpointSettings(), background
        )
        watch_optimizers(self.snapshots, [self.optimizer])
        self.snapshots.restore()

    def step(self, step: int) -> None:
        for parameter in self.net.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()
        self.snapshots.stepped(1.0)
        flags = self.snapshots.meet(step, 100)
        if flags is not None:
            self.snapshots.take(step, flags)


def test_the_step_after_a_snapshot_is_told_without_the_wait_in_it() -> None:
    cadence = Told(3)
    training = Training(cadence, Slow(1))
    for step in range(1, 9):
        training.step(step)
    # snapshots after steps 1, 4 and 7, so the steps 2, 5 and 8 had copies beside them
    assert [beside for _, beside in cadence.steps] == [n in (2, 5, 8) for n in range(1, 9)]
    for step_s, beside in cadence.steps:
        assert step_s < 1.0 - Slow.WAIT_S * 0.9 if beside else step_s == 1.0
    assert len(cadence.waits) == 3 and min(cadence.waits) > Slow.WAIT_S * 0.9


def test_whoever_profiles_training_sees_what_is_done_for_a_snapshot() -> None:
    """It is begun after step 1, what is left is copied before the optimizer's next step, and then
    it is settled; step 3 has nothing to do with it."""
    training = Training(Told(3), SideThread(1))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for step in range(1, 4):
            training.step(step)
    named = [event for event in profile.events() if event.name == SNAPSHOT]
    assert len(named) == 3
    assert all(event.is_user_annotation for event in named)
    assert min(event.time_range.elapsed_us() for event in named) > 0
