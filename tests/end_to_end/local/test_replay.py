"""A step is repeated from a checkpoint: what happened once is told from what comes again."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from holdfast.digests import StepsToRepeat
from holdfast.drivers import client
from holdfast.messages import AskReplay, ReplayReply
from tests.end_to_end.local.jobs import TOGETHER, RunningJob, small
from tests.end_to_end.local.test_numerics import SAMPLE, bad_batch
from tests.more import long
from tests.patience import PATIENCE_S
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


@long
def test_a_loss_that_was_nan_once_is_known_to_have_passed(home: Path) -> None:
    bad = ["--bad", "loss", "--bad-rank", "0", "--bad-step", "12"]
    tiers = {"shared": {"path": str(home.parent / "checkpoints"), "every_s": 1}}
    args = [*bad, "--steps", "16", "--pause", "0.15"]
    keeps: dict[str, Any] = {"checkpoints": tiers, "recovery": {"on_nan": "ignore"}}
    small(home, args=args, **keeps, **TOGETHER).start().wait_end()
    before = sorted(path.name for path in (home.parent / "checkpoints").rglob("*"))
    told = holdfast("replay", "job", "--step", "13")
    assert told.returncode == 0, told.stderr
    assert "transient: Step 13 differs from the first run (loss nan, now" in told.stdout
    assert sorted(path.name for path in (home.parent / "checkpoints").rglob("*")) == before
    assert [path.name for path in (home / "jobs").iterdir()] == ["job"]
    missed = holdfast("replay", "job", "--step", "1")
    assert missed.returncode == 4 and "error[checkpoint-not-found]" in missed.stderr


def bad_nodes(home: Path, step: int) -> list[str]:
    """Arguments with which nodes are bad when this step, from 0, is repeated: see `make_bad`."""
    make_bad(home)
    return ["--bad-nodes", str(home.parent / "bad-nodes"), "--bad-step", str(step)]


def make_bad(home: Path, *names: str) -> None:
    """These, from now on."""
    (home.parent / "bad-nodes").write_text(" ".join(f"{name}-" for name in names))


@long
def test_a_node_that_computes_wrong_is_found_by_the_others(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiers = {"shared": {"path": str(home.parent / "checkpoints"), "every_s": 1}}
    args = ["--steps", "16", "--pause", "0.15", *bad_nodes(home, 12)]
    make_bad(home, "node-3")
    small(home, args=args, checkpoints=tiers, nodes=1).start().wait_end()
    capfd.readouterr()
    words = ["replay", "job", "--step", "13", "--json"]
    assert main([*words, "--on", "node-2"]) == 0
    alike = json.loads(capfd.readouterr().out)
    assert alike["verdict"] == "genuine" and "on node-2 as well" in alike["summary"]
    assert main([*words, "--on", "node-3"]) == 1
    other = json.loads(capfd.readouterr().out)
    assert other["verdict"] == "elsewhere" and "node-3 produces wrong results" in other["summary"]
    assert main([*words, "--isolate", "--on", "node-1,node-2,node-3,node-4"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert (found["nodes"], found["sure"], found["rounds"]) == (["node-3"], True, 2)


@long
def test_batches_that_the_job_has_left_out_are_left_out_again(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Those after the checkpoint that it goes on from. The first time they were not, and the loss
    of a rank was nan."""
    number = bad_batch(SAMPLE)
    tiers = {"shared": {"path": str(home.parent / "checkpoints"), "every_s": 1}}
    args = ["--steps", "14", "--bad-sample", str(SAMPLE), "--pause", "0.4"]
    keeps: dict[str, Any] = {"checkpoints": tiers, "recovery": {"skip_batches": 3}}
    job = small(home, args=args, **keeps, **TOGETHER).start()
    job.wait_end()
    *_, last = (line["loss"] for line in job.metrics() if line["step"] == number + 1)
    capfd.readouterr()
    status = main(["replay", "job", "--step", str(number + 1), "--json"])
    found = json.loads(capfd.readouterr().out)
    assert (status, found["verdict"]) == (0, "transient") and found["from_step"] <= number, found
    assert f"now loss {last})" in found["summary"], found


def asked(job: RunningJob, id_: str, **wish: Any) -> ReplayReply:
    """Have the nodes of a running job repeat a step."""
    message = AskReplay(wish=StepsToRepeat(id=id_, by="a test", **wish))
    reply = client.request(job.folder, message, PATIENCE_S)
    assert isinstance(reply, ReplayReply)
    return reply


EVERY = {"every_s": 1, "keep": 1000}  # whatever is repeated, there is one before it
STEPS = 100_000  # never reached: however late a spare or an answer comes, the job still trains


def goes_on(job: RunningJob, *bad: str) -> None:
    """These nodes are left, and the others train on from where they were."""
    left = job.wait_until(lambda s: {n.name for n in s.nodes}.isdisjoint(bad), "they are left")
    job.wait_step((left.step or 0) + 10, attempt=left.attempt)
    assert holdfast("stop", job.name, "--now").returncode == 0
    job.wait_end(130)
    steps = [*job.losses()]
    assert steps == [*range(steps[0], steps[0] + len(steps))]


def test_the_nodes_of_a_running_job_repeat_a_step_and_the_one_that_is_bad_in_groups_is_left(
    home: Path,
) -> None:
    tiers = {"shared": {"path": str(home.parent / "checkpoints"), **EVERY}}
    args = ["--steps", str(STEPS), "--pause", "0.2", *bad_nodes(home, 12)]
    job = small(home, args=args, checkpoints=tiers, nodes=3, spares=1).start()
    job.wait_until(lambda s: (s.step or 0) > 15 and any(n.state == "spare" for n in s.nodes), "it")
    told = asked(job, "one", step=12, isolate=False)
    assert told.verdict == "genuine" and "equals the first run (loss " in told.summary, told
    assert asked(job, "two", step=12, others=("node-9",)).refused == "it has no node node-9"
    bad = job.member(1)
    make_bad(home, bad)
    found = asked(job, "three", step=13)
    assert (found.nodes, found.sure) == ((bad,), True), found
    goes_on(job, bad)
    first, *_ = job.incidents()
    assert (first.cause, first.steps_lost) == ("repeated", 0), first


@long
def test_two_nodes_of_a_running_job_that_fail_in_groups_are_left_for_its_spares(home: Path) -> None:
    tiers = {"shared": {"path": str(home.parent / "checkpoints"), **EVERY}}
    args = ["--steps", str(STEPS), "--pause", "0.05", "--bad-nodes-die", *bad_nodes(home, 25)]
    job = small(home, args=args, checkpoints=tiers, nodes=4, spares=2).start()
    job.wait_until(
        lambda s: (s.step or 0) > 30 and sum(n.state == "spare" for n in s.nodes) == 2, "spares"
    )
    bad = job.member(0), job.member(1)
    make_bad(home, *bad)
    told = asked(job, "one", step=26)
    assert (told.nodes, told.sure) == (bad, True), told
    goes_on(job, *bad)
