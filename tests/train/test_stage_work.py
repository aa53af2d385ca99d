"""How long a rank computes in its stages, and not how long it waits for others."""

import time
from typing import Any, ClassVar

import pytest
import torch

from holdfast.train.layouts.stage_work import StageWork


def _lasts(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Stage:
    """As a schedule uses it."""

    def forward_one_chunk(self, number: int, *, save: bool) -> str:
        assert save
        _lasts(0.02)
        return f"activation {number}"

    def backward_one_chunk(self, number: int) -> None:
        _lasts(0.02 * (number > 0))

    def backward_weight_one_chunk(self, number: int) -> None:
        raise ValueError(number)

    def get_fwd_recv_ops(self) -> None:
        _lasts(0.1)


def test_what_a_stage_computes_counts_and_what_it_waits_for_does_not() -> None:
    work, stage = StageWork(torch.device("cpu")), Stage()
    work.watch(stage)
    stage.get_fwd_recv_ops()
    assert work.seconds() == 0.0
    assert stage.forward_one_chunk(3, save=True) == "activation 3"
    after_one = work.seconds()
    assert after_one >= 0.02
    stage.backward_one_chunk(3)
    assert work.timed(lambda loss: loss * 2)(4) == 8
    assert work.seconds() >= after_one + 0.02
    with pytest.raises(ValueError, match="7"):
        stage.backward_weight_one_chunk(7)


class Event:
    """Of a GPU that has come to the first so many of its events."""

    made: ClassVar[list["Event"]] = []
    happened = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.number = len(Event.made)
        Event.made.append(self)

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return self.number < Event.happened

    def elapsed_time(self, end: "Event") -> float:
        assert end.query()
        return 250.0 * (end.number - self.number)


def test_on_a_gpu_it_counts_once_it_has_happened_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    work = StageWork(torch.device("cuda"))
    nothing: Any = work.timed(lambda: None)
    nothing()
    nothing()
    assert work.seconds() == 0.0
    Event.happened = 3  # the second call is under way
    assert work.seconds() == 0.25 and work.seconds() == 0.25
    Event.happened = 4
    assert work.seconds() == 0.5
