"""Training goes on after a kill at any moment, and loses nothing that a snapshot held."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import journal
from holdfast.drivers.local import SPARES_AFTER_S
from holdfast.events import Milestone, MilestoneReached, NodeJoined, NodeLost, NodeLostReason
from tests.end_to_end.local.jobs import ENDLESS, TOGETHER, RunningJob, small
from tests.more import MORE, long, sample

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

STEPS = 24
KILLS = 10 if MORE else 5


@pytest.mark.parametrize(
    ("moment", "shape"),
    sample(
        [("rendezvous", {})],
        [
            ("snapshot", {}),
            ("between-steps", TOGETHER),
            ("first-step", TOGETHER),
            ("last-step", TOGETHER),
            ("after-steps", {}),
        ],
    ),
)
def test_a_worker_killed_at_any_moment_costs_at_most_a_step(
    home: Path, moment: str, shape: dict[str, Any]
) -> None:
    args = ["--steps", str(STEPS), "--die", moment]
    job = small(home, args=args, **shape).start()
    job.wait_end()
    assert (job.out / "died").exists(), "the kill never happened"
    (incident,) = job.incidents()
    assert (incident.cause, incident.signal, incident.rank) == ("worker-killed", 9, 1), incident
    assert incident.steps_lost <= 1
    assert incident.ended_at is not None
    assert sorted(job.losses()) == list(range(STEPS)) or sorted(job.losses()) == list(
        range(1, STEPS + 1)
    )
    assert (job.out / "final.pt").exists()


def test_a_worker_killed_before_join_is_restarted(home: Path) -> None:
    args = ["--steps", "5", "--die", "before-join"]
    job = small(home, args=args, warm={"mode": "off"}, **TOGETHER).start()
    job.wait_end()
    assert [i.cause for i in job.incidents()] == ["worker-killed"]


@long
def test_a_lost_agent_is_replaced_by_the_spare(home: Path) -> None:
    job = small(home, spares=1, args=["--steps", "60"]).start()
    job.wait_step(10)
    victim = job.member(1)
    os.kill(job.agent(victim), signal.SIGKILL)
    job.wait_step(20, attempt=2)
    assert job.member(1) != victim
    job.wait_end()
    (incident,) = job.incidents()
    assert (incident.cause, incident.node) == ("node-lost", victim)
    assert incident.steps_lost <= 2
    assert [choice.step for choice in incident.choices] == ["replace"]


@long
def test_the_node_with_rank_0_and_the_store_can_be_lost_too(home: Path) -> None:
    job = small(home, spares=1, args=ENDLESS).start()
    done = job.wait_step(5).step or 0
    job.kill_node(job.member(0))
    job.wait_step(done + 5, attempt=2)
    job.finish()
    assert [i.cause for i in job.incidents()] == ["node-lost"]


def test_a_stopped_agent_is_lost_within_the_heartbeat_timeout(home: Path) -> None:
    recovery = {"heartbeat_timeout_s": 2.0}
    args = [*ENDLESS, "--pause", "0.2"]  # its workers train on until that is noticed
    job = small(home, spares=1, args=args, recovery=recovery).start()
    job.wait_step(5)
    victim = job.member(1)
    os.kill(job.agent(victim), signal.SIGSTOP)
    again = job.wait_step(1, attempt=2)
    job.wait_step((again.step or 0) + 2, attempt=2)
    job.finish()
    told = [entry.event for entry in journal.entries(job.folder / "journal.jsonl")]
    lost = [one for one in told if isinstance(one, NodeLost)]
    (its,) = (one for one in lost if one.node.startswith(f"{victim}-"))
    assert its.reason is NodeLostReason.SILENT and "heartbeat" in its.detail
    assert its.detail.endswith("; its process is stopped (state T)")
    if len(lost) == 1:  # others are silent for so long where there is no processor for them
        (incident,) = job.incidents()
        assert (incident.cause, incident.node) == ("node-lost", victim)
        assert "heartbeat" in incident.summary
        _its_next_spare_left_the_processors_to_what_recovered(job)


@long
def test_many_kills_in_a_row_at_random_moments(home: Path) -> None:
    chance = random.Random(20261120)
    args = ["--steps", str(20 * KILLS), "--pause", "0.06"]
    job = small(home, args=args, **TOGETHER).start()
    step = 5
    for kill in range(KILLS):
        job.wait_step(step, attempt=kill + 1)
        os.kill(job.worker(chance.randrange(2)), signal.SIGKILL)
        status = job.wait_until(
            lambda s, kill=kill: s.attempt == kill + 2 and s.phase == "running",  # type: ignore[misc]
            f"recovery from kill {kill + 1}",
        )
        step = (status.step or 0) + chance.randrange(10)
    job.wait_end()
    assert [i.cause for i in job.incidents()] == ["worker-killed"] * KILLS
    assert max(i.steps_lost for i in job.incidents()) <= 1


def _its_next_spare_left_the_processors_to_what_recovered(job: RunningJob) -> None:
    entries = list(journal.entries(job.folder / "journal.jsonl"))
    (lost,) = [e.at for e in entries if isinstance(e.event, NodeLost)]
    trained = [
        e.at
        for e in entries
        if isinstance(e.event, MilestoneReached) and e.event.milestone is Milestone.FIRST_STEP
    ]
    joined = [e.at for e in entries if isinstance(e.event, NodeJoined) and e.at > lost]
    assert all(at > trained[1] or at > lost + SPARES_AFTER_S for at in joined)
