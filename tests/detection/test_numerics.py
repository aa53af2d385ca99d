"""Bad numbers are seen at their step; noise and scaled gradients are not; one fact is enough."""

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.detection.numerics import (
    LASTING_COUNT,
    LEARNED_COUNT,
    NEWEST_COUNT,
    QUIET_STEPS,
    SPIKE_TIMES,
    WINDOW_COUNT,
    FirstBad,
    NumbersReducer,
    NumberWatch,
)
from holdfast.events import (
    Broken,
    NumbersBroke,
    NumbersSpiked,
    Progress,
    Quantity,
    Spike,
    WorkerExited,
)
from holdfast.messages import Report, WorkerReport
from tests.more import examples

BAD = st.sampled_from([math.nan, math.inf, -math.inf])
FINE = st.floats(-1e30, 1e30)


def watched(
    losses: list[float | None], norms: list[float | None] | None = None
) -> list[FirstBad | Spike]:
    """Everything that is noticed, step by step; the first step is number 1."""
    watch, found = NumberWatch(), []
    given_norms = norms if norms is not None else [None] * len(losses)
    for step, (loss, norm) in enumerate(zip(losses, given_norms, strict=True), start=1):
        noticed = watch.step(step, float(step), loss, norm)
        found += [noticed] if noticed is not None else []
    return found


def first_bad(found: list[FirstBad | Spike]) -> FirstBad | None:
    return next((one for one in found if isinstance(one, FirstBad)), None)


def spikes(values: list[float]) -> list[int]:
    return [one.step for one in watched([*values]) if isinstance(one, Spike)]


# ── not finite ──


@given(st.lists(st.none() | FINE, max_size=80), BAD, st.lists(st.none() | FINE | BAD, max_size=9))
@settings(max_examples=examples(200), deadline=None)
def test_the_first_loss_that_is_not_finite_is_noticed_at_its_step(
    before: list[float | None], bad: float, after: list[float | None]
) -> None:
    found = first_bad(watched([*before, bad, *after]))
    assert found is not None
    assert (found.step, found.what) == (len(before) + 1, Quantity.LOSS)
    assert found.value == bad or math.isnan(found.value)


@given(st.lists(st.none() | FINE, max_size=200), st.lists(st.none() | FINE, max_size=200))
@settings(max_examples=examples(200), deadline=None)
def test_finite_numbers_are_never_called_anything_else(
    losses: list[float | None], norms: list[float | None]
) -> None:
    length = min(len(losses), len(norms))
    assert first_bad(watched(losses[:length], norms[:length])) is None


@given(st.lists(st.tuples(st.integers(1, LASTING_COUNT - 1), st.integers(1, 5)), max_size=8))
@settings(max_examples=examples(100), deadline=None)
def test_gradients_that_are_scaled_too_far_now_and_then_are_no_fault(
    rows: list[tuple[int, int]],
) -> None:
    """Each row of infinite norms ends before the limit, with a finite one."""
    norms: list[float | None] = []
    for bad, fine in rows:
        norms += [math.inf] * bad + [1.0] * fine
    assert first_bad(watched([2.0] * len(norms), norms)) is None


def test_gradients_that_stay_infinite_count_from_the_first_of_the_row() -> None:
    norms: list[float | None] = [1.0, math.inf, 1.0, *[math.inf] * LASTING_COUNT]
    found = watched([2.0] * len(norms), norms)
    assert found == [FirstBad(4, 4.0, Quantity.GRAD_NORM, math.inf)]


def test_a_loss_that_follows_bad_gradients_dates_the_fault_to_the_first_of_them() -> None:
    found = first_bad(watched([2.0, 2.0, 2.0, math.nan], [1.0, math.inf, math.nan, math.nan]))
    assert found is not None and (found.step, found.what) == (2, Quantity.GRAD_NORM)


def test_a_step_with_both_bad_is_told_by_its_loss() -> None:
    found = first_bad(watched([2.0, math.inf], [1.0, math.nan]))
    assert found is not None and (found.step, found.what) == (2, Quantity.LOSS)


def test_a_step_is_unsound_until_numbers_are_finite_again() -> None:
    watch, said = NumberWatch(), []
    for step, (loss, norm) in enumerate(
        [(1.0, None), (math.nan, None), (None, None), (1.0, None), (1.0, math.inf), (1.0, 1.0)]
    ):
        watch.step(step, 0.0, loss, norm)
        said.append(watch.unsound)
    assert said == [False, True, True, False, True, False]


# ── spikes ──


def noisy(count: int, sigma: float, seed: int) -> list[float]:
    dice = random.Random(seed)
    return [math.exp(dice.gauss(0.0, sigma)) for _ in range(count)]


def test_a_loss_far_above_the_usual_is_a_spike_once() -> None:
    calm = noisy(80, 0.05, 1)
    assert spikes([*calm, 20.0, 21.0, 22.0, *calm]) == [81]


def falling(count: int, sigma: float, decades: float, seed: int) -> list[float]:
    """A loss that loses so many decades over the steps, and then stays."""
    fall = [10 ** -min(decades, 2 * decades * step / count) for step in range(count)]
    return [level * one for level, one in zip(fall, noisy(count, sigma, seed), strict=True)]


@given(st.integers(0, 10_000), st.floats(0.0, 0.3), st.floats(0.0, 4.0), st.integers(40, 119))
@settings(max_examples=examples(60), deadline=None)
def test_a_loss_that_falls_by_decades_is_told_where_it_jumps_and_nowhere_else(
    seed: int, sigma: float, decades: float, at: int
) -> None:
    """The first sixty steps of a small training: by its median one would wait for e^20."""
    losses = falling(120, sigma, decades, seed)
    assert spikes([*losses]) == []
    jumped = 100 * max(losses[at - NEWEST_COUNT : at])
    assert spikes([*losses[:at], jumped, *losses[at:]]) == [at + 1]


def test_what_is_usual_where_a_loss_has_fallen_is_that_of_the_newest_steps() -> None:
    [found] = watched([*falling(64, 0.1, 4.0, 1)[:40], 2.0])
    assert isinstance(found, Spike) and found.usual < 0.01


def test_nothing_is_a_spike_before_the_usual_is_known() -> None:
    assert spikes([1.0] * (LEARNED_COUNT - 1) + [1000.0]) == []
    assert spikes([1.0] * LEARNED_COUNT + [1000.0]) == [LEARNED_COUNT + 1]


@given(st.integers(0, 10_000), st.floats(0.0, 2.0), st.floats(1e-12, 1e6))
@settings(max_examples=examples(60), deadline=None)
def test_noise_is_no_spike_however_large_and_at_whatever_level(
    seed: int, sigma: float, level: float
) -> None:
    assert spikes([level * one for one in noisy(1000, sigma, seed)]) == []


@given(st.integers(0, 10_000), st.floats(-3.0, 1.0))
@settings(max_examples=examples(60), deadline=None)
def test_a_loss_that_is_sometimes_negative_has_no_spikes(seed: int, mean: float) -> None:
    dice = random.Random(seed)
    values = [dice.gauss(mean, 1.0) for _ in range(500)]
    level = WINDOW_COUNT // 2
    for at in range(0, len(values), level):
        values[at] = -abs(values[at])
    assert spikes([*values, 1e9]) == []


def test_a_loss_that_falls_fast_or_steps_up_a_little_has_no_spikes() -> None:
    falling = [10.0 * 0.9**step for step in range(300)]
    assert spikes(falling) == []
    assert spikes([1.0] * 100 + [SPIKE_TIMES * 0.99] * 100) == []


def test_a_new_level_is_usual_after_a_while() -> None:
    levels = [1.0] * 100 + [10.0] * 200 + [100.0] * 100
    assert spikes(levels) == [101, 301]


# ── reports ──


def bad(step: int) -> Broken:
    return Broken(step=step, what=Quantity.LOSS, value="nan")


def spike(step: int) -> Spike:
    return Spike(step=step, what=Quantity.LOSS, value=9.0, usual=1.0)


def report(attempt: int, *ranks: tuple[int, Broken | Spike | None]) -> Report:
    workers = tuple(
        WorkerReport(
            rank=rank,
            pid=1,
            progress=Progress(step=50),
            milestones={},
            broke=found if isinstance(found, Broken) else None,
            spike=found if isinstance(found, Spike) else None,
        )
        for rank, found in ranks
    )
    return Report(node="n", attempt=attempt, workers=workers)


def test_an_attempt_breaks_once_at_the_earliest_step_and_lowest_rank_of_the_first_report() -> None:
    numbers = NumbersReducer()
    assert numbers.observe(report(1, (0, None), (1, None))) == []
    (told,) = numbers.observe(report(1, (3, bad(8)), (2, bad(7)), (1, bad(7)), (0, bad(8))))
    assert told == NumbersBroke(attempt=1, rank=1, broke=bad(7))
    assert numbers.observe(report(1, (5, bad(2)))) == []


def test_each_attempt_has_its_own_and_the_past_has_none() -> None:
    numbers = NumbersReducer()
    assert len(numbers.observe(report(1, (0, bad(7))))) == 1
    assert len(numbers.observe(report(2, (0, bad(7))))) == 1
    assert numbers.observe(report(1, (0, bad(7)))) == []


def test_what_a_worker_noticed_before_it_ended_is_told_if_no_report_said_so() -> None:
    numbers = NumbersReducer()
    exited = WorkerExited(node="n", attempt=1, rank=2, exit_code=0, broke=bad(9))
    assert numbers.exited(exited) == [NumbersBroke(attempt=1, rank=2, broke=bad(9))]
    assert numbers.exited(exited) == []
    assert numbers.exited(WorkerExited(node="n", attempt=1, rank=3, exit_code=0)) == []


def test_spikes_of_all_ranks_and_of_the_steps_after_are_one() -> None:
    numbers = NumbersReducer()
    told = numbers.observe(report(1, (3, spike(60)), (2, spike(60))))
    assert told == [NumbersSpiked(attempt=1, rank=2, spike=spike(60))]
    for step in (60, 61, 60 + QUIET_STEPS):
        assert numbers.observe(report(1, (4, spike(step)))) == []
    assert len(numbers.observe(report(1, (4, spike(61 + QUIET_STEPS))))) == 1
