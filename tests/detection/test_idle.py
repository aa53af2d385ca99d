"""Ranks of which no steps are seen are looked at when they have done nothing for longer than they
ever did by themselves, and told of for as long as that lasts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.detection.hang import BEGIN_S, PAUSES
from holdfast.detection.idle import (
    LIMIT_MIN_S,
    LIMIT_PAUSES,
    LOOK_S,
    PLACES_MAX,
    IdleSpells,
    IdleWatch,
)
from holdfast.events import HangSuspected, Milestone, Progress, each_of, in_rows
from holdfast.messages import SAVES, Report, WorkerReport
from holdfast.stacks import StackGroup, ThreadStack
from tests.more import examples

TIMEOUT_S = 600.0
REPORT_S = 5.0


class Job:
    """Ranks whose agents tell for how long they have been idle, as often as agents do."""

    def __init__(
        self, ranks: int = 2, timeout_s: float = TIMEOUT_S, step_timeout_s: float = 0.0
    ) -> None:
        self.now, self.attempt, self.exited = 1000.0, 1, set[int]()
        self.watch = IdleWatch(timeout_s, step_timeout_s)
        self.idle = dict.fromkeys(range(ranks), 0.0)
        self.wakes: set[int] = set()  # that do nothing but wake up
        self.place = ""  # where looks see all of them; empty: they see nothing
        self.suspicions: list[HangSuspected] = []
        self.again: list[int] = []
        self.watch.begin(1, ranks, self.now)

    def begin(self, attempt: int) -> None:
        self.attempt, self.idle = attempt, dict.fromkeys(self.idle, 0.0)
        self.watch.begin(attempt, len(self.idle), self.now)

    def tell(self, **more: object) -> None:
        for rank, idle_s in self.idle.items():
            page: dict[str, object] = {"phase": "starting", "milestones": {}, **more}
            report = WorkerReport(
                rank=rank, pid=1, progress=Progress(), idle_s=idle_s,
                asleep_s=0.0 if rank in self.wakes else idle_s, **page,  # type: ignore[arg-type]
            )  # fmt: skip
            self.watch.observe(Report(node="n", attempt=self.attempt, workers=(report,)))

    def pass_by(self, seconds: float, *, busy: frozenset[int] = frozenset()) -> None:
        """Time passes in which only these ranks do something."""
        end = self.now + seconds
        while self.now < end:
            self.now += REPORT_S
            for rank in self.idle:
                self.idle[rank] = 0.0 if rank in busy else self.idle[rank] + REPORT_S
            self.tell()
            if self.watch.is_due(self.now, self.exited):
                found = self.watch.suspect(self.now, self.exited)
                seen = self.watch.seen(found, self.look(), self.now) if self.place else found
                self.suspicions.append(seen)
            elif (who := self.watch.over()) is not None:
                self.again.append(who)

    def look(self) -> list[StackGroup]:
        thread = ThreadStack(name="MainThread", pid=1, frames=("<module> (job.py:9)", self.place))
        return [StackGroup(ranks=in_rows(self.idle), threads=(thread,))]

    def work(self, seconds: float = REPORT_S) -> None:
        self.pass_by(seconds, busy=frozenset(self.idle))


def test_where_all_ranks_do_nothing_they_are_looked_at_more_and_more_rarely() -> None:
    job = Job()
    job.work(100.0)
    job.pass_by(TIMEOUT_S + 1.0)
    first = job.suspicions[0]
    assert first.ago_s == pytest.approx(LOOK_S, abs=REPORT_S) and list(each_of(first.ranks)) == [
        0,
        1,
    ]
    assert (first.reported, first.counted, first.overdue) == (False, 0, False)
    pauses = [b.ago_s - a.ago_s for a, b in zip(job.suspicions, job.suspicions[1:], strict=False)]
    assert pauses[:-1] == sorted(pauses[:-1]) and len(job.suspicions) < 10
    assert job.suspicions[-1].ago_s == pytest.approx(TIMEOUT_S, abs=REPORT_S), "when it may be said"
    assert {one.idle_limit_s for one in job.suspicions} == {TIMEOUT_S}


def test_who_did_nothing_for_long_before_is_given_half_as_long_again() -> None:
    job = Job()
    job.work(20.0)
    job.pass_by(800.0)
    job.suspicions.clear()
    job.work(2 * TIMEOUT_S)
    job.pass_by(PAUSES * 795.0 - REPORT_S)
    assert job.suspicions == []
    job.pass_by(3 * REPORT_S)
    [suspicion] = job.suspicions
    assert suspicion.idle_limit_s and suspicion.idle_limit_s > TIMEOUT_S


def test_a_program_that_is_never_idle_for_long_is_given_less_once_that_is_known() -> None:
    job = Job()
    for _ in range(50):
        job.work(10.0)
        job.pass_by(5.0)
    job.pass_by(LIMIT_MIN_S + REPORT_S)
    assert LIMIT_PAUSES * 5.0 < LIMIT_MIN_S
    assert {one.idle_limit_s for one in job.suspicions} == {LIMIT_MIN_S}
    assert job.suspicions[-1].ago_s == pytest.approx(LIMIT_MIN_S, abs=REPORT_S)


def test_before_that_it_is_not_known() -> None:
    job = Job()
    job.work(300.0)
    job.pass_by(LOOK_S + REPORT_S)
    assert job.suspicions[0].idle_limit_s == TIMEOUT_S


def test_one_that_does_nothing_while_others_work_is_looked_at_much_later() -> None:
    job = Job(ranks=4)
    job.pass_by(TIMEOUT_S - REPORT_S, busy=frozenset({0, 1, 2}))
    assert job.suspicions == []
    job.pass_by(2 * REPORT_S, busy=frozenset({0, 1, 2}))
    [suspicion] = job.suspicions
    assert list(each_of(suspicion.ranks)) == [3] and not suspicion.overdue


def test_others_that_become_idle_then_are_looked_at_as_soon_as_always() -> None:
    job = Job()
    job.pass_by(10 * TIMEOUT_S, busy=frozenset({0}))
    before = len(job.suspicions)
    job.pass_by(LOOK_S + REPORT_S)
    assert len(job.suspicions) > before
    assert job.suspicions[before].ago_s == pytest.approx(LOOK_S, abs=2 * REPORT_S)


def test_that_somebody_goes_on_is_told_once() -> None:
    job = Job()
    job.pass_by(LOOK_S + REPORT_S)
    assert job.suspicions and job.again == []
    job.pass_by(20.0, busy=frozenset({1}))
    assert job.again == [1]


def test_what_the_job_file_gives_a_step_is_enough_for_idleness_too_but_for_the_beginning() -> None:
    job = Job(step_timeout_s=5.0)
    job.pass_by(BEGIN_S + REPORT_S)
    assert [one.overdue for one in job.suspicions][-1] and not job.suspicions[0].overdue
    assert job.suspicions[-1].ago_s == pytest.approx(BEGIN_S, abs=REPORT_S)
    patient = Job(step_timeout_s=400.0)
    patient.pass_by(395.0)
    assert not any(one.overdue for one in patient.suspicions)


def test_but_who_wakes_up_may_receive_something() -> None:
    job = Job(step_timeout_s=5.0)
    job.wakes = {1}
    job.pass_by(2 * TIMEOUT_S)
    assert job.suspicions and not any(one.overdue for one in job.suspicions)


def test_a_look_comes_when_nobody_has_woken_up_for_as_long_as_it_takes() -> None:
    job = Job(ranks=1)
    job.wakes = {0}
    job.pass_by(100.0)
    job.wakes = set()
    job.idle[0] = 0.0
    job.pass_by(2 * TIMEOUT_S)
    assert any(abs(one.ago_s - TIMEOUT_S) <= REPORT_S for one in job.suspicions)


@pytest.mark.parametrize(
    "shown", [{"milestones": {Milestone.ARRIVED: 1.0}}, {"printed_step": 3},
              {"milestones": {Milestone.STEPPED: 1.0}}]
)  # fmt: skip
def test_once_a_step_of_anybody_is_seen_nobody_is_watched_here(shown: dict[str, object]) -> None:
    job = Job()
    job.tell(**shown)
    job.pass_by(10 * TIMEOUT_S)
    assert job.suspicions == []


def test_a_rank_of_which_nothing_is_known_may_do_anything() -> None:
    job = Job()
    del job.idle[1]
    job.pass_by(TIMEOUT_S - REPORT_S)
    assert job.suspicions == []


def test_ranks_that_have_ended_well_are_not_waited_for() -> None:
    job = Job()
    job.exited = {1}
    del job.idle[1]
    job.pass_by(LOOK_S + REPORT_S)
    assert [list(each_of(one.ranks)) for one in job.suspicions] == [[0]]
    saves = Job(ranks=1)
    saves.tell(phase=SAVES)
    assert not saves.watch.is_due(saves.now + TIMEOUT_S)


def test_the_next_attempt_begins_with_what_was_learned() -> None:
    job = Job()
    job.pass_by(300.0)
    job.work(20.0)
    job.begin(2)
    job.suspicions.clear()
    job.pass_by(PAUSES * 290.0)
    assert job.suspicions == []


def test_reports_of_other_attempts_and_ranks_that_do_not_exist_are_ignored() -> None:
    job = Job()
    for attempt, rank in ((2, 0), (1, 7), (1, -1)):
        page = WorkerReport(rank=rank, pid=1, progress=Progress(), milestones={}, idle_s=9e9)
        job.watch.observe(Report(node="n", attempt=attempt, workers=(page,)))
    assert not job.watch.is_due(job.now)


HOUR_S = 3600.0


def rested(place: str) -> Job:
    """It has been idle for an hour there, and has gone on."""
    job = Job()
    job.work(100.0)
    job.place = place
    job.pass_by(HOUR_S)
    job.suspicions.clear()
    job.work(100.0)
    return job


def test_a_long_sleep_that_is_meant_gives_no_more_time_to_what_stands_elsewhere() -> None:
    job = rested("nap (job.py:3)")
    job.place = "take (job.py:5)"
    job.pass_by(TIMEOUT_S + REPORT_S)
    assert {one.idle_limit_s for one in job.suspicions} == {TIMEOUT_S}
    assert job.suspicions[-1].ago_s == pytest.approx(TIMEOUT_S, abs=REPORT_S)


def test_nor_do_sleeps_that_end_shortly_before_the_limit() -> None:
    """Each is looked at in time to know where it is."""
    job = Job()
    job.place = "nap (job.py:3)"
    for _ in range(4):
        job.work(100.0)
        job.pass_by(TIMEOUT_S - 2 * REPORT_S)
    job.work(100.0)
    job.suspicions.clear()
    job.place = "take (job.py:5)"
    job.pass_by(TIMEOUT_S + REPORT_S)
    assert {one.idle_limit_s for one in job.suspicions} == {TIMEOUT_S}


def test_at_its_own_place_it_does_in_later_attempts_too() -> None:
    job = rested("nap (job.py:3)")
    job.begin(2)
    job.work(100.0)
    job.pass_by(HOUR_S)
    assert all(one.idle_limit_s == PAUSES * HOUR_S for one in job.suspicions)
    assert len(job.suspicions) < 3, "it is looked at once, to see where it stands"


def test_a_sleep_of_which_no_look_has_seen_where_it_was_may_be_at_any_place() -> None:
    job = rested("")
    job.place = "take (job.py:5)"
    job.pass_by(HOUR_S)
    assert all(one.idle_limit_s == PAUSES * HOUR_S for one in job.suspicions)


def test_so_may_those_at_more_places_than_are_kept() -> None:
    spells = IdleSpells()
    for number in range(PLACES_MAX + 1):
        spells.over(float(number), (f"at (job.py:{number})",))
    assert spells.at(set()) == spells.longest_s == PLACES_MAX
    spells.over(500.0, ("at (job.py:1)",))
    assert spells.at({("at (job.py:1)",)}) == 500.0 and spells.at(set()) == PLACES_MAX


PLACES = st.sampled_from(["", "nap (job.py:3)", "take (job.py:5)"])


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200), PLACES), max_size=20))
@settings(max_examples=examples(60), deadline=None)
def test_nobody_is_said_to_be_overdue_who_has_been_idle_for_as_long_there_before(
    spells: list[tuple[int, int, str]],
) -> None:
    job = Job(ranks=1, timeout_s=50.0, step_timeout_s=5.0)
    unseen, there = 0.0, dict[str, float]()
    for works, idles, place in spells:
        job.place = ""
        job.work(works * REPORT_S)
        job.suspicions.clear()
        job.place = place
        job.pass_by(idles * REPORT_S)
        before = max(unseen, there.get(place, 0.0))
        for one in job.suspicions:
            assert one.idle_limit_s is not None and one.idle_limit_s >= PAUSES * before
            assert not one.overdue or one.ago_s >= max(BEGIN_S, PAUSES * before)
        if place and job.suspicions:
            there[place] = max(idles * REPORT_S, there.get(place, 0.0))
        else:
            unseen = max(idles * REPORT_S, unseen)
