"""A rank that hangs is found in seconds, named, and training goes on bitwise as without."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests import native
from tests.end_to_end.local.jobs import ENDLESS, TOGETHER, program, small
from tests.more import long, sample

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

STEPS, HANGS_AT = 35, 25
HANGS = ["--steps", str(STEPS), "--die", "between-steps", "--die-step", str(HANGS_AT)]
TRIES = 4  # frames of C are read within NATIVE_S, which takes a processor, or not at all
PLACE = {"sleep": "<lambda>", "lock": "hang_in_a_lock", "gil": "<lambda>"}


@pytest.mark.parametrize("how", sample(["gil"], ["sleep", "lock", "stop"]))
def test_a_rank_that_hangs_in_a_step_is_named_with_its_stack_and_restarted(
    home: Path, how: str
) -> None:
    args = [*HANGS, "--how", how]
    patient: dict[str, Any] = (
        {"recovery": {"restart_grace_s": 10.0}} if how == "gil" else {}
    )  # with py-spy
    job = small(home, args=args, **({} if how == "stop" else TOGETHER), **patient)
    for _ in range(1 if how != "gil" else TRIES):
        (job.out / "died").unlink(missing_ok=True)
        job.start("--replace").wait_end()
        (incident,) = job.incidents()
        seen = [one for node in incident.collected for one in node.ranks if one.rank == 1]
        if any(one.native_stack for one in seen):
            break
    assert (incident.cause, incident.rank) == ("hang", 1), incident.summary
    assert incident.signal is None and incident.exit_code is None
    assert incident.steps_lost <= 1 and incident.bill["detect"] > 1.0
    lasts = [line for line in incident.evidence if line.startswith("last collective in group ")]
    assert len(incident.evidence) - len(lasts) in (2, 3)  # a rank each, and what these tell
    if how == "stop":
        assert "SIGSTOP" in incident.summary
    else:
        [line] = [line for line in incident.evidence if line.startswith("rank 1 ")]
        assert PLACE[how] in line, incident.evidence
    if how == "gil":
        in_c = any("sleep" in frame for one in seen for frame in one.native_stack)
        assert in_c or not native.is_soon_read(), "in C, too"
    assert len(job.losses()) == STEPS


@long
def test_a_loop_is_found_in_seconds_where_the_script_names_what_takes_long(home: Path) -> None:
    args = [*HANGS, "--how", "loop"]
    job = small(home, args=args, recovery={"step_timeout_s": 5.0}, **TOGETHER).start()
    job.wait_end()
    (incident,) = job.incidents()
    assert (incident.cause, incident.rank) == ("hang", 1) and "in loop (" in incident.summary
    journal = (job.folder / "journal.jsonl").read_text()
    assert '"overdue":true' in journal, "not by what steps usually take"
    assert len(job.losses()) == STEPS


PLAIN = """
import os, pathlib, sys, time, torch
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mark = pathlib.Path(__file__).with_name("hung")
def read_batch():
    while "loops" in sys.argv:
        pass
    time.sleep(1e6)
for step in range(35):
    time.sleep(0.02)
    if step == 25 and rank == 1 and not mark.exists():
        mark.touch()
        read_batch()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_script_without_the_library_that_hangs_is_restarted_too(home: Path) -> None:
    options: dict[str, Any] = {"warm": {"mode": "auto"}, "framework": "pytorch", **TOGETHER}
    job = program(home, PLAIN, **options).start()
    job.wait_end()
    (incident,) = job.incidents()
    assert (incident.cause, incident.rank) == ("hang", 1), incident.summary
    assert "read_batch" in incident.summary and incident.step is None
    journal = (job.folder / "journal.jsonl").read_text()
    assert '"counted":25' in journal, "by which it would be known if it came again"


@long
def test_one_that_loops_for_ever_is_too_where_the_job_file_says_how_long_a_step_takes(
    home: Path,
) -> None:
    options: dict[str, Any] = {"warm": {"mode": "auto"}, "framework": "pytorch", **TOGETHER}
    spec = {"args": ["loops"], "recovery": {"step_timeout_s": 5.0}}
    job = program(home, PLAIN, **spec, **options).start()
    job.wait_end()
    (incident,) = job.incidents()
    assert (incident.cause, incident.rank) == ("hang", 1), incident.summary
    assert "in read_batch (" in incident.summary and incident.bill["detect"] > 4.0
    assert job.status().attempt == 2, "which has trained to its end"
    journal = (job.folder / "journal.jsonl").read_text()
    assert '"overdue":true' in journal, "without that it may be an evaluation"


PRINTS = """
import itertools, os, signal, time
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in itertools.count() if first else range(60):
    time.sleep(0.05)
    print("step", step, flush=True)
    if first and step == 30 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_one_that_stands_still_is_found_by_the_steps_that_it_prints(home: Path) -> None:
    job = program(home, PRINTS, progress={"step_pattern": r"step (\d+)"}, **TOGETHER).start()
    job.wait_end()
    (incident,) = job.incidents()
    assert (incident.cause, incident.rank) == ("hang", 1) and "SIGSTOP" in incident.summary


def test_a_job_whose_workers_are_all_stopped_by_hand_is_left_alone(home: Path) -> None:
    job = small(home, args=[*ENDLESS, "--pause", "0.1"], **TOGETHER).start()
    job.wait_step(10)
    workers = [job.worker(rank) for rank in (0, 1)]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        job.wait_until(lambda s: "Paused" in (s.why or ""), "the pause to be seen")
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
    job.finish()
    assert job.incidents() == []


OTHER_COLLECTIVES = """
import pathlib, sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mark = pathlib.Path(__file__).with_name("hung")
def differ(how):
    if how == "mismatch" and rank == 1:
        dist.barrier()
    if how == "order":
        for group in (pair, None) if rank == 1 else (None, pair):
            dist.all_reduce(torch.ones(2), group=group)
for step in range(35):
    time.sleep(0.02)
    if step == 25 and not mark.exists():
        if rank == 1:
            mark.touch()
        differ(sys.argv[1])
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("how", "text"),
    sample(
        [("mismatch", "different collectives were entered as number")],
        [("order", "the order differs")],
    ),
)
def test_ranks_that_enter_different_collectives_are_told_apart(
    home: Path, how: str, text: str
) -> None:
    options: dict[str, Any] = {"warm": {"mode": "auto"}, "framework": "pytorch", **TOGETHER}
    job = program(home, OTHER_COLLECTIVES, args=[how], **options).start()
    job.wait_end()
    (incident,) = job.incidents()
    assert incident.cause == "hang" and text in incident.summary
    assert how == "order" or incident.rank == 1
    [last] = [one for one in incident.evidence if one.startswith("last collective in group defau")]
    assert "rank 0 number " in last and "rank 1 number " in last, "each has entered another one"
