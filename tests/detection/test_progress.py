"""Reports of single ranks become facts about all of them, each told once."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.detection import ProgressReducer
from holdfast.events import Milestone, MilestoneReached, Progress, Progressed
from holdfast.messages import SAVES, Report, WorkerReport
from tests.more import examples


def worker(
    rank: int,
    step: int | None = None,
    *,
    ago_s: float = 0.0,
    stalls: tuple[float, float] = (0.0, 0.0),
    restored_step: int = 0,
    reached: dict[str, float] | None = None,
) -> WorkerReport:
    return WorkerReport(
        rank=rank,
        pid=1000 + rank,
        progress=Progress(step=step, step_ago_s=ago_s, data_wait_s=stalls[0], snapshot_s=stalls[1]),
        milestones={Milestone(name): age for name, age in (reached or {}).items()},
        restored_step=restored_step,
    )


def report(*workers: WorkerReport, attempt: int = 1) -> Report:
    return Report(node="n", attempt=attempt, workers=workers)


def reducer(world_size: int = 2) -> ProgressReducer:
    fresh = ProgressReducer()
    fresh.begin(1, world_size, 100.0)
    return fresh


def test_a_milestone_is_told_when_the_last_rank_reaches_it_and_only_once() -> None:
    ranks = reducer()
    assert ranks.observe(report(worker(0, reached={"arrived": 0.5})), 101.0) == []
    [told] = ranks.observe(report(worker(1, reached={"arrived": 0.2})), 103.0)
    assert isinstance(told, MilestoneReached)
    assert (told.attempt, told.milestone) == (1, Milestone.ARRIVED)
    assert told.ago_s == pytest.approx(0.2)
    assert (
        ranks.observe(
            report(worker(0, reached={"arrived": 3.5}), worker(1, reached={"arrived": 1.2})), 104.0
        )
        == []
    )


@pytest.mark.parametrize("what", [Milestone.OUTPUT, Milestone.STEPPED])
def test_the_first_output_and_step_seen_are_told_when_one_rank_has_it(what: Milestone) -> None:
    four = reducer(4)
    told = four.observe(report(worker(2, None, reached={what: 0.5})), 10.0)
    assert [e.milestone for e in told if isinstance(e, MilestoneReached)] == [what]
    assert four.observe(report(worker(0, None, reached={what: 0.1})), 10.5) == []


def test_steps_that_are_only_seen_are_no_progress_of_the_attempt() -> None:
    ranks = reducer()
    seen = [msgspec.structs.replace(worker(r, None), optimizer_steps=1000) for r in (0, 1)]
    assert ranks.observe(report(*seen), 101.0) == []
    assert ranks.flush(200.0) is None
    assert ranks.training(frozenset(), 101.0) == 0


def test_for_how_long_nothing_ran_is_told_once_also_where_no_steps_are_reported() -> None:
    ranks = reducer()
    plain = worker(0, None)
    slept = msgspec.structs.replace(plain, progress=Progress(paused_s=30.0))
    assert ranks.observe(report(plain, worker(1, None)), 110.0) == []
    [told] = ranks.observe(report(slept), 120.0)
    assert isinstance(told, Progressed)
    assert (told.progress.paused_s, told.progress.step) == (30.0, None)
    assert ranks.observe(report(slept), 180.0) == []


@pytest.mark.parametrize("phase", ["finished", "ending", SAVES])
def test_a_rank_trains_if_it_says_so_now_and_has_not_left_its_loop(phase: str) -> None:
    four = reducer(4)
    left = msgspec.structs.replace(worker(1, 7), phase=phase)
    four.observe(report(worker(0, 7), left, worker(2, 7), worker(3, None)), 10.0)
    assert four.training(frozenset(), 11.0) == 2
    assert four.training({2}, 11.0) == 1
    assert four.training(frozenset(), 30.0) == 0
    four.observe(report(worker(0, 7)), 30.0)
    assert four.training(frozenset(), 31.0) == 1


def test_the_age_of_a_milestone_is_that_of_the_rank_that_was_last_not_of_the_last_report() -> None:
    ranks = reducer()
    ranks.observe(report(worker(0, reached={"joined": 0.0})), 110.0)
    [told] = ranks.observe(report(worker(1, reached={"joined": 8.0})), 111.0)
    assert isinstance(told, MilestoneReached)
    assert told.ago_s == pytest.approx(1.0)


def test_restored_names_the_step_and_the_milestones_come_in_order() -> None:
    ranks = reducer(1)
    seen = {"arrived": 3.0, "joined": 2.0, "restored": 1.0}
    told = ranks.observe(report(worker(0, 42, restored_step=42, reached=seen)), 104.0)
    assert [(e.milestone, e.step) for e in told if isinstance(e, MilestoneReached)] == [
        (Milestone.ARRIVED, None),
        (Milestone.JOINED, None),
        (Milestone.RESTORED, 42),
    ]


def test_progress_is_that_of_the_slowest_rank_and_the_worst_stalls() -> None:
    ranks = reducer()
    ranks.observe(report(worker(0, 7, stalls=(0.5, 0.1))), 101.0)
    ranks.observe(report(worker(1, 6, ago_s=0.5, stalls=(0.2, 0.4))), 102.0)
    told = ranks.flush(103.0)
    assert told is not None
    assert told.progress.step_ago_s == pytest.approx(1.5)
    assert told.progress == Progress(
        step=6, step_ago_s=told.progress.step_ago_s, data_wait_s=0.5, snapshot_s=0.4
    )


def test_the_step_ends_when_the_last_rank_has_done_it() -> None:
    ranks = reducer()
    ranks.observe(report(worker(0, 6, ago_s=0.0)), 101.0)
    ranks.observe(report(worker(1, 6, ago_s=1.0)), 101.5)
    ranks.observe(report(worker(1, 7, ago_s=0.0)), 102.0)
    told = ranks.flush(102.0)
    assert told is not None
    assert told.progress.step == 6
    assert told.progress.step_ago_s == pytest.approx(1.0)


def test_progress_is_told_every_five_seconds_and_not_more_often() -> None:
    ranks = reducer(1)
    told = [
        e
        for tick in range(1, 200)
        for e in ranks.observe(report(worker(0, tick)), 100.0 + tick / 10)
    ]
    assert [e.progress.step for e in told if isinstance(e, Progressed)] == [50, 100, 150]


def test_a_long_attempt_is_told_of_once_a_minute() -> None:
    ranks, day = reducer(1), range(1, 86_400)
    told = [e for at in day for e in ranks.observe(report(worker(0, at)), 100.0 + at)]
    times = [e.progress.step for e in told if isinstance(e, Progressed) and e.progress.step]
    gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert gaps[:10] == [5] * 10
    assert gaps[-10:] == [60] * 10
    assert len(times) < 2_000


def test_flush_tells_what_is_new_and_nothing_twice() -> None:
    ranks = reducer(1)
    assert ranks.flush(100.5) is None
    ranks.observe(report(worker(0, 3)), 101.0)
    assert ranks.flush(101.2) is not None
    assert ranks.flush(102.0) is None
    ranks.observe(report(worker(0, 4)), 102.1)
    assert ranks.flush(102.1) is not None


def test_caught_up_comes_after_the_progress_until_then() -> None:
    ranks = reducer(1)
    seen = {"first_step": 0.4, "caught_up": 0.4}
    told = ranks.observe(report(worker(0, 9, stalls=(2.0, 0.0), reached=seen)), 101.0)
    kinds = [e.milestone if isinstance(e, MilestoneReached) else "progress" for e in told]
    assert kinds == [Milestone.FIRST_STEP, "progress", Milestone.CAUGHT_UP]
    assert isinstance(told[-1], MilestoneReached) and told[-1].step == 9


def test_nothing_is_told_of_a_script_that_reports_no_steps() -> None:
    ranks = reducer()
    told = ranks.observe(
        report(worker(0, reached={"started": 1.0}), worker(1, reached={"started": 2.0})), 120.0
    )
    assert [type(e) for e in told] == [MilestoneReached]
    assert ranks.flush(130.0) is None


def test_progress_waits_until_every_rank_reports() -> None:
    ranks = reducer()
    assert ranks.observe(report(worker(0, 5)), 120.0) == []
    assert ranks.flush(121.0) is None


def test_reports_of_other_attempts_and_impossible_ranks_are_ignored() -> None:
    ranks = reducer(1)
    assert ranks.observe(report(worker(0, 5, reached={"arrived": 0.0}), attempt=2), 101.0) == []
    assert ranks.observe(report(worker(7, 5, reached={"arrived": 0.0})), 101.0) == []
    assert ranks.newest() == {}


def test_a_new_attempt_starts_from_nothing() -> None:
    ranks = reducer(1)
    ranks.observe(report(worker(0, 5, reached={"arrived": 0.0})), 101.0)
    ranks.begin(2, 1, 110.0)
    assert ranks.newest() == {}
    [told] = ranks.observe(report(worker(0, reached={"arrived": 0.0}), attempt=2), 111.0)
    assert told.attempt == 2


def test_the_newest_report_wins_over_an_old_one_that_comes_late() -> None:
    ranks = reducer(1)
    ranks.observe(report(worker(0, 5)), 101.0)
    ranks.observe(report(worker(0, 4)), 102.0)
    told = ranks.flush(103.0)
    assert told is not None and told.progress.step == 5
    assert ranks.newest()[0].progress.step == 5


MOVES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 2), st.floats(0, 5)), max_size=80
)


@given(MOVES)
@settings(max_examples=examples(200), deadline=None)
def test_the_reduced_step_is_always_the_minimum_of_all_ranks(
    moves: list[tuple[int, int, float, float]],
) -> None:
    ranks, now = reducer(4), 100.0
    steps: dict[int, int] = {}
    ends: dict[tuple[int, int], float] = {}
    for rank, stride, gap, ago_s in moves:
        now += gap
        before = steps.get(rank)
        steps[rank] = (before or 0) + stride
        if steps[rank] != before:
            ends[rank, steps[rank]] = now - ago_s
        ranks.observe(report(worker(rank, steps[rank], ago_s=ago_s)), now)
    last = worker(0, steps.get(0, 0), stalls=(1e9, 0.0))  # surely news
    found = [*ranks.observe(report(last), now), ranks.flush(now)]
    told = next((e for e in found if isinstance(e, Progressed)), None)
    assert (told is not None) == (len(steps.keys() | {0}) == 4)
    if told is not None:
        step = min(steps.get(rank, 0) for rank in range(4))
        assert told.progress.step == step
        there = [end for (rank, s), end in ends.items() if s == step == steps[rank]]
        assert told.progress.step_ago_s <= now - max(there, default=now) + 1e-6


@given(st.permutations([(r, m) for r in range(3) for m in ("arrived", "joined", "restored")]))
def test_each_milestone_is_told_exactly_once_in_whatever_order_reports_come(
    order: list[tuple[int, str]],
) -> None:
    ranks, told = reducer(3), []
    seen: dict[int, dict[str, float]] = {0: {}, 1: {}, 2: {}}
    for number, (rank, name) in enumerate(order):
        seen[rank][name] = 0.0
        told += ranks.observe(report(worker(rank, reached=seen[rank])), 101.0 + number)
    names = [e.milestone for e in told if isinstance(e, MilestoneReached)]
    assert sorted(names) == ["arrived", "joined", "restored"]


def test_the_longest_pause_of_any_rank_is_told() -> None:
    ranks = reducer()
    seen = (worker(0, step=5), worker(1, step=6))
    paused = [
        msgspec.structs.replace(
            one, progress=msgspec.structs.replace(one.progress, paused_s=30.0 * one.rank)
        )
        for one in seen
    ]
    ranks.observe(report(*paused), 101.0)
    news = ranks.flush(101.0)
    assert news is not None and news.progress.paused_s == 30.0
