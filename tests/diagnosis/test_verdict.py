"""The rank that failed first, and not because a peer was gone, is blamed."""

import itertools
import signal
from pathlib import Path

import msgspec
import pytest

from holdfast.diagnosis import CAUSES, parse_traceback, weigh
from holdfast.diagnosis.kinds import kind_of
from holdfast.diagnosis.verdict import CONFIDENCE, Origin, Weight
from holdfast.events import STORE_DIED_BEFORE, Progress, WorkerError, WorkerExited
from holdfast.messages import WorkerReport

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> WorkerError:
    """What a real process left behind; see record.py."""
    error = parse_traceback((RECORDED / f"{name}.txt").read_text())
    assert error is not None
    return error


def exited(
    rank: int = 0,
    code: int | None = 1,
    *,
    number: int | None = None,
    error: WorkerError | None = None,
    step: int | None = 5,
    finished: bool = False,
    ago_s: float = 0.0,
    forkserver: str = "",
    store: str = "",
    oom: str = "",
    clue: str = "",
) -> WorkerExited:
    return WorkerExited(
        node=f"n{rank}",
        attempt=1,
        rank=rank,
        exit_code=None if number else code,
        signal=number,
        ago_s=ago_s,
        progress=Progress(step=step, finished=finished),
        error=error,
        forkserver=forkserver,
        store=store,
        oom=oom,
        clue=clue,
    )


def raised(kind: str, message: str = "", file: str = "/home/me/train.py") -> WorkerError:
    return WorkerError(type=kind, message=message, file=file, line=7, traceback="")


NVLINK = "uncorrectable NVLink error detected during the execution"
BARRIER = "monitored_barrier_peer_stopped"  # names who stood still
SYMPTOMS = sorted(
    p.stem
    for p in RECORDED.glob("*.txt")
    if p.stem not in ("out_of_memory_cpu", "port_taken", "loader_worker_raised", BARRIER)
)
SMALL_SHM = raised(
    "RuntimeError",
    "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call "
    "last):\nRuntimeError: unable to allocate shared memory(shm) for file "
    "</torch_27230_2098510709_0>: No space left on device (28)",
)
NETWORK = "torch.distributed.DistNetworkError"
BACKEND = "torch.distributed.DistBackendError"
NCCL_PEER_LOST = (  # as users report them
    raised(
        BACKEND,
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process "
        "exited or there was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed "
        "possibly due to a network error or a remote process exiting prematurely.",
    ),
    raised(
        BACKEND,
        "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, internal error, "
        "NCCL version 2.14.3\nncclInternalError: Internal check failed.\nLast error:\n"
        "Net : Connection closed by remote peer node7<50260>",
    ),
    raised(
        "RuntimeError",
        "NCCL communicator was aborted on rank 2.  Original reason for failure was: [Rank 2] "
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=10, OpType=BROADCAST, "
        "Timeout(ms)=1800000) ran for 1805457 milliseconds before timing out.",
    ),
)
CLUE = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 65536 vs 1348"
NCCL_OWN = raised(BACKEND, "NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled cuda error (run")
CASES = [
    ("worker-killed", exited(number=signal.SIGKILL)),
    ("worker-killed", exited(number=signal.SIGTERM)),
    ("out-of-memory", exited(number=signal.SIGKILL, oom="memory limit 64 MiB")),
    ("out-of-memory", exited(number=signal.SIGKILL, oom="memory limit 64 MiB", forkserver="x")),
    ("worker-killed", exited(number=signal.SIGTERM, oom="memory limit 64 MiB")),
    ("worker-killed", exited(code=137)),
    ("worker-killed", exited(error=raised("KeyboardInterrupt"))),
    ("forkserver-died", exited(number=signal.SIGKILL, forkserver="signal 9")),
    ("store-lost", exited(error=raised(NETWORK, "Connection was likely closed"), store="signal 9")),
    ("peer-lost", exited(error=raised(NETWORK, "Connection was likely closed"))),
    ("worker-exception", exited(error=raised("ValueError", "x"), store="signal 9")),
    ("worker-killed", exited(number=signal.SIGKILL, store="signal 9")),
    ("store-lost", exited(number=signal.SIGKILL, store=STORE_DIED_BEFORE)),
    ("limit-reached", exited(error=raised("OSError", "[Errno 24] Too many open files: 'x'"))),
    ("limit-reached", exited(error=raised("OSError", "[Errno 27] File too large"))),
    ("limit-reached", exited(error=raised("RuntimeError", "can't start new thread"))),
    ("worker-crashed", exited(number=signal.SIGSEGV, forkserver="signal 9")),
    ("worker-crashed", exited(number=signal.SIGSEGV)),
    ("worker-crashed", exited(number=signal.SIGBUS)),
    ("worker-crashed", exited(code=139)),
    ("worker-aborted", exited(number=signal.SIGABRT)),
    ("peer-lost", exited(number=signal.SIGABRT, error=recorded("all_reduce_peer_killed"))),
    ("worker-exception", exited(error=raised("ValueError", "bad"))),
    ("worker-exception", exited(error=recorded("loader_worker_raised"))),
    ("worker-exception", exited(error=raised("RuntimeError", "my barrier timed out"))),
    ("environment", exited(error=raised("ConnectionResetError", "[Errno 104] Connection"))),
    (
        "checkpoint-unusable",
        exited(error=raised("holdfast.errors.Error", "error[checkpoint-unusable]: none fits")),
    ),
    (
        "checkpoint-in-use",
        exited(error=raised("holdfast.errors.Error", "error[checkpoint-in-use]: another job")),
    ),
    (
        "declared-differently",
        exited(error=raised("holdfast.errors.Error", "error[declared-differently]: ranks call")),
    ),
    ("collective-mismatch", exited(number=signal.SIGABRT, clue=CLUE)),
    (
        "collective-mismatch",
        exited(
            error=raised(
                "RuntimeError",
                "[enforce fail at gloo/transport/tcp/pair.cc:454] op.preamble.length <= op.nbytes",
            )
        ),
    ),
    ("import-error", exited(error=raised("ModuleNotFoundError", "No module named 'einops'"))),
    ("syntax-error", exited(error=raised("IndentationError", "unexpected indent"))),
    ("not-startable", exited(code=127)),
    ("not-startable", exited(error=WorkerError(type="PermissionError", message="x", file="a"))),
    ("worker-exit", exited(code=3)),
    ("worker-exit", exited(code=3, error=raised("SystemExit", "3"))),
    ("exited-early", exited(code=0)),
    ("exited-silently", exited(code=0, step=None)),
    ("finished", exited(code=0, finished=True)),
    ("out-of-memory", exited(error=recorded("out_of_memory_cpu"))),
    ("out-of-memory", exited(error=raised("torch.OutOfMemoryError", "CUDA out of memory."))),
    ("out-of-memory", exited(error=SMALL_SHM)),
    ("device-error", exited(error=raised("torch.AcceleratorError", "CUDA error: unspecified"))),
    (
        "worker-exception",
        exited(
            error=raised(
                "torch.AcceleratorError",
                "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in ...",
            )
        ),
    ),
    ("disk-full", exited(error=raised("OSError", "[Errno 28] No space left on device: 'a'"))),
    ("port-taken", exited(error=recorded("port_taken"))),
    *[
        ("device-lost", exited(error=raised("torch.AcceleratorError", f"CUDA error: {words}")))
        for words in ("uncorrectable ECC error encountered", "GPU is lost")
    ],
    *[
        ("device-error", exited(error=raised(kind, f"{prefix}: {NVLINK}")))
        for kind, prefix in (
            ("torch.AcceleratorError", "CUDA error"),
            ("jax.errors.JaxRuntimeError", "INTERNAL: CUDA_ERROR_NVLINK_UNCORRECTABLE"),
        )
    ],
    ("worker-exception", exited(error=raised("RuntimeError", "NVLink between 8 GPUs expected"))),
    (
        "device-error",
        exited(error=raised("jax.errors.JaxRuntimeError", "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS")),
    ),
    (
        "out-of-memory",
        exited(error=raised("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")),
    ),
    ("device-error", exited(error=NCCL_OWN)),
    *[("peer-lost", exited(error=error)) for error in NCCL_PEER_LOST],
    *[("peer-lost", exited(error=recorded(name))) for name in SYMPTOMS],
]


@pytest.mark.parametrize(("cause", "one"), CASES)
def test_one_exit_has_the_cause_it_shows(cause: str, one: WorkerExited) -> None:
    verdict = weigh([one])
    assert verdict.cause == cause
    assert verdict.origin == CAUSES[cause].origin
    assert verdict.confidence == CONFIDENCE[CAUSES[cause].weight]
    assert verdict.chosen is one
    assert verdict.also_failed == 0
    assert verdict.summary.startswith("Rank 0 ")


def test_a_small_shared_memory_is_named_where_it_is_not_enough() -> None:
    summary = weigh([exited(error=SMALL_SHM)]).summary
    assert "/dev/shm of the node is too small" in summary and "resources.shm" in summary


def test_every_cause_of_an_exit_is_in_the_table_above() -> None:
    without_exit = {
        "node-lost",
        "node-left",
        "orders-lost",
        "resized",
        "updated",
        "repeated",
        "diverged",
        "hang",
        "nan",
        "hardware-fault",
        "straggler",
        "corruption",
        "collective-skipped",
    }
    assert {cause for cause, _ in CASES} | without_exit == set(CAUSES)


def test_what_the_kernel_killed_for_memory_says_the_limit_and_is_the_same_bug_again() -> None:
    killed = exited(number=signal.SIGKILL, oom="memory limit 512 MiB")
    verdict = weigh([killed])
    assert verdict.summary == (
        "Rank 0 was killed by the kernel's out-of-memory killer (memory limit 512 MiB)."
    )
    assert verdict.signature == weigh([killed]).signature is not None
    loader = raised("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed. ")
    verdict = weigh([exited(error=loader, oom="memory limit 512 MiB")])
    assert verdict.cause == "out-of-memory"
    assert verdict.summary.startswith("A data loader process of Rank 0 was killed by the kernel's")


def interrupted(statement: str, below: str = "") -> WorkerExited:
    """As Python ends a process: by SIGINT, whoever has raised the exception."""
    frames = f'  File "/home/me/train.py", line 7, in <module>\n    {statement}\n{below}'
    shown = f"Traceback (most recent call last):\n{frames}KeyboardInterrupt\n"
    error = msgspec.structs.replace(raised("KeyboardInterrupt"), traceback=shown)
    return exited(number=signal.SIGINT, error=error)


WRAPPED = '  File "/home/me/.venv/lib/python3.13/asyncio/runners.py", line 160, in run\n'


@pytest.mark.parametrize(
    "statement", ["raise KeyboardInterrupt", "if bad: raise KeyboardInterrupt()"]
)
def test_an_interrupt_that_the_script_raises_is_an_error_of_the_script(statement: str) -> None:
    """Found by hand: it was retried up to the cap, as if somebody had sent SIGINT each time."""
    verdict = weigh([interrupted(statement)])
    assert (verdict.cause, verdict.origin) == ("worker-exception", Origin.CODE)
    assert verdict.signature == "KeyboardInterrupt@train.py:7"
    assert verdict.summary == "Rank 0 failed with KeyboardInterrupt (/home/me/train.py:7)"


@pytest.mark.parametrize(
    "one",
    [
        interrupted("time.sleep(60)"),
        interrupted("loss = praise (batch)"),
        interrupted("asyncio.run(main())", f"{WRAPPED}    raise KeyboardInterrupt()\n"),
        interrupted(""),
    ],
)
def test_one_that_somebody_has_sent_is_none(one: WorkerExited) -> None:
    verdict = weigh([one])
    assert (verdict.cause, verdict.origin) == ("worker-killed", Origin.ELSEWHERE)


SPAWNED = "torch.multiprocessing.spawn.ProcessExitedException"
TORCHRUN = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"


@pytest.mark.parametrize(
    ("error", "cause", "ending"),
    [
        (
            raised(SPAWNED, "process 1 terminated with signal SIGKILL"),
            "worker-killed",
            "was killed by SIGKILL, possibly by the kernel's out-of-memory killer",
        ),
        (
            raised(SPAWNED, "process 0 terminated with signal SIGSEGV"),
            "worker-crashed",
            "crashed with SIGSEGV",
        ),
        (
            recorded("below/torchrun_rank_killed"),
            "worker-killed",
            "was killed by SIGKILL, possibly by the kernel's out-of-memory killer",
        ),
    ],
)
def test_a_rank_that_the_worker_has_started_and_a_signal_ended_is_no_error_of_the_script(
    error: WorkerError, cause: str, ending: str
) -> None:
    """Found in a job with torch.multiprocessing.spawn: "fix the script", after a SIGKILL."""
    verdict = weigh([exited(error=error)])
    assert (verdict.cause, verdict.summary) == (
        cause, f"A process that Rank 0 had started {ending}.",
    )  # fmt: skip
    assert verdict.signature is None, "it is not the same error again"
    of_memory = weigh([exited(error=error, oom="memory limit 64 MiB")])
    assert (of_memory.cause == "out-of-memory") is ("SIGKILL" in ending)


@pytest.mark.parametrize(
    "error",
    [
        raised(SPAWNED, "process 1 terminated with exit code 3"),
        raised("ValueError", "process 1 terminated with signal SIGKILL"),
        raised(TORCHRUN, "Failures:\n  traceback : Signal 15 (SIGTERM) received by PID 7\n"
               "Root Cause (first observed failure):\n  exitcode  : 1 (pid: 8)"),
    ],
)  # fmt: skip
def test_what_ended_otherwise_below_a_worker_is(error: WorkerError) -> None:
    assert weigh([exited(error=error)]).cause == "worker-exception"


def test_a_failed_rank_outweighs_the_symptoms_of_the_others_whenever_they_came() -> None:
    symptoms = itertools.cycle(recorded(name) for name in SYMPTOMS)
    others = [exited(r, error=next(symptoms), ago_s=9.0) for r in range(1, 512)]
    for cause, one in CASES:
        if CAUSES[cause].weight in (Weight.CAUSE, Weight.MAYBE, Weight.ODD):
            verdict = weigh([*others[:255], one, *others[255:]])
            assert (verdict.cause, verdict.chosen) == (cause, one)
            assert verdict.also_failed == 511


def test_of_equals_the_first_to_die_is_blamed_and_the_doubt_is_said() -> None:
    first = exited(3, error=raised("ValueError", file="/home/me/a.py"), ago_s=2.0)
    second = exited(1, number=signal.SIGSEGV, ago_s=1.0)
    verdict = weigh([second, first])
    assert verdict.chosen is first
    assert verdict.confidence < weigh([first]).confidence


def test_the_same_bug_on_every_rank_is_no_doubt() -> None:
    ranks = [exited(r, error=raised("ValueError", f"rank {r}")) for r in range(8)]
    verdict = weigh(ranks)
    assert verdict.chosen is ranks[0]
    assert verdict.confidence == weigh(ranks[:1]).confidence
    assert verdict.also_failed == 7


def test_a_rank_that_finished_is_not_counted_as_failed() -> None:
    verdict = weigh([exited(0, 0, finished=True, ago_s=5.0), exited(1, number=signal.SIGKILL)])
    assert verdict.cause == "worker-killed"
    assert verdict.also_failed == 0


def test_a_rule_that_is_drawn_above_a_message_is_not_what_it_says() -> None:
    """Found by hand with torchrun as the command: "failed with ChildFailedError: =====…"."""
    message = f"\n{'=' * 60}\ntrain.py FAILED\n{'-' * 60}\nFailures:\n"
    error = raised("torch.distributed.elastic.multiprocessing.errors.ChildFailedError", message)
    assert "ChildFailedError: train.py FAILED… (/home" in weigh([exited(error=error)]).summary


def test_the_signature_is_the_same_for_the_same_bug_with_another_message() -> None:
    one = weigh([exited(error=raised("ValueError", "loss is 1.5"))])
    other = weigh([exited(error=raised("ValueError", "loss is 9.1"))])
    elsewhere = weigh([exited(error=raised("ValueError", "loss is 1.5", file="b.py"))])
    assert one.signature == other.signature == "ValueError@train.py:7"
    assert elsewhere.signature != one.signature
    assert weigh([exited(number=signal.SIGKILL)]).signature is None


def test_the_same_bug_is_one_though_the_script_lies_in_another_folder_on_each_node() -> None:
    files = ("/mnt/a/code/train.py", "/local/7/train.py")
    ranks = [
        exited(rank, error=raised("ValueError", "bad", file=file))
        for rank, file in enumerate(files)
    ]
    verdict = weigh(ranks)
    assert verdict.signature == weigh(ranks[:1]).signature == weigh(ranks[1:]).signature
    assert verdict.confidence == weigh(ranks[:1]).confidence
    assert kind_of(ranks[0]) == kind_of(ranks[1])
    other = exited(1, error=raised("ValueError", "bad", file="/local/7/data.py"))
    assert weigh([ranks[0], other]).confidence < verdict.confidence


def test_a_sigkill_names_the_memory_killer_only_as_a_possibility() -> None:
    verdict = weigh([exited(number=signal.SIGKILL)])
    assert verdict.cause == "worker-killed"
    assert "possibly" in verdict.summary


def test_without_exits_no_worker_is_blamed() -> None:
    verdict = weigh([])
    assert (verdict.cause, verdict.rank, verdict.origin) == ("node-lost", None, Origin.ELSEWHERE)


def test_an_exit_by_choice_says_status_and_place() -> None:
    verdict = weigh([exited(code=3, error=raised("SystemExit", "3"))])
    assert verdict.summary == "Rank 0 exited with status 3 (/home/me/train.py:7)."


def test_what_a_script_says_as_it_exits_is_quoted() -> None:
    verdict = weigh([exited(code=1, error=raised("SystemExit", "no data in /d\nsee the wiki"))])
    assert verdict.summary == ("Rank 0 exited with status 1: no data in /d… (/home/me/train.py:7).")


def test_a_message_is_quoted_as_it_is_and_where_it_is_cut_that_shows() -> None:
    def quoted(message: str) -> str:
        return weigh([exited(error=raised("RuntimeError", message))]).summary

    assert quoted(" NCCL error  X ").endswith("RuntimeError: NCCL error  X (/home/me/train.py:7)")
    assert "RuntimeError: NCCL error… (" in quoted("NCCL error\nLast error: socket")
    assert f"RuntimeError: {'x' * 200}… (" in quoted("x" * 201)
    assert f"RuntimeError: {'x' * 200} (" in quoted("x" * 200)


def test_a_forkserver_that_died_is_not_told_as_a_lack_of_memory() -> None:
    fell = weigh([exited(3, number=9, forkserver="signal 9", ago_s=1.0), exited(0, number=9)])
    assert fell.summary == "Rank 3 died with its forkserver (signal 9)."


def test_who_was_stopped_because_its_store_was_dead_lost_no_connection() -> None:
    told = weigh([exited(3, number=signal.SIGKILL, store=STORE_DIED_BEFORE)])
    dead = "Rank 3 was stopped before it trained: the attempt's rendezvous store was dead."
    assert told.summary == dead


def test_a_limit_of_the_shell_is_named() -> None:
    summary = weigh([exited(error=raised("OSError", "[Errno 24] Too many open files"))]).summary
    assert summary.startswith(
        "Rank 0 reached the open files limit (ulimit -n): OSError: [Errno 24]"
    )
    assert "ulimit -f" in weigh([exited(error=raised("OSError", "File too large"))]).summary


def page(rank: int, step: int | None = 17, phase: str = "step") -> WorkerReport:
    return WorkerReport(rank=rank, pid=1, progress=Progress(step=step), milestones={}, phase=phase)


TIMEOUT = recorded("peer_stopped_timeout")


def test_the_rank_that_stood_still_is_blamed_and_not_the_one_that_waited() -> None:
    """By its step, else by what it was doing; the ranks that wait are all at one place."""
    waiting = [exited(rank, error=TIMEOUT, step=17) for rank in (0, 1)]
    others = {rank: page(rank) for rank in range(8)}
    behind = weigh(waiting, {**others, 3: page(3, step=16)})
    assert (behind.cause, behind.rank, behind.chosen) == ("hang", 3, None)
    assert behind.also_failed == 2
    loading = weigh(waiting, {**others, 5: page(5, phase="data")})
    assert (loading.cause, loading.rank) == ("hang", 5)
    assert loading.summary.startswith("Rank 5 hung after step 17 (it was loading data)")
    assert "Timed out waiting 4000ms for recv operation" in loading.summary


def test_a_barrier_that_names_the_rank_is_believed() -> None:
    error = recorded(BARRIER)
    verdict = weigh([exited(0, error=error)], {rank: page(rank) for rank in range(4)})
    assert (verdict.cause, verdict.rank) == ("hang", 1)


def test_without_steps_the_rank_that_did_not_report_a_failure_is_blamed() -> None:
    silent = {rank: page(rank, step=None, phase="starting") for rank in range(4)}
    waiting = [exited(rank, error=TIMEOUT, step=None) for rank in (0, 1, 3)]
    assert weigh(waiting, silent).rank == 2


@pytest.mark.parametrize("name", ["all_reduce_peer_killed", "store_refused"])
def test_who_only_lost_a_connection_did_not_wait_for_anybody(name: str) -> None:
    pages = {0: page(0), 1: page(1, step=3)}
    assert weigh([exited(0, error=recorded(name))], pages).cause == "peer-lost"


def test_nobody_is_blamed_for_standing_still_where_most_look_like_it() -> None:
    pages = {rank: page(rank, step=17 if rank == 0 else 16) for rank in range(8)}
    assert weigh([exited(0, error=TIMEOUT)], pages).cause == "peer-lost"
    assert weigh([exited(0, error=TIMEOUT)]).cause == "peer-lost"


def test_a_rank_that_left_with_status_0_outweighs_those_that_lost_it() -> None:
    left = exited(3, 0, step=17, ago_s=1.0)
    verdict = weigh([exited(0, error=TIMEOUT), left, exited(1, 1, ago_s=0.5)])
    assert (verdict.cause, verdict.rank) == ("exited-early", 3)
    assert verdict.signature == "exit status 0 of rank 3"
    assert "exited with status 0 after step 17 while the others trained on" in verdict.summary


def test_a_storage_that_fails_everywhere_does_not_hide_a_bug() -> None:
    storage = [exited(r, error=raised("ConnectionError"), ago_s=5.0) for r in range(3)]
    bug = exited(3, error=raised("ValueError"))
    assert weigh(storage).cause == "environment"
    assert weigh([*storage, bug]).rank == 3
