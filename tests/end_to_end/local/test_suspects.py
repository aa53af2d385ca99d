"""A node against which only speaks what comes again and again is found, and left for a spare."""

import resource
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.status import Incident
from tests.end_to_end.local.jobs import SCRIPTS, RunningJob, program
from tests.more import long

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left"), long]

ABORTS = """
import os, pathlib, sys, time
out = pathlib.Path(sys.argv[0]).parent
(out / f"started-{os.environ['HOLDFAST_ATTEMPT']}-{os.environ['RANK']}").touch()
sick = out / "sick"
while not sick.exists():
    time.sleep(0.02)
if os.environ["HOLDFAST_NODE"].startswith(sick.read_text() + "-"):
    os.abort()
while not (out / "enough").exists():
    time.sleep(0.02)
"""
CHECKED_BYTES = 8 << 20  # so much is written to a disk that is checked


def trained(home: Path, how: str, nodes: int = 2, **spec: Any) -> tuple[RunningJob, str]:
    """A job that has come to its end, and the name of the node that was sick."""
    sick = home.parent / "sick"
    job = RunningJob(
        home,
        script=str(SCRIPTS / "sick.py"),
        args=["--out", str(home.parent / "out"), "--sick", str(sick), "--how", how],
        nodes={"count": nodes, "spares": 1},
        **spec,
    ).start()
    name = harmed(job, sick)
    job.wait_end()
    assert name not in [node.name for node in job.status().nodes]
    assert {line["step"] for line in job.metrics()} == {*range(1, 81)}
    return job, name


def spare_waits(job: RunningJob) -> None:
    job.wait_until(
        lambda s: s.attempt == 1 and any(n.state == "spare" for n in s.nodes), "a spare waits"
    )


def harmed(job: RunningJob, sick: Path) -> str:
    """From now on the node with node rank 1 is sick, and a spare waits for it."""
    spare_waits(job)
    name = job.member(1)
    sick.with_suffix(".new").write_text(name)
    sick.with_suffix(".new").rename(sick)
    return name


def steps(incident: Incident) -> list[str]:
    """Rungs of the ladder that were taken for it."""
    return [choice.step for choice in incident.choices]


def test_a_node_that_hangs_in_attempt_after_attempt_is_left_on_suspicion(home: Path) -> None:
    job, sick = trained(home, "hang", snapshots={"every_steps": 20})
    found = job.incidents()
    assert [(one.cause, one.node) for one in found] == [("hang", sick)] * 4
    assert [steps(one) for one in found] == [["restart"]] * 3 + [["isolate"]]
    assert f"3 attempts in a row failed because of {sick}" in found[3].choices[0].reason


def test_a_node_on_which_alone_the_script_fails_is_left_on_suspicion(home: Path) -> None:
    job, sick = trained(home, "error", nodes=3, snapshots={"every_steps": 1})
    found = job.incidents()
    assert {(one.cause, one.node) for one in found} == {("worker-exception", sick)}
    assert [steps(one) for one in found] == [["restart"]] * 3 + [["isolate"]]
    assert f"only on {sick}, while 2 other nodes did the same work" in found[3].choices[0].reason


def test_the_third_corruption_that_names_nobody_has_a_step_repeated_which_finds_the_node(
    home: Path,
) -> None:
    tiers = {"shared": {"path": str(home.parent / "checkpoints"), "every_s": 1, "keep": 1000}}
    recovery = {"check_replicas_every": 4}
    job, sick = trained(home, "flip", checkpoints=tiers, recovery=recovery)
    found = job.incidents()
    assert [one.cause for one in found] == ["corruption", "corruption", "hardware-fault"]
    assert [steps(one)[-1] for one in found] == ["restart", "restart", "replace"]
    assert "replay" in steps(found[2])
    told = f"{sick} fails in every group of 1 it was tried in"
    assert found[2].node == sick and told in found[2].summary
    assert any(one.action == "Fence" and told in one.reason for one in found[2].actions)


@pytest.mark.parametrize("bad", [True, False])
def test_where_attempts_make_no_progress_machines_are_checked_before_the_next_one(
    home: Path, bad: bool
) -> None:
    """Workers of one node abort at once, which says nothing of why. Its disk takes no file."""
    local = {"path": str(home.parent / "disks"), "every_s": 3600}
    job = program(
        home,
        ABORTS,
        nodes={"count": 2, "spares": 1},
        checkpoints={"local": local},
        recovery={"check": "quick"},
    ).start()
    sick = home.parent / "sick"
    spare_waits(job)
    if bad:
        agent = psutil.Process(job.agent(job.member(1)))
        limit = CHECKED_BYTES // 2
        agent.rlimit(psutil.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    name = harmed(job, sick)
    job.wait_until(lambda _: any("check" in steps(one) for one in job.incidents()), "the checks")
    if not bad:
        sick.write_text("nobody")
    job.wait_until(lambda s: s.phase == "running" and s.attempt == 3, "the third attempt")
    (home.parent / "enough").touch()
    job.wait_end()
    first, second = job.incidents()
    assert (first.cause, steps(first)) == ("worker-aborted", ["restart"])
    cause, last = ("hardware-fault", "replace") if bad else ("worker-aborted", "restart")
    assert (second.cause, second.node, steps(second)) == (cause, name, ["check", last])
    assert ("its machine failed its checks: disk " in second.summary) == bad
    assert (name not in [node.name for node in job.status().nodes]) == bad
