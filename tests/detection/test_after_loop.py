"""Ranks that have all left their loops are looked at now and then, and only then."""

from itertools import pairwise

import pytest

from holdfast.detection.after_loop import (
    AFTER_S,
    AGAIN_MAX_S,
    AGAIN_MIN_S,
    CLOSES_S,
    AfterLoop,
)
from holdfast.events import HangSuspected, Progress, each_of
from holdfast.messages import Report, WorkerReport

LOOK_S = 1.0


class Job:
    """Two ranks whose phases are what the test wants, and who were looked at, and when."""

    def __init__(self, *phases: str) -> None:
        self.now, self.phases, self.exited = 1000.0, list(phases), set[int]()
        self.watch, self.looks = AfterLoop(), list[HangSuspected]()
        self.closes: bool | None = None  # what a look shows
        self.watch.begin(1, len(phases))

    def tell(self, attempt: int = 1) -> None:
        workers = tuple(
            WorkerReport(
                rank=rank, pid=1, progress=Progress(step=7), milestones={}, phase=phase
            )
            for rank, phase in enumerate(self.phases)
            if rank not in self.exited
        )  # fmt: skip
        self.watch.observe(Report(node="n", attempt=attempt, workers=workers), self.now)

    def pass_by(self, seconds: float) -> float:
        """For how long all were seen to destroy their group, in the end."""
        end, stood_s = self.now + seconds, 0.0
        while self.now < end:
            self.now += LOOK_S
            self.tell()
            if self.watch.is_due(self.now, self.exited):
                self.looks.append(self.watch.suspect(self.now, self.exited))
                if self.closes is not None:
                    stood_s = self.watch.closes_s(self.now, closes=self.closes)
        return stood_s


def test_whoever_goes_on_behind_its_loop_is_looked_at_after_two_minutes_and_ever_more_rarely() -> (
    None
):
    job = Job("finished", "finished")
    job.tell()
    job.pass_by(AFTER_S - LOOK_S)
    assert job.looks == []
    job.pass_by(36_000.0)
    first = job.looks[0]
    assert first.ago_s == pytest.approx(AFTER_S, abs=2 * LOOK_S) and first.step == 7
    assert list(each_of(first.ranks)) == [0, 1]
    ages = [look.ago_s for look in job.looks]
    gaps = [after - before for before, after in pairwise(ages)]
    assert min(gaps) >= AGAIN_MIN_S and max(gaps) <= AGAIN_MAX_S + LOOK_S
    assert len(ages) < 70, "once in ten minutes"


@pytest.mark.parametrize("other", ["step", "data", "section", "snapshot", "starting", ""])
def test_nobody_is_while_one_is_in_a_loop_or_in_a_section(other: str) -> None:
    job = Job("finished", other)
    job.tell()
    job.pass_by(3 * AFTER_S)
    assert job.looks == []
    job.phases[1] = "ending"
    job.pass_by(AFTER_S + LOOK_S)
    assert len(job.looks) == 1 and job.watch.have_left_loops(set())
    job.phases[0] = "ending"  # and is watched as such (`detection/hang.py`)
    job.pass_by(3 * AFTER_S)
    assert len(job.looks) == 1 and not job.watch.have_left_loops(set())
    job.phases[0] = "data"  # another loop
    job.pass_by(3 * AFTER_S)
    assert len(job.looks) == 1


def test_ranks_that_have_ended_are_behind_their_loops_too_and_need_not_have_told_of_it() -> None:
    """As under a controller that has begun since."""
    job = Job("finished", "")
    job.exited = {1}
    job.tell()
    job.pass_by(AFTER_S + LOOK_S)
    [look] = job.looks
    assert list(each_of(look.ranks)) == [0]
    ended = Job("finished")
    ended.tell()
    ended.exited = {0}
    ended.watch.begin(2, 1)
    ended.pass_by(2 * AFTER_S)
    assert ended.looks == [], "nobody is left to be looked at"


def test_two_looks_that_show_the_same_are_a_minute_apart() -> None:
    job = Job("finished", "finished")
    job.closes = True
    job.tell()
    assert job.pass_by(AFTER_S + LOOK_S) == 0.0
    assert job.pass_by(CLOSES_S + LOOK_S) >= CLOSES_S
    assert len(job.looks) == 2
    job.pass_by(AGAIN_MIN_S)
    assert len(job.looks) == 2, "where nobody is stopped for it, there is no hurry"


def test_and_nothing_else_was_seen_between_them() -> None:
    job = Job("finished", "finished")
    job.tell()
    for closes in (True, False, True):
        job.closes = closes
        seen = len(job.looks)
        while len(job.looks) == seen:
            assert job.pass_by(LOOK_S) == 0.0


def test_after_hours_of_work_the_end_is_found_within_a_quarter_of_an_hour() -> None:
    job = Job("finished", "finished")
    job.closes = False
    job.tell()
    job.pass_by(36_000.0)
    job.closes = True
    assert job.pass_by(900.0) >= CLOSES_S


def test_other_attempts_and_time_in_which_nobody_listened_count_for_nothing() -> None:
    job = Job("finished", "finished")
    job.tell(attempt=2)
    assert not job.watch.is_due(job.now + 1e6, set())
    job.tell()
    job.now += 3600.0
    job.watch.forgive(3600.0)
    job.pass_by(AFTER_S - 2 * LOOK_S)
    assert job.looks == []
