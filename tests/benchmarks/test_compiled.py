"""The benchmark of compiled blocks tells how long the first step itself took."""

import pytest

import compiled
from kills import Kill, Step, judge

BEFORE = [Step(at=10.0 + 0.1 * n, attempt=1, rank=0, number=n, pid=7) for n in range(1, 6)]
AFTER = Step(at=11.0, attempt=2, rank=0, number=6, pid=8)
MARKS = "10.7 2 0 imported\n10.8 2 0 built\n10.88 2 0 training\n"


def test_the_first_step_begins_with_the_body_of_its_loop() -> None:
    kill = judge([*BEFORE, AFTER], attempt=1, killed_at=10.55, marks=MARKS)
    told = compiled.first_step([kill])
    assert told == {
        "first_step_s": pytest.approx(0.12),
        "first_steps": pytest.approx(1.2),
    }


def test_a_kill_without_marks_or_recovery_says_nothing_of_it() -> None:
    unmarked = judge([*BEFORE, AFTER], attempt=1, killed_at=10.55)
    told = compiled.first_step([unmarked, Kill(recovered=False)])
    assert told == {"first_step_s": None, "first_steps": None}
