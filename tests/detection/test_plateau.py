"""A loss that has stopped falling is told once; noise, spikes and slow descents are none."""

import math
import random
from collections.abc import Callable

import pytest

from holdfast.detection.plateau import SAMPLES_MAX, PlateauWatch
from holdfast.events import LossPlateaued, Progress
from holdfast.messages import Report, WorkerReport

WINDOW = 200


def report(step: int | None, loss: float | None, rank: int = 0, attempt: int = 1) -> Report:
    worker = WorkerReport(
        rank=rank, pid=1, progress=Progress(step=step), milestones={}, loss=loss
    )  # fmt: skip
    return Report(node="a", attempt=attempt, workers=(worker,))


def watched(loss: Callable[[int], float], steps: int, every: int = 1) -> list[LossPlateaued]:
    watch = PlateauWatch(WINDOW, 0.01)
    return [
        told for step in range(0, steps, every) for told in watch.observe(report(step, loss(step)))
    ]


def noisy(of: Callable[[int], float], seed: int, share: float = 0.1) -> Callable[[int], float]:
    dice = random.Random(seed)
    return lambda step: of(step) * (1 + dice.gauss(0.0, share))


@pytest.mark.parametrize("seed", range(10))
def test_a_loss_that_falls_and_then_stays_is_told_once(seed: int) -> None:
    falls = noisy(lambda step: 2.0 + 8.0 * math.exp(-step / 100), seed, 0.01)
    [told] = watched(falls, 5 * WINDOW)
    assert (told.rank, told.steps, told.share) == (0, WINDOW, 0.01)
    assert told.loss == pytest.approx(2.0, rel=0.05) and told.step > 2 * WINDOW


@pytest.mark.parametrize("seed", range(10))
def test_a_loss_that_falls_slowly_is_no_plateau_whatever_the_noise(seed: int) -> None:
    """By 10 % each window, in noise of as much at each step."""
    assert not watched(noisy(lambda step: 5.0 * 0.9 ** (step / WINDOW), seed), 10 * WINDOW)


def test_nothing_is_told_before_there_is_a_window_to_compare_with() -> None:
    assert not watched(lambda _: 1.0, WINDOW * 3 // 2)
    assert len(watched(lambda _: 1.0, WINDOW * 3 // 2 + 1)) == 1
    assert not watched(lambda _: 1.0, 5 * WINDOW, every=WINDOW // 10), "too few samples"


def test_a_spike_is_no_improvement_and_hides_none() -> None:
    spiky = 5 * WINDOW
    assert not watched(lambda s: 1e6 if s % 50 == 0 else 10.0 - 5.0 * s / spiky, spiky)
    assert watched(lambda s: -1e6 if s % 50 == 0 else 10.0, spiky)


def test_a_loss_below_zero_and_one_that_rises_count_too() -> None:
    assert not watched(lambda step: -1.0 - step / WINDOW, 5 * WINDOW)
    assert len(watched(lambda _: -1.0, 5 * WINDOW)) == 1
    assert len(watched(lambda step: 1.0 + step / WINDOW, 5 * WINDOW)) == 1


def test_it_is_told_again_after_it_has_fallen() -> None:
    def twice(step: int) -> float:
        return 10.0 if step < 4 * WINDOW else max(5.0, 10.0 - (step - 4 * WINDOW) / 100)

    assert [told.loss for told in watched(twice, 12 * WINDOW)] == [10.0, 5.0]


def test_steps_done_again_and_numbers_that_are_none_do_not_count() -> None:
    watch = PlateauWatch(WINDOW, 0.01)
    for again in range(20):
        for step in range(WINDOW):
            assert not watch.observe(report(step, 1.0, attempt=again + 1))
        assert not watch.observe(report(WINDOW + again, math.nan))
        assert not watch.observe(report(WINDOW + again, None))
        assert not watch.observe(report(None, 1.0))


def test_the_lowest_rank_counts_and_a_past_attempt_does_not() -> None:
    watch = PlateauWatch(WINDOW, 0.01)
    told = []
    for step in range(3 * WINDOW):
        told += watch.observe(report(step, 9.0, rank=5, attempt=2))
        told += watch.observe(report(step, 1.0, rank=3, attempt=2))
        told += watch.observe(report(10 * step, 4.0, rank=1, attempt=1))
    assert [(one.rank, one.loss) for one in told] == [(3, 1.0)]


def test_it_is_off_unless_asked_for_and_never_large() -> None:
    off = PlateauWatch(0, 0.01)
    assert not any(off.observe(report(step, 1.0)) for step in range(1000))
    large = PlateauWatch(20 * SAMPLES_MAX, 0.01)
    for step in range(20 * SAMPLES_MAX):
        large.observe(report(step, 1.0))
    assert all(len(block.samples) < SAMPLES_MAX for block in large._blocks)


def test_a_loss_that_a_script_prints_counts_as_well() -> None:
    watch = PlateauWatch(WINDOW, 0.01)
    told = []
    for step in range(3 * WINDOW):
        worker = WorkerReport(
            rank=0, pid=1, progress=Progress(), milestones={}, printed_step=step, printed_loss=2.0
        )
        told += watch.observe(Report(node="a", attempt=1, workers=(worker,)))
    assert len(told) == 1
