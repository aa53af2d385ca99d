"""The restart benchmark counts what the step log says, nothing more."""

from kills import Kill, Step, judge, newest, parse, phases_of, ready, row


def step(at: float, attempt: int, rank: int, number: int) -> Step:
    return Step(at, attempt, rank, number, 1000 * (attempt + 1) + rank)


BEFORE = [step(float(n), 0, rank, n) for n in range(1, 11) for rank in (0, 1)]


def test_log_is_read_back_as_it_was_written() -> None:
    assert parse("1.500000 0 1 7 4242\n2.5 1 0 8 4243\n") == [
        Step(1.5, 0, 1, 7, 4242),
        Step(2.5, 1, 0, 8, 4243),
    ]


def test_line_that_is_not_whole_yet_is_left_out() -> None:
    assert parse("1.5 0 1 7 4242\n2.5 1 0") == [Step(1.5, 0, 1, 7, 4242)]
    assert parse("") == []


def test_job_is_ready_when_the_slower_rank_is() -> None:
    ahead = [*BEFORE, step(11.0, 0, 0, 11)]
    assert ready(ahead, 10)
    assert not ready(ahead, 11)


def test_steps_of_past_attempts_do_not_make_a_job_ready() -> None:
    steps = [*BEFORE, step(12.0, 1, 0, 11), step(12.0, 1, 1, 11)]
    assert newest(steps) == steps[-2:]
    assert ready(steps, 1)
    assert not ready(steps, 2)


def test_recovery_is_the_first_step_of_a_newer_attempt() -> None:
    steps = [*BEFORE, step(13.5, 1, 1, 9), step(13.0, 1, 0, 9)]
    assert judge(steps, 0, killed_at=10.5) == Kill(True, 2.5, 2, net_s=1.5, kept=0)


def test_step_that_a_survivor_finishes_after_the_kill_is_no_recovery() -> None:
    survivor = step(10.6, 0, 0, 11)
    assert judge([*BEFORE, survivor], 0, killed_at=10.5) == Kill(recovered=False)
    assert judge([*BEFORE, survivor, step(11.0, 1, 0, 11)], 0, 10.5) == Kill(True, 0.5, 1, -0.5, 0)


def test_workers_of_the_newer_attempt_that_were_there_before_are_counted() -> None:
    survivor = BEFORE[-2]._replace(at=11.0, attempt=1)
    assert judge([*BEFORE, survivor, step(11.5, 1, 1, 11)], 0, 10.5).kept == 1


def test_going_on_where_one_stopped_loses_no_step() -> None:
    assert judge([*BEFORE, step(11.0, 1, 0, 11)], 0, 10.5) == Kill(True, 0.5, 0, -0.5, 0, 0.5)


def test_steps_that_are_repeated_are_not_new_ones() -> None:
    repeated = [step(11.0, 1, 0, 9), step(11.5, 1, 0, 10)]
    assert judge([*BEFORE, *repeated], 0, 10.5).caught_up_s is None
    assert judge([*BEFORE, *repeated, step(12.0, 1, 0, 11)], 0, 10.5).caught_up_s == 1.5


def test_row_has_the_median_of_the_recovered_and_counts_the_others() -> None:
    kills = [
        *(Kill(True, 1.0, 0, 0.5, 1), Kill(True, 3.0, 2, 2.0, 1), Kill(True, 2.0, 1, 1.0, 2)),
        Kill(False),
    ]
    assert row(kills) == {
        "n": 4,
        "recovered": 3,
        "median_s": 2.0,
        "worst_s": 3.0,
        "net_median": 1.0,
        "net_worst": 2.0,
        "caught_up_median": None,
        "kept": 1,
        "steps_lost_max": 2,
    }


def test_row_without_a_recovery_has_no_times() -> None:
    assert row([Kill(False)]) == {
        "n": 1,
        "recovered": 0,
        "median_s": None,
        "worst_s": None,
        "net_median": None,
        "net_worst": None,
        "caught_up_median": None,
        "kept": None,
        "steps_lost_max": None,
    }


def test_phases_are_those_of_the_rank_that_was_first() -> None:
    first = step(15.0, 1, 1, 9)
    marks = "11.5 1 1 imported\n11.7 1 0 imported\n12.0 1 1 built\n9.0 0 1 training\n"
    assert phases_of(marks, first, 10.5) == ()
    marks += "14.0 1 1 training\n14.5 1 1 trai"
    assert phases_of(marks, first, 10.5) == (1.0, 0.5, 2.0, 1.0)
    found = judge([*BEFORE, first], 0, 10.5, marks)
    assert found.took_s == sum(found.phases) == 4.5
