"""Processes of workers that live are kept, where the job wants it and a snapshot is certain."""

import pytest

from holdfast.actions import StopAttempt
from holdfast.controller import Limits
from holdfast.events import (
    AttemptStopped,
    Milestone,
    MilestoneReached,
    NodeLost,
    NodeLostReason,
    ScaleRequested,
)
from holdfast.spec import job_from_dict
from tests.controller.test_controller import World, kinds, only, running

LOST = NodeLost(node="b", reason=NodeLostReason.PROCESS)


def _stop(world: World, *, lost: bool = False) -> StopAttempt:
    return only(world.tell(LOST) if lost else world.kill("b", 1), StopAttempt)


def _stopped(world: World, **how: object) -> list[str]:
    event = AttemptStopped(attempt=world.state.attempt, store=world.store(), **how)  # type: ignore[arg-type]
    world.tell(event)
    return [f"{taken.action}: {taken.reason}" for taken in world.state.incidents[-1].actions]


@pytest.mark.parametrize("lost", [False, True])
def test_survivors_of_a_fault_are_told_to_park_only_if_the_job_wants_it(lost: bool) -> None:
    assert _stop(running(in_process=True), lost=lost).parks
    assert not _stop(running(), lost=lost).parks


@pytest.mark.parametrize(
    ("mode", "kept"), [("auto", True), ("processes", False), ("in_process", True), (None, True)]
)
def test_whoever_can_may_park_unless_the_job_says_processes(mode: str | None, kept: bool) -> None:
    """By default that is whoever declares it; the number of nodes never changes for it."""
    recovery = {} if mode is None else {"mode": mode}
    given = {"name": "job", "script": "train.py", "nodes": 2, "elasticity": {"min_nodes": 1}}
    limits = Limits.of(job_from_dict({**given, "recovery": recovery}, where="test"))
    assert (limits.in_process, limits.replicas) == (kept, False)


def test_nobody_parks_before_the_first_step_of_an_attempt() -> None:
    world = World(in_process=True)
    world.submit()
    assert not _stop(world).parks, "there may be no snapshot of it"
    world.recover()
    for milestone in (Milestone.STARTED, Milestone.ARRIVED, Milestone.JOINED, Milestone.RESTORED):
        world.tell(MilestoneReached(attempt=2, milestone=milestone, step=0))
    assert not _stop(world).parks, "a second fault on the way: all are replaced"


def test_nobody_parks_who_is_asked_to_stop_for_another_reason() -> None:
    world = running(in_process=True, min_nodes=1)
    assert not only(world.tell(ScaleRequested(by="test", nodes=1)), StopAttempt).parks, (
        "ranks will be others"
    )


def test_the_incident_tells_what_was_kept_and_why_not_more() -> None:
    world = running(in_process=True)
    world.kill("b", 1)
    told = _stopped(world, parked=1)
    assert told[-1] == "KeepProcesses: 1 worker keeps its process"
    assert kinds(world.verdict()) == ["StartAttempt"]

    world = running(in_process=True)
    world.kill("b", 1)
    told = _stopped(world, parked=3, refusal="it uses nccl")
    assert told[-2:] == [
        "KeepProcesses: 3 workers keep their processes",
        "ReplaceProcesses: a worker cannot be kept: it uses nccl",
    ]


def test_a_survivor_that_did_not_park_changes_nothing_of_the_restart() -> None:
    world = running(in_process=True)
    world.kill("b", 1)
    assert all(not line.startswith(("Keep", "Replace")) for line in _stopped(world))
    assert kinds(world.verdict()) == ["StartAttempt"]
