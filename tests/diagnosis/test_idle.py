"""Of ranks that do nothing, and of which no steps are seen, only those hang that nothing can wake,
or that others wait for; what may be meant is told."""

import msgspec
import pytest

from holdfast.diagnosis.idle import NOT_STOPPED, judge_idle, judge_over
from holdfast.events import HangJudged, HangSuspected, Judgement, Progress, in_rows
from holdfast.messages import WorkerReport
from holdfast.stacks import Activity, StackGroup, ThreadStack, Wait
from tests.diagnosis.test_hang import ALL_REDUCE, COMPILES, ranks

LIMIT_S = 600.0
LOCK = ("<module> (job.py:9)", "take (job.py:4)")
READ = ("<module> (job.py:9)", "read (job.py:7)")


def idle(
    *who: int,
    at: tuple[str, ...] = LOCK,
    waits: str = "lock",
    does: str = "still",
    state: str = "sleeping",
    gpu_busy: bool = False,
    sleeps_in: str = "futex_do_wait",
) -> StackGroup:
    threads = (ThreadStack(name="MainThread", pid=1, frames=at),) if at else ()
    return StackGroup(
        ranks=in_rows(who), threads=threads, state=state, activity=Activity(does),
        gpu_busy=gpu_busy, waits=tuple(map(Wait, waits.split())), sleeps_in=sleeps_in,
        why="" if at else "py-spy: no Python",
    )  # fmt: skip


def judged(
    *groups: StackGroup,
    ago_s: float = LIMIT_S,
    asleep_s: float | None = None,
    overdue: bool = False,
    missing: tuple[str, ...] = (),
    some_exited: bool = False,
    suspected: tuple[int, ...] | None = None,
) -> HangJudged:
    everybody = sorted(
        rank for one in groups for row in one.ranks for rank in range(row[0], row[1] + 1)
    )
    suspicion = HangSuspected(
        attempt=4, ago_s=ago_s, budget_s=60.0, step=None, counted=0, step_s=0.0, trained=True,
        reported=False, overdue=overdue, idle_limit_s=LIMIT_S,
        ranks=in_rows(everybody if suspected is None else suspected),
    )  # fmt: skip
    pages = {
        rank: WorkerReport(
            rank=rank, pid=1, progress=Progress(), milestones={}, idle_s=ago_s,
            asleep_s=ago_s if asleep_s is None else asleep_s,
        )
        for rank in everybody
    }  # fmt: skip
    return judge_idle(suspicion, groups, missing, pages, some_exited=some_exited)


@pytest.mark.parametrize("waits", ["lock", "child", "child lock"])
def test_a_deadlock_hangs_after_the_limit_and_not_before(waits: str) -> None:
    found = judged(idle(0, waits=waits))
    assert found.judgement is Judgement.HANG and ranks(found) == [0]
    assert "take (job.py:4)" in found.summary and found.confidence == 0.9
    assert judged(idle(0, waits=waits), ago_s=LIMIT_S - 1.0).judgement is Judgement.SLOW


@pytest.mark.parametrize("waits", ["timer", "outside", "lock timer", "lock outside", ""])
def test_what_something_else_may_wake_is_told_and_not_stopped(waits: str) -> None:
    found = judged(idle(0, waits=waits), ago_s=100 * LIMIT_S)
    assert found.judgement is Judgement.SLOW and NOT_STOPPED in found.summary
    assert "rank 0 waits in take (job.py:4)" in found.summary


def test_a_program_that_sleeps_is_said_to() -> None:
    found = judged(idle(0, waits="timer", sleeps_in="hrtimer_nanosleep"), ago_s=90.0)
    assert found.summary.startswith("Idle for 90 s: rank 0 sleeps in take (job.py:4)")
    assert NOT_STOPPED not in found.summary, "nobody would stop it yet"


def test_who_wakes_up_now_and_then_has_no_deadlock() -> None:
    assert judged(idle(0), asleep_s=LIMIT_S - 10.0).judgement is Judgement.SLOW


@pytest.mark.parametrize("waits", ["outside", "timer", "lock outside", ""])
def test_one_rank_that_something_else_may_wake_may_wake_the_others(waits: str) -> None:
    assert judged(idle(0, 1), idle(2, at=READ, waits=waits)).judgement is Judgement.SLOW


@pytest.mark.parametrize(
    "group",
    [
        idle(0, does="moves"),
        idle(0, does="busy"),
        idle(0, does=""),
        idle(0, gpu_busy=True),
        idle(0, at=COMPILES),
    ],
)
def test_who_does_something_does_not_hang_whatever_the_job_file_says(group: StackGroup) -> None:
    assert judged(group, ago_s=1e6, overdue=True).judgement is Judgement.SLOW


def test_a_thread_beside_it_that_works_may_let_it_go() -> None:
    assert judged(idle(0, does="background")).judgement is Judgement.SLOW


@pytest.mark.parametrize("waits", ["timer", "outside", ""])
def test_where_the_job_file_limits_a_step_whoever_is_idle_for_longer_hangs(waits: str) -> None:
    found = judged(idle(0, at=READ, waits=waits), idle(1, waits="timer"), ago_s=130.0, overdue=True)
    assert found.judgement is Judgement.HANG


def test_a_rank_that_others_wait_for_in_a_collective_hangs_after_the_limit() -> None:
    waits, reads = idle(0, at=ALL_REDUCE, waits="outside"), idle(1, at=READ, waits="outside")
    found = judged(waits, reads)
    assert found.judgement is Judgement.HANG and ranks(found) == [1]
    assert "read (job.py:7)" in found.summary
    assert judged(waits, reads, ago_s=LIMIT_S - 1.0).judgement is Judgement.SLOW


@pytest.mark.parametrize("spins", ["busy", "background", "still"])
def test_also_where_those_that_wait_take_a_processor_for_it(spins: str) -> None:
    waits = idle(0, at=ALL_REDUCE, waits="", does=spins)
    found = judged(waits, idle(1, at=READ, waits="outside"), suspected=(1,))
    assert found.judgement is Judgement.HANG and ranks(found) == [1]


def test_but_not_one_that_wakes_up_as_one_that_receives_slowly_does() -> None:
    waits, reads = idle(0, at=ALL_REDUCE, waits="outside"), idle(1, at=READ, waits="outside")
    assert judged(waits, reads, asleep_s=LIMIT_S / 2).judgement is Judgement.SLOW


@pytest.mark.parametrize("overdue", [False, True])
def test_nor_one_that_has_a_thread_that_waits_for_the_network(overdue: bool) -> None:
    fetches = ThreadStack(name="t", pid=1, frames=("recv_into (socket.py:707)",))
    reads = idle(1, at=READ, waits="lock outside")
    reads = msgspec.structs.replace(reads, threads=(*reads.threads, fetches))
    waits = idle(0, at=ALL_REDUCE, waits="outside")
    assert judged(waits, reads, overdue=overdue).judgement is Judgement.SLOW


def test_but_not_one_that_sleeps_until_some_time() -> None:
    waits = idle(0, at=ALL_REDUCE, waits="outside")
    sleeps = idle(1, at=READ, waits="timer", sleeps_in="hrtimer_nanosleep")
    assert judged(waits, sleeps).judgement is Judgement.SLOW


def test_of_idle_ranks_the_one_is_told_that_the_others_wait_for() -> None:
    waits = idle(0, at=ALL_REDUCE, waits="outside")
    sleeps = idle(1, at=READ, waits="timer", sleeps_in="hrtimer_nanosleep")
    found = judged(waits, sleeps, ago_s=61.0)
    assert found.summary.startswith("Idle for 61 s: rank 1 sleeps in read (job.py:7)")


def test_one_rank_of_several_is_told_while_the_others_work() -> None:
    found = judged(idle(1, at=READ), idle(0, does="moves"), suspected=(1,))
    assert found.judgement is Judgement.SLOW
    assert "rank 1 waits for itself in read (job.py:7)" in found.summary
    assert ", while rank 0 works in take (job.py:4)" in found.summary


def test_a_program_that_is_not_python_is_told_by_where_it_waits_in_the_kernel() -> None:
    found = judged(idle(0, at=(), waits="lock"))
    assert found.judgement is Judgement.HANG
    assert "in futex_do_wait of the kernel (py-spy: no Python)" in found.summary


def test_workers_that_were_stopped_by_hand_are_left_alone_unless_others_wait_for_them() -> None:
    stopped = idle(0, 1, state="stopped", waits="")
    assert judged(stopped, overdue=True).judgement is Judgement.PAUSED
    alone = judged(idle(0), idle(1, state="stopped", waits=""), ago_s=61.0)
    assert alone.judgement is Judgement.HANG and ranks(alone) == [1]


def test_what_was_not_seen_is_not_judged() -> None:
    for found in (judged(), judged(idle(0), missing=("node-1",), overdue=True)):
        assert found.judgement is Judgement.UNKNOWN


def test_that_it_is_over_is_told() -> None:
    assert (judge_over(3, 1).judgement, judge_over(3, 1).summary) == (
        Judgement.OVER, "Rank 1 does something again",
    )  # fmt: skip
