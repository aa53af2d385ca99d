"""Looks at workers without progress: who hangs, who is slow, and who is left alone."""

from collections.abc import Sequence

import pytest

from holdfast.collectives import Collective, GroupLog
from holdfast.diagnosis.hang import (
    EXTERNAL_S,
    LINES_MAX,
    PARTED_S,
    SPIN_S,
    TOGETHER_S,
    apart,
    judge,
)
from holdfast.events import HangJudged, HangSuspected, Judgement, Progress, each_of, in_rows
from holdfast.messages import WorkerReport
from holdfast.stacks import Activity, StackGroup, ThreadStack, joined

TIMEOUT_S = 600.0
SCRIPT = "<module> (train.py:50)"
ALL_REDUCE = (SCRIPT, "all_reduce (torch/distributed/distributed_c10d.py:2806)")
BACKWARD = (
    "<module> (train.py:51)",
    "Tensor.backward (torch/_tensor.py:623)",
    "_engine_run_backward (torch/autograd/graph.py:979)",
)
SLEEP = (SCRIPT, "read_batch (data.py:12)")
LOADER = (SCRIPT, "_get_data (torch/utils/data/dataloader.py:1240)", "get (queue.py:171)")


def stands(
    *ranks: int,
    at: tuple[str, ...] = ALL_REDUCE,
    does: str = "still",
    state: str = "sleeping",
    why: str = "",
    sleeps_in: str = "",
    beside: tuple[str, ...] = (),
    gpu_busy: bool = False,
) -> StackGroup:
    main = at or beside  # a main thread without a frame is seen where another one is
    threads = [ThreadStack(name="MainThread", pid=1, frames=at)] if main else []
    threads += [ThreadStack(name="other", pid=1, frames=beside)] if beside else []
    return StackGroup(
        ranks=in_rows(ranks), threads=tuple(threads), state=state, why=why,
        activity=Activity(does), sleeps_in=sleeps_in, gpu_busy=gpu_busy,
    )  # fmt: skip


def judged(
    *groups: StackGroup,
    ago_s: float = 3.0,
    missing: tuple[str, ...] = (),
    steps: dict[int, int] | None = None,
    trained: bool = True,
    step_s: float = 0.05,
    reported: bool = True,
    section: str = "",
    overdue: bool = False,
    collectives: Sequence[GroupLog] = (),
    some_exited: bool = False,
) -> HangJudged:
    suspicion = HangSuspected(
        attempt=4,
        ago_s=ago_s,
        budget_s=2.0,
        step=7,
        step_s=step_s,
        trained=trained,
        reported=reported,
        overdue=overdue,
        ranks=(),
    )
    pages = {
        rank: WorkerReport(
            rank=rank,
            pid=1,
            progress=Progress(step=step),
            milestones={},
            phase="step",
            section=section,
        )
        for rank, step in (steps or {}).items()
    }
    looks = groups, missing, pages, TIMEOUT_S, collectives
    found = judge(suspicion, *looks, some_exited=some_exited)
    assert found.attempt == 4 and found.ago_s == ago_s
    return found


def ranks(found: HangJudged) -> list[int]:
    return list(each_of(found.ranks))


COMPILES = (
    "<module> (train.py:40)",
    "__call__ (torch/_dynamo/convert_frame.py:1999)",
    "load (torch/_inductor/codecache.py:2400)",
    "Popen.communicate (subprocess.py:1196)",
)  # as seen while the compiler of C++ ran for minutes on a busy machine
LOCKED = (*COMPILES[:3], "BaseFileLock._poll_until_acquired (filelock/_api.py:1177)")
COMPILED = (
    "<module> (train.py:40)",
    "compile_wrapper (torch/_dynamo/eval_frame.py:1000)",
    "__call__ (torch/_inductor/output_code.py:600)",
)


@pytest.mark.parametrize("does", ["still", "background", "busy"])
def test_who_compiles_or_waits_for_the_compiler_of_another_rank_is_given_the_whole_time(
    does: str,
) -> None:
    both = stands(0, at=LOCKED), stands(1, at=COMPILES, does=does)
    for groups in (both, (stands(0), both[1])):
        found = judged(*groups, ago_s=TIMEOUT_S - 1)
        assert found.judgement is Judgement.SLOW and "compiles in" in found.summary
        assert judged(*groups, ago_s=TIMEOUT_S).judgement is Judgement.HANG
    assert judged(stands(0), stands(1, at=COMPILED)).judgement is Judgement.HANG


@pytest.mark.parametrize("waiting", [ALL_REDUCE, BACKWARD])
def test_one_rank_that_stands_apart_while_the_others_wait_hangs(waiting: tuple[str, ...]) -> None:
    found = judged(stands(3, at=SLEEP), stands(0, 1, 2, 4, at=waiting))
    assert found.judgement is Judgement.HANG and ranks(found) == [3]
    assert found.summary.startswith("Rank 3 hung after step 7: in read_batch (data.py:12)")
    assert "while 4 ranks were in" in found.summary and found.confidence >= 0.9


def test_of_two_ranks_the_one_that_does_not_wait() -> None:
    assert ranks(judged(stands(1, at=SLEEP), stands(0))) == [1]


def test_a_function_of_the_script_below_backward_is_no_wait() -> None:
    hook = (*BACKWARD, "hook (train.py:9)")
    assert ranks(judged(stands(2, at=hook), stands(0, 1, 3, at=BACKWARD))) == [2]


def test_waiters_that_spin_in_the_driver_do_not_hide_who_sleeps() -> None:
    """On a GPU a rank that waits for a result uses a whole processor."""
    item = ("<module> (train.py:60)",)
    found = judged(stands(5, at=SLEEP), stands(0, 1, 2, 3, 4, at=item, does="busy"))
    assert found.judgement is Judgement.HANG and ranks(found) == [5]


def test_the_page_of_a_rank_tells_where_stacks_are_alike() -> None:
    found = judged(
        stands(0, 1, 2, 3), ago_s=TOGETHER_S + 1, steps={0: 7, 1: 7, 2: 6, 3: 7}
    )  # fmt: skip
    assert found.judgement is Judgement.HANG and ranks(found) == [2]


def test_all_at_one_place_are_given_time_for_a_link_to_come_back() -> None:
    assert judged(stands(0, 1, 2)).judgement is Judgement.SLOW
    found = judged(stands(0, 1, 2), ago_s=TOGETHER_S + 1)
    assert found.judgement is Judgement.HANG and ranks(found) == []
    assert found.summary.startswith("All ranks hung after step 7: rank 0 in all_reduce")


def test_ranks_that_wait_for_each_other_at_different_places_hang_together() -> None:
    barrier = (SCRIPT, "barrier (torch/distributed/distributed_c10d.py:4793)")
    found = judged(stands(0), stands(1, at=barrier))
    assert found.judgement is Judgement.HANG and ranks(found) == []
    assert "rank 0 in all_reduce" in found.summary and "rank 1 in barrier" in found.summary


def test_who_moves_is_slow_until_the_time_is_up() -> None:
    groups = stands(0, at=SLEEP, does="moves"), stands(1, 2)
    found = judged(*groups, ago_s=TIMEOUT_S - 1)
    assert found.judgement is Judgement.SLOW and ranks(found) == []
    assert found.summary == "No step for 599 s: rank 0 works in read_batch (data.py:12)"
    assert judged(*groups, ago_s=TIMEOUT_S).judgement is Judgement.HANG


def test_who_computes_at_one_place_is_given_a_minute() -> None:
    groups = stands(1, at=SLEEP, does="busy"), stands(0, 2)
    assert judged(*groups, ago_s=SPIN_S - 1).judgement is Judgement.SLOW
    assert judged(*groups, ago_s=SPIN_S + 1).judgement is Judgement.HANG
    long = judged(*groups, ago_s=SPIN_S + 1, step_s=30.0)
    assert long.judgement is Judgement.SLOW, "one step takes half of that"


def test_a_wait_in_the_kernel_for_a_disk_is_work() -> None:
    groups = stands(1, at=SLEEP, state="disk-sleep"), stands(0, 2)
    assert judged(*groups).judgement is Judgement.SLOW


def test_data_and_storage_are_waited_for() -> None:
    upload = (SCRIPT, "put (fsspec/asyn.py:97)", "read (ssl.py:1170)")
    for place in (LOADER, upload):
        groups = stands(0, at=place), stands(1, 2)
        assert judged(*groups).judgement is Judgement.SLOW
        assert judged(*groups, ago_s=EXTERNAL_S + 1).judgement is Judgement.HANG


@pytest.mark.parametrize("sleeps_in", ["request_wait_answer", "rpc_wait_bit_killable"])
def test_a_wait_for_a_file_system_is_work_whatever_state_the_kernel_shows(sleeps_in: str) -> None:
    """A server that fails over takes half a minute and more."""
    groups = stands(1, at=SLEEP, sleeps_in=sleeps_in), stands(0, 2)
    assert judged(*groups, ago_s=SPIN_S - 1).judgement is Judgement.SLOW
    found = judged(*groups, ago_s=SPIN_S + 1)
    assert found.judgement is Judgement.HANG and ranks(found) == [1]
    assert f"(sleeping in {sleeps_in}, still)" in found.evidence[0]


@pytest.mark.parametrize("sleeps_in", ["pipe_read", "sk_wait_data"])
def test_a_pipe_or_socket_that_only_the_kernel_shows_is_waited_for(sleeps_in: str) -> None:
    """As of a library that is not Python's."""
    groups = stands(1, at=SLEEP, sleeps_in=sleeps_in), stands(0, 2)
    assert judged(*groups, ago_s=20.0).judgement is Judgement.SLOW
    found = judged(*groups, ago_s=EXTERNAL_S + 1)
    assert found.judgement is Judgement.HANG and ranks(found) == [1]
    assert f"(sleeping in {sleeps_in}, still)" in found.evidence[0]


@pytest.mark.parametrize("sleeps_in", ["futex_do_wait", "hrtimer_nanosleep", ""])
def test_a_lock_or_a_sleep_is_not(sleeps_in: str) -> None:
    found = judged(stands(1, at=SLEEP, sleeps_in=sleeps_in), stands(0, 2))
    assert found.judgement is Judgement.HANG and ranks(found) == [1]


def test_nor_is_a_store_that_ranks_meet_at() -> None:
    store = (SCRIPT, "new_group (torch/distributed/distributed_c10d.py:5000)")
    groups = stands(1, at=store, sleeps_in="poll_schedule_timeout"), stands(0, 2)
    assert judged(*groups).judgement is Judgement.HANG


@pytest.mark.parametrize(
    "busy",
    [
        stands(1, at=SLEEP, does="busy"),
        stands(1, at=SLEEP, does="moves"),
        stands(1, at=LOADER),
        stands(1, at=SLEEP, state="disk-sleep"),
    ],
)
def test_where_the_job_file_says_how_long_a_step_may_take_work_is_given_no_longer(
    busy: StackGroup,
) -> None:
    groups = busy, stands(0, 2)
    assert judged(*groups, ago_s=20.0).judgement is Judgement.SLOW
    found = judged(*groups, ago_s=5.8, overdue=True)
    assert found.judgement is Judgement.HANG and ranks(found) == [1]


def test_but_for_a_compiler_and_for_who_wants_it_so() -> None:
    compiles = (SCRIPT, "compile (torch/_dynamo/convert_frame.py:7)")
    slow = judged(stands(1, at=compiles, does="moves"), stands(0), ago_s=50.0, overdue=True)
    assert slow.judgement is Judgement.SLOW
    asleep = judged(stands(0, 1, state="stopped"), ago_s=50.0, overdue=True)
    assert asleep.judgement is Judgement.PAUSED
    named = judged(
        stands(1, at=SLEEP, does="moves"), stands(0), ago_s=50.0, overdue=True, steps={0: 7, 1: 7},
        section="eval",
    )  # fmt: skip
    assert named.judgement is Judgement.SLOW
    over = {0: 8, 1: 8}  # since it was suspected
    gone_on = judged(stands(1, does="moves"), stands(0), ago_s=5.8, overdue=True, steps=over)
    assert gone_on.judgement is Judgement.SLOW
    unseen = judged(stands(0), missing=("node-2",), ago_s=50.0, overdue=True)
    assert unseen.judgement is Judgement.UNKNOWN


def test_a_backward_pass_that_is_compiled_in_a_thread_of_autograd_is_no_hang() -> None:
    """On a GPU the main thread waits for it; other ranks may have found theirs in a cache."""
    backward = "backward (torch/_functorch/_aot_autograd/runtime_wrappers.py:2500)"
    compiles = backward, "bw_compiler (torch/_inductor/compile_fx.py:2400)", "pass_ (x.py:1)"
    alone = stands(1, at=BACKWARD, does="background", beside=compiles), stands(0, 2)
    together = stands(0, 1, 2, at=BACKWARD, does="background", beside=compiles)
    for groups in (alone, (together,)):
        found = judged(*groups, ago_s=SPIN_S, steps={0: 7, 1: 6, 2: 7})
        assert found.judgement is Judgement.SLOW and "compiles" in found.summary


def test_who_compiles_is_seen_beside_ranks_that_do_the_same_but_for_that() -> None:
    compiles = ("backward (torch/_functorch/x.py:1)", "load (torch/_inductor/codecache.py:9)")
    beside = [(), compiles, ()]
    groups = [
        stands(rank, at=BACKWARD, does="background", beside=one) for rank, one in enumerate(beside)
    ]
    found = judged(*joined(groups), ago_s=SPIN_S)
    assert found.judgement is Judgement.SLOW and "rank 1 compiles" in found.summary


def test_what_was_compiled_is_no_compiler_while_it_runs() -> None:
    graph = "cudagraphify.<locals>.run (torch/_inductor/compile_fx.py:1919)"
    assert judged(stands(1, at=(SCRIPT, graph)), stands(0, 2)).judgement is Judgement.HANG


def test_others_that_move_do_not_wait_for_anybody() -> None:
    found = judged(stands(0, at=SLEEP), stands(1, 2, 3, at=(SCRIPT,), does="moves"))
    assert found.judgement is Judgement.SLOW


def test_before_the_first_step_threads_in_the_background_may_load() -> None:
    groups = stands(0, at=SLEEP, does="background"), stands(1, 2)
    assert judged(*groups, trained=False, ago_s=130.0).judgement is Judgement.SLOW
    assert judged(*groups).judgement is Judgement.HANG


def test_a_rank_that_was_stopped_is_named_and_all_of_them_are_let_be() -> None:
    found = judged(stands(2, at=SLEEP, state="stopped"), stands(0, 1))
    assert found.judgement is Judgement.HANG and ranks(found) == [2]
    assert found.summary == "Rank 2 was stopped by a signal (SIGSTOP) after step 7"
    everybody = judged(stands(0, 1, state="stopped"), ago_s=10 * TIMEOUT_S)
    assert everybody.judgement is Judgement.PAUSED


def test_ranks_that_were_stopped_are_named_where_the_others_went_on_to_their_end() -> None:
    found = judged(stands(1, state="stopped"), some_exited=True)
    assert found.judgement is Judgement.HANG and ranks(found) == [1]
    assert "stopped by a signal" in found.summary


@pytest.mark.parametrize(
    "debugged",
    [
        stands(1, at=(SCRIPT, "trace_dispatch (bdb.py:90)", "interaction (pdb.py:359)")),
        stands(1, at=SLEEP, state="tracing-stop"),
        stands(1, at=(SCRIPT, "wait (site-packages/debugpy/server/x.py:1)")),
    ],
)
def test_who_is_debugged_is_left_alone_for_ever(debugged: StackGroup) -> None:
    found = judged(debugged, stands(0), ago_s=10 * TIMEOUT_S)
    assert found.judgement is Judgement.PAUSED and "rank 1" in found.summary


def test_nobody_is_blamed_before_all_have_been_looked_at() -> None:
    found = judged(stands(3, at=SLEEP), stands(0, 1), missing=("node-2",))
    assert found.judgement is Judgement.UNKNOWN and "node-2" in found.summary
    ended = StackGroup(ranks=((1, 1),), why="the process has ended")
    assert judged(ended, stands(0)).judgement is Judgement.UNKNOWN
    assert judged().judgement is Judgement.UNKNOWN


def test_nobody_who_was_seen_is_blamed_for_who_was_not_however_long_it_takes() -> None:
    """Rank 3 is behind by what was read last, long ago; its neighbour has not answered."""
    behind = {0: 9, 1: 9, 3: 5}
    for told in (
        judged(stands(0, 1, 3), missing=("node-2",), steps=behind, ago_s=2 * TIMEOUT_S),
        judged(
            stands(0, 1, 3), StackGroup(ranks=((2, 2),), why="the process has ended"),
            steps=behind, ago_s=2 * TIMEOUT_S,
        ),
    ):  # fmt: skip
        assert (told.judgement, ranks(told)) == (Judgement.HANG, [])


def test_without_stacks_only_time_and_idle_processors_tell() -> None:
    blind = stands(0, 1, 2, at=(), why="py-spy: Permission denied")
    assert judged(blind).judgement is Judgement.SLOW
    found = judged(blind, ago_s=31.0)
    assert found.judgement is Judgement.HANG and found.confidence <= 0.5


def test_evidence_says_who_stood_where_and_stays_small() -> None:
    groups = [stands(rank, at=(SCRIPT, f"f{rank} (a.py:1)")) for rank in range(40)]
    found = judged(*groups, ago_s=TOGETHER_S + 1)
    assert len(found.evidence) == LINES_MAX
    assert found.evidence[0] == "rank 0 (sleeping, still): f0 (a.py:1) < <module> (train.py:50)"


def test_a_single_rank_that_waits_may_be_meant_to() -> None:
    assert judged(stands(0, at=SLEEP)).judgement is Judgement.SLOW
    assert judged(stands(0, at=SLEEP), ago_s=EXTERNAL_S + 1).judgement is Judgement.HANG


@pytest.mark.parametrize(
    "groups",
    [
        (stands(0, at=SLEEP, does="moves"), stands(1, 2)),
        (stands(0, at=SLEEP, does="busy"), stands(1, 2)),
        (stands(0, at=LOADER), stands(1, 2)),
        (stands(0, at=SLEEP),),
    ],
)
def test_a_script_that_reports_no_steps_may_do_other_things_after_its_training(
    groups: tuple[StackGroup, ...],
) -> None:
    found = judged(*groups, ago_s=100 * TIMEOUT_S, reported=False)
    assert found.judgement is Judgement.SLOW


def test_but_not_stand_still_while_others_wait_for_it() -> None:
    found = judged(stands(3, at=SLEEP), stands(0, 1, 2), reported=False)
    assert found.judgement is Judgement.HANG and ranks(found) == [3]
    together = judged(stands(0, 1, 2), ago_s=TOGETHER_S + 1, reported=False)
    assert together.judgement is Judgement.HANG


def test_the_section_of_the_script_is_named() -> None:
    groups, steps = (stands(0, at=SLEEP, does="moves"), stands(1, 2)), {0: 7, 1: 7, 2: 7}
    assert judged(*groups, steps=steps, section="eval").summary.endswith(' in section "eval"')
    late = judged(*groups, ago_s=TIMEOUT_S, steps=steps, section="eval")
    assert ' in section "eval", while 2 ranks were in' in late.summary


# ── work of GPUs ──────────────────────────────────────────────────────────────────────────────

ITEM = ("<module> (train.py:60)",)
SYNCHRONIZE = (SCRIPT, "synchronize (torch/cuda/__init__.py:1200)")


@pytest.mark.parametrize("at", [ITEM, SYNCHRONIZE])
@pytest.mark.parametrize("does", ["still", "background"])
def test_who_stands_still_for_a_kernel_of_its_gpu_is_given_a_minute(
    at: tuple[str, ...], does: str
) -> None:
    alone, waiting = stands(2, at=at, does=does, gpu_busy=True), stands(0, 1, 3, gpu_busy=True)
    slow = judged(alone, waiting, ago_s=SPIN_S - 1)
    assert slow.judgement is Judgement.SLOW and "rank 2 works in" in slow.summary
    found = judged(alone, waiting, ago_s=SPIN_S + 1)
    assert found.judgement is Judgement.HANG and ranks(found) == [2]
    assert f"rank 2 (sleeping, {does}, its GPU busy)" in found.evidence[0]
    idle = stands(2, at=ITEM, does=does), waiting
    assert judged(*idle).judgement is Judgement.HANG, "the others' GPUs say nothing of it"
    single = stands(0, at=ITEM, gpu_busy=True)
    assert judged(single, ago_s=SPIN_S - 1).judgement is Judgement.SLOW
    assert judged(single, ago_s=SPIN_S + 1).judgement is Judgement.HANG


def test_kernels_that_wait_in_a_collective_exonerate_nobody() -> None:
    """NCCL's keep a GPU at 100 % for as long as they wait."""
    everybody = stands(0, 1, 2, at=ITEM, gpu_busy=True)
    found = judged(everybody, ago_s=TOGETHER_S + 1)
    assert found.judgement is Judgement.HANG and ranks(found) == []
    elsewhere = stands(0, gpu_busy=True), stands(1, at=BACKWARD, gpu_busy=True)
    assert judged(*elsewhere).judgement is Judgement.HANG
    behind = judged(
        stands(0, 1, 2, 3, gpu_busy=True), ago_s=TOGETHER_S + 1, steps={0: 7, 1: 7, 2: 6, 3: 7}
    )
    assert behind.judgement is Judgement.HANG and ranks(behind) == [2]
    neighbour = stands(2, at=SLEEP), stands(3, at=ITEM, gpu_busy=True), stands(0, 1, 4, 5)
    assert judged(*neighbour).judgement is Judgement.HANG, "it may wait for the one that sleeps"


def log(*entered: int, last: int, kind: str = "all_reduce", members: int = 4) -> GroupLog:
    recent = tuple(
        Collective(n, 0, n == last, kind if n == last else "x") for n in (last - 1, last)
    )
    return GroupLog(name="0", members=((0, members, 1),), ranks=in_rows(entered), recent=recent)


def test_nor_do_they_where_it_is_known_who_has_entered_what() -> None:
    groups = stands(2, at=ITEM, gpu_busy=True), stands(0, 1, 3, gpu_busy=True)
    done = GroupLog(
        name="0", members=((0, 4, 1),), ranks=((2, 2),), recent=(Collective(8, 0, False),)
    )
    late = judged(*groups, collectives=[done, log(0, 1, 3, last=9)])
    assert late.judgement is Judgement.SLOW, "it has not entered it: its kernels are its own"
    other = [log(2, last=9, kind="barrier"), log(0, 1, 3, last=9)]
    found = judged(*groups, collectives=other)
    assert found.judgement is Judgement.HANG and ranks(found) == [2]
    assert found.evidence[1] == (
        "last collective in group 0: rank 2 number 9 barrier (not completed); "
        "ranks 0-1, 3 number 9 all_reduce (not completed)"
    )
    together = judged(*groups, collectives=[log(0, 1, 2, 3, last=9)])
    assert together.judgement is Judgement.HANG


CUT = ("node-0 cannot reach node-1 (timed out after 2 s)",)


def parted(*groups: StackGroup, ago_s: float) -> HangJudged:
    """The same looks, of nodes that cannot reach each other."""
    suspicion = HangSuspected(
        attempt=4, ago_s=ago_s, budget_s=2.0, step=7, step_s=0.05, trained=True, ranks=()
    )
    return apart(judged(*groups, ago_s=ago_s), suspicion, groups, CUT)


@pytest.mark.parametrize("does", ["still", "background", "busy"])
def test_ranks_that_wait_for_a_node_that_nobody_reaches_are_not_waited_for_long(does: str) -> None:
    together = stands(0, 1, does=does)
    assert judged(together, ago_s=PARTED_S).judgement is Judgement.SLOW
    assert parted(together, ago_s=PARTED_S - 1.0).judgement is Judgement.SLOW
    found = parted(together, ago_s=PARTED_S)
    assert found.judgement is Judgement.HANG and not found.ranks
    assert "after step 7: node-0 cannot reach node-1" in found.summary
    assert found.evidence[0] == CUT[0]


def test_ranks_that_wait_in_our_own_exchanges_are_known_to_wait() -> None:
    fence = (SCRIPT, "Exchange.pass_fence (holdfast/train/exchange.py:144)")
    found = parted(stands(0, at=fence), stands(1), ago_s=5.0)
    assert found.judgement is Judgement.HANG and not found.ranks


def test_a_rank_that_evaluates_while_a_link_is_away_is_left_alone() -> None:
    evaluates = stands(0, at=("evaluate (eval.py:3)",), does="moves")
    for groups in ((evaluates, stands(1)), (stands(0, 1, does="moves"),)):
        found = parted(*groups, ago_s=8.0)
        assert found.judgement is Judgement.SLOW and found.evidence[0] == CUT[0]


def test_who_is_to_blame_anyhow_stays_so_and_the_link_is_told_beside() -> None:
    found = parted(stands(0, at=SLEEP), stands(1), ago_s=5.0)
    assert (found.judgement, found.ranks) == (Judgement.HANG, ((0, 0),))
    assert found.evidence[0] == CUT[0]


# ── scripts that have ended ───────────────────────────────────────────────────────────────────

JOINS = ("_shutdown (threading.py:1590)",)
THREAD = ("_bootstrap (threading.py:1032)", "run (threading.py:1012)", "forever (train.py:7)")
ATEXIT = ("flush (train.py:4)", "wait (lib.py:9)")
GROUP_END = ("destroy (holdfast/group_end.py:42)",)


def judged_at_the_end(
    *groups: StackGroup,
    ago_s: float = TOGETHER_S,
    progress: Progress = Progress(),  # noqa: B008
    behind: tuple[int, ...] = (),
) -> HangJudged:
    """`behind` are ranks whose scripts go on behind their loops."""
    suspicion = HangSuspected(
        attempt=4, ago_s=ago_s, budget_s=2.0, step=None, step_s=0.05, trained=True, reported=False,
        ranks=(),
    )  # fmt: skip
    pages = {
        rank: WorkerReport(
            rank=rank, pid=1, progress=progress, milestones={},
            phase="finished" if rank in behind else "ending",
        )
        for group in groups
        for rank in each_of(group.ranks)
    }  # fmt: skip
    return judge(suspicion, groups, (), pages, TIMEOUT_S)


@pytest.mark.parametrize(
    ("at", "beside", "told"),
    [
        (JOINS, THREAD, "joins non-daemon threads: other in forever (train.py:7)"),
        (JOINS, GROUP_END, "joins non-daemon threads"),
        (ATEXIT, GROUP_END, "has called flush (train.py:4) (atexit, or a destructor), in wait"),
        ((), GROUP_END, "in an atexit function, a destructor or a native library"),
        ((), (), "was not seen (no stack)"),
    ],
)
def test_processes_that_do_not_end_after_their_scripts_are_told_with_what_they_wait_for(
    at: tuple[str, ...], beside: tuple[str, ...], told: str
) -> None:
    found = judged_at_the_end(stands(0, 1, at=at, beside=beside))
    assert found.judgement is Judgement.HANG and found.ended
    assert "scripts have ended but their processes have not exited" in found.summary
    assert told in found.summary and "destroy" not in found.summary


@pytest.mark.parametrize(
    "groups",
    [
        (stands(0, at=JOINS, beside=THREAD),),  # its own terminal would wait as long
        (stands(0, 1, at=JOINS, beside=(*THREAD, "send (ssl.py:1180)")),),
        (stands(0, 1, at=("upload (train.py:4)", "send (socket.py:9)")),),
        (stands(0, 1, at=JOINS, beside=THREAD, does="background"),),
        (stands(0, at=JOINS), stands(1, at=ATEXIT, does="busy")),
        (stands(0, 1, at=JOINS, state="disk-sleep"),),
    ],
)
def test_what_saves_or_uploads_after_the_end_of_its_script_is_left_alone(
    groups: tuple[StackGroup, ...],
) -> None:
    found = judged_at_the_end(*groups, ago_s=3600.0)
    assert found.judgement is Judgement.SLOW and not found.ended


def test_so_it_is_where_a_script_with_the_library_has_done_all_its_steps() -> None:
    done = Progress(step=100, finished=True)
    found = judged_at_the_end(stands(0, 1, at=JOINS, beside=THREAD), progress=done)
    assert found.judgement is Judgement.HANG and found.ended


def test_a_rank_that_goes_on_behind_its_loop_is_waited_for_whatever_it_does() -> None:
    done = Progress(step=100, finished=True)
    groups = stands(0, at=("push (train.py:9)",)), stands(1, at=JOINS)
    found = judged_at_the_end(*groups, ago_s=3600.0, progress=done, behind=(0,))
    assert found.judgement is Judgement.SLOW


def test_one_that_has_ended_early_while_others_train_is_the_one_they_wait_for() -> None:
    suspicion = HangSuspected(
        attempt=4, ago_s=20.0, budget_s=2.0, step=None, step_s=0.05, trained=True, reported=False,
        ranks=(),
    )  # fmt: skip
    pages = {
        rank: WorkerReport(rank=rank, pid=1, progress=Progress(), milestones={}, phase=phase)
        for rank, phase in enumerate(("ending", "step"))
    }
    groups = (stands(0, at=JOINS), stands(1))
    found = judge(suspicion, groups, (), pages, TIMEOUT_S)
    assert not found.ended and ranks(found) == [0]
