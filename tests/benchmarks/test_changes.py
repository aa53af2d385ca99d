"""The benchmark of planned changes counts the time between two steps, without the step itself."""

from changes import Change, judged, row
from kills import Step


def step(at: float, attempt: int, number: int) -> Step:
    return Step(at, attempt, 0, number, 1)


def test_what_is_lost_is_the_gap_without_a_step_of_the_new_size() -> None:
    steps = [step(float(n), 0, n) for n in range(1, 5)]
    steps += [step(6.5 + 2 * n, 1, 5 + n) for n in range(4)]
    change = judged(steps, 0, asked_at=3.5)
    assert change == Change(lost_s=0.5, steps_lost=0, asked_s=3.0, step_s=2.0)
    again = [*steps[:4], step(5.0, 1, 4), step(6.0, 1, 5)]
    assert judged(again, 0, asked_at=4.0).steps_lost == 1
    assert row([change, change])["lost_median_s"] == 0.5
