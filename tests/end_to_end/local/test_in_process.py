"""Workers that live when another one fails keep their processes, and training changes no bit."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.local.jobs import SCRIPTS, TOGETHER, RunningJob, guide
from tests.more import MORE, long
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

STEPS = 24
UNHURRIED_S = 60.0  # for who survives to say so, where that has to be


def kept(
    home: Path, *args: str, name: str = "job", mode: str = "in_process", **spec: Any
) -> RunningJob:
    """A job that runs `scripts/kept.py` with this `recovery.mode`."""
    out = home.parent / f"out-{name}"
    out.mkdir()
    recovery = {"mode": mode, **spec.pop("recovery", {})}
    return RunningJob(
        home,
        name=name,
        script=str(SCRIPTS / "kept.py"),
        args=["--out", str(out), "--steps", str(STEPS), *args],
        recovery=recovery,
        snapshots={"every_steps": 1},
        **spec,
    )


def lines(job: RunningJob, rank: int) -> list[dict[str, Any]]:
    """What a rank wrote down, in order."""
    text = (job.out.parent / f"out-{job.name}" / f"rank-{rank}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def outcome(job: RunningJob, rank: int) -> tuple[dict[int, Any], str]:
    """The losses of each step, and what it has at the end; of a step that was done again the last
    ones: a survivor writes those of the step that it gives up, too."""
    job.wait_end()
    told = lines(job, rank)
    return {line["step"]: line["losses"] for line in told if "step" in line}, told[-1]["final"]


def pids(job: RunningJob, rank: int) -> dict[int, int]:
    """The process of a rank, by attempt."""
    return {line["attempt"]: line["pid"] for line in lines(job, rank) if "attempt" in line}


def actions(job: RunningJob, incident: int) -> list[str]:
    """What was done."""
    return [taken.action for taken in job.incidents()[incident].actions]


def test_survivors_keep_their_processes_and_no_bit_changes(home: Path) -> None:
    """Also where the turn that is discarded has gradients that are not averaged yet, and an
    evaluation."""
    kinds, steps = ("--kinds", "ddp,hand,fsdp,hsdp" if MORE else "hand,fsdp"), 12
    short = (*kinds, "--carry", "--steps", str(steps))
    calm = kept(home, *short, "--pause", "0", name="calm", **TOGETHER).start()
    ends = [outcome(calm, rank) for rank in (0, 1)]
    assert len(ends[0][0]) == steps

    spec, (_, chaos, why) = guide("in-process")
    spec = {name: spec[name] for name in ("name", "workers_per_node")}
    spec |= {"mode": "auto", "recovery": {"restart_grace_s": UNHURRIED_S}}
    faults = ("--gate", "1:3", "--die", "0:8")
    job = kept(home, *short, "--declare", *faults, nodes=1, **spec).start()
    job.wait_step(3)
    assert holdfast(*chaos).returncode == 0
    assert [outcome(job, rank) for rank in (0, 1)] == ends
    first, second = pids(job, 0), pids(job, 1)
    assert first[1] == first[2] != first[3], "rank 0 survives the first fault"
    assert second[1] != second[2] == second[3], "the new rank 1 survives the second one"
    for pid in (first[1], second[2]):
        built = job.out.parent / f"out-{job.name}" / f"built-{pid}"
        assert built.read_text() == "imported and built\n", "once, whatever it survived"
    for number, incident in enumerate(job.incidents()):
        assert incident.cause == "worker-killed" and incident.steps_lost <= 2
        assert "KeepProcesses" in actions(job, number), incident.actions
    assert "1 worker keeps its process" in holdfast(*why).stdout


def test_ranks_that_declare_it_differently_end_the_job_at_once_and_are_named(home: Path) -> None:
    options = ("--kinds", "hand", "--declare", "--undeclared-rank", "1")
    job = kept(home, *options, mode="auto", **TOGETHER).start()
    job.wait_end(1)
    (incident,) = job.incidents()
    assert incident.cause == "declared-differently", "and nobody tries that again"
    assert "rank 0 calls join(in_process=True), rank 1 calls join() without it" in job.said()


def test_workers_of_a_script_that_does_not_declare_it_are_replaced(home: Path) -> None:
    short = ("--kinds", "hand", "--steps", "8")
    job = kept(home, *short, "--die", "1:5", mode="auto", **TOGETHER).start()
    assert len(outcome(job, 0)[0]) == 8 and pids(job, 0)[1] != pids(job, 0)[2]
    assert not {"KeepProcesses", "ReplaceProcesses"} & {*actions(job, 0)}


@long
@pytest.mark.parametrize("how", ["gil", "sleep"])
def test_a_survivor_that_does_not_leave_its_step_is_replaced(home: Path, how: str) -> None:
    """Whether its interpreter could still do something else, or is held by a call in C."""
    asleep = ("--sleepy-rank", "0", "--sleepy-step", "8", "--sleepy-how", how)
    recovery = {"restart_grace_s": 1.0}
    job = kept(
        home, "--die", "1:8", "--how", "raise", *asleep, recovery=recovery, **TOGETHER
    ).start()
    losses, _ = outcome(job, 0)
    assert len(losses) == STEPS and pids(job, 0)[1] != pids(job, 0)[2]
    (incident,) = job.incidents()
    assert (incident.cause, incident.rank) == ("worker-exception", 1), incident.summary
    assert "a bad batch" in incident.summary
    assert "KeepProcesses" not in actions(job, 0)


@long
def test_a_survivor_may_take_as_long_as_steps_of_the_job_take(home: Path) -> None:
    recovery = {"restart_grace_s": 0.2}
    job = kept(home, "--pause", "1.5", "--steps", "20", recovery=recovery, **TOGETHER).start()
    first = (job.wait_step(1).step or 0) + 1
    job.wait_step(first)  # told twice, so that it is known what a step takes
    job.wait_step(first + 4)
    os.kill(job.worker(1), signal.SIGKILL)
    assert len(outcome(job, 0)[0]) == 20 and pids(job, 0)[1] == pids(job, 0)[2]
    assert "KeepProcesses" in actions(job, 0)


@long
def test_who_does_not_know_of_a_snapshot_that_all_have_is_replaced(home: Path) -> None:
    """That of the first step may not have come to all: then who is kept has nothing to go on from,
    and fails in the next attempt."""
    job = kept(home, "--die", "1:1", **TOGETHER).start()
    assert len(outcome(job, 0)[0]) == STEPS
    assert [incident.cause for incident in job.incidents()] == ["worker-killed"]
    assert "KeepProcesses" not in actions(job, 0)


@long
@pytest.mark.parametrize("moment", ["built", "joined", "tracked"])
def test_a_second_fault_while_groups_are_formed_anew_replaces_all(home: Path, moment: str) -> None:
    kinds = ("--kinds", "ddp,fsdp")
    calm = outcome(kept(home, *kinds, name="calm", **TOGETHER).start(), 0)
    options: dict[str, Any] = {"warm": {"mode": "imports"}, **TOGETHER}
    job = kept(home, *kinds, "--die", "1:8", "--again", moment, name="faults", **options).start()
    assert outcome(job, 0) == calm
    assert [incident.signal for incident in job.incidents()] == [9, 9][: len(job.incidents())]
    assert max(pids(job, 0)) == 3 and pids(job, 0)[1] != pids(job, 0)[3]


@long
def test_survivors_of_a_lost_node_go_on_with_the_spare(home: Path) -> None:
    kinds = ("--kinds", "ddp,fsdp")
    calm = outcome(kept(home, *kinds, name="calm", **TOGETHER).start(), 0)
    nodes = {"count": 2, "spares": 1}
    job = kept(home, *kinds, "--pause", "0.2", name="faults", nodes=nodes).start()
    job.wait_step(8)
    job.kill_node(job.member(1))
    assert outcome(job, 0) == calm
    assert pids(job, 0)[1] == pids(job, 0)[2]
    assert [incident.cause for incident in job.incidents()] == ["node-lost"]


@long
def test_what_cannot_be_kept_is_replaced_and_says_why(home: Path) -> None:
    job = kept(home, "--own", "group", "--die", "1:8", **TOGETHER).start()
    losses, _ = outcome(job, 0)
    assert len(losses) == STEPS and pids(job, 0)[1] != pids(job, 0)[2]
    told = [taken for taken in job.incidents()[0].actions if taken.action == "ReplaceProcesses"]
    assert "process group" in told[0].reason
    assert job.said().count("is replaced when an attempt fails") == 1


@long
def test_four_ranks_survive_kill_after_kill(home: Path) -> None:
    shape: dict[str, Any] = {"nodes": 1, "workers_per_node": 4}
    kinds = ("--kinds", "ddp,fsdp,hsdp")
    ends = [outcome(kept(home, *kinds, name="calm", **shape).start(), rank) for rank in (0,)]
    job = kept(home, *kinds, name="faults", **shape).start()
    for attempt, rank in enumerate((3, 0, 2, 1), 1):
        job.wait_step(4 * attempt, attempt=attempt)
        os.kill(job.worker(rank), signal.SIGKILL)
    assert [outcome(job, 0)] == ends
    assert len(job.incidents()) == 4
