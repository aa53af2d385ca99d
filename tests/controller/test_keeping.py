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
    Progress,
    Progressed,
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
    assert _stop(running(in_process=True), lost=lost).park_s
    assert _stop(running(), lost=lost).park_s is None


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
    assert _stop(world).park_s is None, "there may be no snapshot of it"
    world.recover()
    for milestone in (Milestone.STARTED, Milestone.ARRIVED, Milestone.JOINED, Milestone.RESTORED):
        world.tell(MilestoneReached(attempt=2, milestone=milestone, step=0))
    assert _stop(world).park_s is None, "a second fault on the way: all are replaced"


def test_nobody_parks_who_is_asked_to_stop_for_another_reason() -> None:
    world = running(in_process=True, min_nodes=1)
    stop = only(world.tell(ScaleRequested(by="test", nodes=1)), StopAttempt)
    assert stop.park_s is None, "ranks will be others"


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


def paced(step_s: float, *, first_s: float = 0.0, **limits: float | str) -> World:
    """One whose steps take so long, and the first one so much longer."""
    world = World(in_process=True, **limits)
    world.submit()
    for milestone in (Milestone.STARTED, Milestone.ARRIVED, Milestone.JOINED, Milestone.RESTORED):
        world.tell(MilestoneReached(attempt=1, milestone=milestone, step=0))
    first = MilestoneReached(attempt=1, milestone=Milestone.FIRST_STEP)
    world.tell(first, after_s=first_s + step_s)
    for step in (1, 5):
        world.tell(Progressed(attempt=1, progress=Progress(step=step)), after_s=4 * step_s)
    return world


@pytest.mark.parametrize(
    ("step_s", "first_s", "grace_s", "park_s"),
    [
        (0.2, 0.0, 2.0, 2.0),  # never less than it was asked for
        (4.0, 0.0, 2.0, 6.0),  # as long as a step takes, and half of that more
        (12.0, 0.0, 2.0, 0.0),  # longer than is worth it: it is not waited for at all
        (12.0, 60.0, 2.0, 18.0),  # but if new processes would take longer
        (12.0, 0.0, 15.0, 18.0),  # or if the job file says so
    ],
)
def test_for_how_long_a_step_is_waited_for_follows_from_what_steps_take(
    step_s: float, first_s: float, grace_s: float, park_s: float
) -> None:
    stop = _stop(paced(step_s, first_s=first_s, restart_grace_s=grace_s))
    assert stop.park_s == pytest.approx(park_s)
    assert stop.grace_s == grace_s, "whoever is ended has no longer than before"


def test_what_new_processes_take_is_not_what_kept_ones_took() -> None:
    world = paced(12.0, first_s=60.0)
    world.kill("b", 1)
    _stopped(world, parked=1)
    world.verdict()
    world.train(step=6)
    assert _stop(world).park_s, "that start was quick because a process was kept"


def test_the_incident_tells_who_could_have_been_kept_and_why_it_was_not() -> None:
    world = paced(4.0)
    world.kill("b", 1)
    assert _stopped(world, parked=1, unkept=2)[-2:] == [
        "KeepProcesses: 1 worker keeps its process",
        "ReplaceProcesses: 2 workers did not reach the end of the step within 6 s",
    ]
    world = paced(12.0)
    world.kill("b", 1)
    (told,) = [line for line in _stopped(world, unkept=1) if line.startswith("ReplaceProcesses")]
    assert "a step takes 12 s, and at most 10 s are waited for; recovery.restart_grace_s" in told

    world = running(in_process=True, min_nodes=1)
    world.tell(ScaleRequested(by="test", nodes=1))
    assert "ReplaceProcesses" not in str(_stopped(world, unkept=2)), "nobody wanted to keep them"
