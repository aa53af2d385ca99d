"""An error that comes again: on whose account, by where and when it came before."""

import msgspec
import pytest

from holdfast.actions import AnyAction, AssignRank, Diagnose, EndJob, Fence, Outcome, StartAttempt
from holdfast.controller import Phase
from holdfast.controller.state import State
from holdfast.dimensions import Layout
from holdfast.events import (
    DeadlinePassed,
    Diagnosed,
    HealthChanged,
    JobSubmitted,
    NodeLost,
    NodeLostReason,
    Progress,
    Severity,
    WorkerError,
)
from holdfast.shell.bridge import Bridge
from holdfast.versions import FIRST
from tests.controller.test_controller import World, kinds, only, running
from tests.controller.test_updates import updated

ILLEGAL = WorkerError(
    type="torch.AcceleratorError",
    message="CUDA error: an illegal memory access was encountered",
    file="train.py",
    line=30,
)
SCRIPT = WorkerError(type="ValueError", message="x", file="train.py", line=12)
LOADER = WorkerError(
    type="RuntimeError",
    message="DataLoader worker (pid 7) is killed by signal: Killed. ",
    file="train.py",
    line=20,
)


def fails(world: World, error: WorkerError, rank: int, step: int | None) -> list[AnyAction]:
    """A rank does, after this step, and the bridge weighs it; the orders that follow, and those
    once the next attempt may start."""
    node = world.state.ranks[rank]
    world.tell(world.exited(node, rank, error=error, progress=Progress(step=step)))
    order = only(world.all_stopped(), Diagnose)
    (verdict,) = Bridge(world.state, 5.0, world.now).carry_out(order, world.now)[1]
    assert isinstance(verdict, Diagnosed)
    actions = world.tell(verdict)
    if world.state.phase is Phase.WAITING and world.state.start_deadline is not None:
        actions += world.tell(DeadlinePassed(), world.state.start_deadline - world.now)
    return actions


def larger(**limits: float | str) -> World:
    """Of five nodes and a spare."""
    world = World(node_count=5, **limits)
    world.submit()
    for node in ("d", "e", "f"):
        world.add(node)
    world.train(step=10)
    return world


def counted(state: State) -> list[str]:
    """Nodes that have device faults to their account."""
    return [node for node, times in state.faults.items() if times]


def test_a_device_error_at_the_same_step_of_different_nodes_counts_against_none_of_them() -> None:
    world = running()
    fails(world, ILLEGAL, 1, step=12)
    assert counted(world.state) == ["b"]
    assert "Fence" not in kinds(fails(world, ILLEGAL, 0, step=12))
    assert counted(world.state) == []
    (line,) = world.state.incidents[-1].evidence
    assert line == (
        "the same error occurred 2 times after step 12, on b, a; cause: the code, its data, or "
        "something the nodes share, not one machine (confidence 80 %)"
    )
    assert line.startswith(world.state.incidents[-1].choices[-1].reason)
    assert "Fence" not in kinds(fails(world, ILLEGAL, 1, step=12)), "b has had it twice"


def test_it_is_then_an_error_of_the_script_which_is_not_repeated_for_ever() -> None:
    world = running()
    for rank in (1, 0, 1):
        assert only(fails(world, ILLEGAL, rank, step=12), StartAttempt)
    end = only(fails(world, ILLEGAL, 0, step=12), EndJob)
    assert end.outcome is Outcome.FAILED
    assert "the same error repeated at the same place" in end.reason
    assert "illegal memory access" in end.reason


def test_a_data_loader_killed_at_one_item_again_and_again_is_not_tried_until_the_cap() -> None:
    world = running()
    for _ in range(3):
        assert only(fails(world, LOADER, 1, step=12), StartAttempt)
    assert world.state.incidents[-1].evidence == [
        "a data loader process was killed 3 times after step 12; cause: what it reads there "
        "is too large for the memory, or crashes the reader (confidence 95 %)"
    ]
    end = only(fails(world, LOADER, 1, step=12), EndJob)
    assert end.outcome is Outcome.FAILED
    assert "is killed by signal: Killed" in end.reason


def test_a_data_loader_killed_at_other_steps_is_tried_again() -> None:
    world = running()
    for step in (12, 13, 14, 15, 16):
        assert only(fails(world, LOADER, 0, step=step), StartAttempt)


def test_a_node_that_has_taken_over_is_not_left_for_the_same_error_at_the_same_step() -> None:
    world = running()
    fails(world, ILLEGAL, 1, step=12)
    assert only(fails(world, ILLEGAL, 1, step=12), Fence).node == "b"
    world.add("d")
    assert "Fence" not in kinds(fails(world, ILLEGAL, 1, step=12))
    assert only(fails(world, ILLEGAL, 1, step=12), EndJob).outcome is Outcome.FAILED
    assert world.state.ranks == {0: "a", 1: "c"}


def test_device_errors_between_which_there_was_progress_are_counted_as_ever() -> None:
    world = running()
    fails(world, ILLEGAL, 1, step=12)
    fails(world, ILLEGAL, 0, step=13)
    assert counted(world.state) == ["b", "a"]
    assert only(fails(world, ILLEGAL, 1, step=14), Fence).blamed


@pytest.mark.parametrize("before", [(0,), (1, 0)])
def test_what_the_agent_of_a_node_tells_of_its_device_outweighs_that(
    before: tuple[int, ...],
) -> None:
    world = running()
    for rank in before:
        fails(world, ILLEGAL, rank, step=12)
    world.tell(world.exited("b", 1, error=ILLEGAL, progress=Progress(step=12)))
    xid = HealthChanged(node="b", condition="xid-79", severity=Severity.FATAL, detail="XID 79")
    world.tell(xid)
    order = only(world.all_stopped(), Diagnose)
    (verdict,) = Bridge(world.state, 5.0, world.now).carry_out(order, world.now)[1]
    actions = world.tell(verdict)
    assert only(actions, Fence).node == "b" and only(actions, Fence).blamed
    assert world.state.incidents[-1].cause == "hardware-fault"
    assert len(world.state.occurrences) == len(before)


def test_an_error_only_ever_on_one_node_has_a_spare_take_its_place_and_blames_nobody() -> None:
    world = larger()
    for step in (12, 13):
        assert "Fence" not in kinds(fails(world, SCRIPT, 1, step))
    actions = fails(world, SCRIPT, 1, step=14)
    fence = only(actions, Fence)
    assert (fence.node, fence.blamed, only(actions, AssignRank).node) == ("b", False, "f")
    assert "only on b, while 4 other nodes did the same work" in fence.reason
    assert "(confidence 60 %)" in world.state.incidents[-1].evidence[0]
    assert world.state.incidents[-1].choices[-1].step == "isolate"

    world.add("g")
    assert "Fence" not in kinds(fails(world, SCRIPT, 1, step=15)), "it has come along"
    assert "the same error occurred on b, and now on f" in world.state.incidents[-1].evidence[0]
    for step in (16, 17, 18, 19):
        assert "Fence" not in kinds(fails(world, SCRIPT, 1, step))


@pytest.mark.parametrize("why", ["no spare", "nodes stay", "stages differ"])
def test_it_stays_where_none_can_take_its_place_or_should_and_where_nobody_does_the_same(
    why: str,
) -> None:
    world = larger(replace_after=0 if why == "nodes stay" else 2)
    if why == "no spare":
        world.tell(NodeLost(node="f", reason=NodeLostReason.SILENT))
    elif why == "stages differ":
        world.state.limits = msgspec.structs.replace(world.state.limits, layout=Layout(pp=5))
    for step in range(12, 20):
        assert "Fence" not in kinds(fails(world, SCRIPT, 1, step))
    told = [line for incident in world.state.incidents for line in incident.evidence]
    assert bool(told) == (why != "stages differ")


def test_an_error_of_several_nodes_or_of_rank_0_leaves_all_where_they_are() -> None:
    world = larger()
    for step in range(12, 18):
        assert "Fence" not in kinds(fails(world, SCRIPT, 0, step))
    world = larger()
    for step in range(12, 18):
        assert "Fence" not in kinds(fails(world, SCRIPT, 1 + step % 2, step))


def test_a_device_error_that_a_new_version_brings_to_different_nodes_takes_it_back() -> None:
    world = updated()
    assert only(fails(world, ILLEGAL, 1, step=12), StartAttempt).version.number == 2
    assert only(fails(world, ILLEGAL, 0, step=12), StartAttempt).version == FIRST
    assert counted(world.state) == []


# ── workers that get no GPU ──


NO_GPU = WorkerError(
    type="RuntimeError", message="No CUDA GPUs are available", file="train.py", line=4
)


def restarted(**limits: float | str) -> World:
    """It has trained, and its workers are new since."""
    world = running(**limits)
    assert only(fails(world, LOADER, 0, step=12), StartAttempt)
    return world


def without_gpu(world: World, *ranks: int) -> list[AnyAction]:
    """These say so as they begin; the orders that follow."""
    for rank in ranks[1:]:
        world.tell(world.exited(world.state.ranks[rank], rank, error=NO_GPU))
    return fails(world, NO_GPU, ranks[0], step=None)


def test_a_node_that_has_no_gpu_any_more_where_the_job_has_trained_is_left_at_once() -> None:
    world = restarted()
    fence = only(without_gpu(world, 1), Fence)
    assert (fence.node, fence.blamed) == ("b", True)
    incident = world.state.incidents[-1]
    assert (incident.cause, incident.rank) == ("device-lost", 1)
    assert incident.summary == (
        "Rank 1 failed with RuntimeError: No CUDA GPUs are available (train.py:4); "
        "1 of 2 nodes of a job that has trained has no GPU any more."
    )


def test_of_a_single_node_that_is_its_machines_too() -> None:
    world = World(node_count=1, spare_count=0)
    world.submit()
    world.train(step=10)
    fails(world, LOADER, 0, step=12)
    assert only(without_gpu(world, 0), Fence).node == "a"
    assert world.state.incidents[-1].cause == "device-lost"


def test_where_all_nodes_have_none_any_more_no_machine_is_blamed_and_it_is_waited() -> None:
    world = restarted()
    for _ in range(3):
        actions = without_gpu(world, 1, 0)
        assert "Fence" not in kinds(actions) and only(actions, StartAttempt)
        assert world.state.incidents[-1].cause == "environment"
        assert "all 2 nodes of a job that has trained" in world.state.incidents[-1].summary


def test_a_job_that_never_had_gpus_is_told_so_and_leaves_no_node() -> None:
    world = World()
    world.submit()
    assert "Fence" not in kinds(without_gpu(world, 1, 0))
    end = only(without_gpu(world, 1, 0), EndJob)
    assert end.outcome is Outcome.FAILED and "No CUDA GPUs are available" in end.reason
    assert {incident.cause for incident in world.state.incidents} == {"worker-exception"}


def test_before_any_step_the_same_node_alone_twice_gives_its_rank_to_a_spare_once() -> None:
    world = World()
    world.submit()
    assert "Fence" not in kinds(without_gpu(world, 1)), "the other may have been stopped before"
    actions = without_gpu(world, 1)
    fence = only(actions, Fence)
    assert (fence.node, fence.blamed, only(actions, AssignRank).node) == ("b", False, "c")
    world.add("d")
    end = only(without_gpu(world, 1), EndJob)
    assert end.outcome is Outcome.FAILED, "it is not that machine: the spare has none either"


def test_before_any_step_the_same_node_alone_twice_ends_the_job_where_no_spare_is() -> None:
    world = World(spare_count=0)
    world.tell(JobSubmitted())
    for node in ("a", "b"):
        world.add(node)
    without_gpu(world, 1)
    assert only(without_gpu(world, 1), EndJob).outcome is Outcome.FAILED


def test_before_any_step_two_nodes_that_say_so_one_after_the_other_end_the_job() -> None:
    world = World()
    world.submit()
    without_gpu(world, 1)
    assert "Fence" not in kinds(actions := without_gpu(world, 0))
    assert only(actions, EndJob).outcome is Outcome.FAILED


def test_no_gpu_in_an_attempt_that_trains_or_a_version_on_trial_is_the_scripts() -> None:
    """A process of its own may hide them, and so may a new setting."""
    world = running()
    world.tell(world.exited("b", 1, error=NO_GPU, progress=Progress(step=12)))
    order = only(world.all_stopped(), Diagnose)
    (verdict,) = Bridge(world.state, 5.0, world.now).carry_out(order, world.now)[1]
    assert isinstance(verdict, Diagnosed) and verdict.cause == "worker-exception"

    world = updated()
    assert only(without_gpu(world, 1), StartAttempt).version == FIRST
    assert world.state.incidents[-1].cause == "worker-exception"


# ── what was there when the job trained ──


NOT_FOUND = WorkerError(
    type="FileNotFoundError", message="Unable to find 'https://data.example/0.jsonl'", line=3
)
EXPIRED = WorkerError(
    type="OSError", message="[Errno 22] Bad Request", file="train.py", line=9,
    traceback=(
        "Traceback (most recent call last):\n"
        '  File "/home/me/.venv/lib/python3.11/site-packages/aiobotocore/client.py", line 9, in x\n'
        "botocore.exceptions.ClientError: An error occurred (400) when calling the HeadObject "
        "operation: Bad Request\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/home/me/train.py", line 9, in <module>\n'
        "OSError: [Errno 22] Bad Request\n"
    ),
)  # fmt: skip


@pytest.mark.parametrize("error", [NOT_FOUND, EXPIRED])
def test_what_the_job_has_read_before_is_waited_for(error: WorkerError) -> None:
    world = restarted()
    for _ in range(3):
        assert only(fails(world, error, 1, step=None), StartAttempt)
        assert world.state.incidents[-1].cause == "environment"


@pytest.mark.parametrize("error", [NOT_FOUND, EXPIRED])
def test_what_it_has_never_read_is_not(error: WorkerError) -> None:
    world = World()
    world.submit()
    assert only(fails(world, error, 1, step=None), StartAttempt)
    assert only(fails(world, error, 1, step=None), EndJob).outcome is Outcome.FAILED


def test_in_an_attempt_that_trains_a_token_may_expire_but_no_file_is_excused() -> None:
    for error, cause in ((EXPIRED, "environment"), (NOT_FOUND, "worker-exception")):
        world = running()
        world.tell(world.exited("b", 1, error=error, progress=Progress(step=12)))
        order = only(world.all_stopped(), Diagnose)
        (verdict,) = Bridge(world.state, 5.0, world.now).carry_out(order, world.now)[1]
        assert isinstance(verdict, Diagnosed) and verdict.cause == cause
