"""After new nodes that fail others are asked for ever later, and not for ever."""

import pytest

from holdfast.actions import AskNodes, EndJob, Outcome
from holdfast.controller import Phase
from holdfast.controller.arrivals import MAX_STILLBORN, YOUNG_S
from holdfast.controller.policies.restart import LAST_NODE_S, next_node_s
from holdfast.events import (
    DeadlinePassed,
    JobSubmitted,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeLostReason,
    StopRequested,
    UpdatePrepared,
    UpdateRequested,
)
from tests.controller.test_controller import World, kinds, only, running

KILLED = "its agent process was killed by SIGKILL"


def joins(world: World, node: str) -> None:
    world.tell(NodeJoined(node=node, name=node, address="127.0.0.1", workers=1))


def dies(world: World, node: str, after_s: float = 1.0) -> list[int]:
    """How many nodes are asked for at once."""
    lost = NodeLost(node=node, reason=NodeLostReason.PROCESS, detail=KILLED)
    return [a.count for a in world.tell(lost, after_s) if isinstance(a, AskNodes)]


def waits(world: World) -> float:
    """Seconds until the next one is asked for."""
    at = world.controller.next_deadline()
    assert at is not None
    wait_s = at - world.now
    assert world.tell(DeadlinePassed(), wait_s - 0.1) == []
    assert only(world.tell(DeadlinePassed(), 0.1), AskNodes).count == 1
    return wait_s


def test_spares_that_die_before_they_are_ready_are_asked_for_ever_later_and_training_goes_on() -> (
    None
):
    world = running()
    assert dies(world, "c", after_s=YOUNG_S) == [1], "that one had waited for long"
    waited = []
    for number in range(8):
        joins(world, f"x{number}")
        if dies(world, f"x{number}") == []:
            waited.append(waits(world))
    assert waited == pytest.approx([10.0, 20.0, 40.0, 80.0, 160.0, LAST_NODE_S, LAST_NODE_S])
    assert world.state.phase is Phase.RUNNING
    assert world.state.notes[-1].text == (
        f"8 new nodes in a row failed, the last: x7 died before it was ready: {KILLED}; "
        "the next is asked for in 300 s"
    )
    world.add("d")
    assert world.state.stillborn == 0 and sorted(world.state.spares) == ["d"]
    assert world.controller.next_deadline() is None


def test_a_job_that_waits_says_why_and_gives_up_after_a_few_in_a_row() -> None:
    world = World(spare_count=0)
    world.tell(JobSubmitted())
    world.add("a")
    joins(world, "x0")
    assert dies(world, "x0") == [1]
    joins(world, "x1")
    assert dies(world, "x1") == []
    assert world.state.why.startswith("1 more node needed to start, asked for in 10 s: 2 new nodes")
    assert waits(world) == pytest.approx(10.0)
    joins(world, "x2")
    lost = NodeLost(node="x2", reason=NodeLostReason.PROCESS, detail=KILLED)
    assert only(world.tell(lost), EndJob).outcome is Outcome.GAVE_UP
    assert f"x2 died before it was ready: {KILLED}" in world.state.why


def two_failed() -> World:
    """A job waits for a node, and another image is asked for that may be the way out."""
    world = World(spare_count=0)
    world.tell(JobSubmitted())
    world.add("a")
    for node in ("x0", "x1"):
        joins(world, node)
        dies(world, node)
    waits(world)
    joins(world, "x2")
    world.tell(UpdateRequested(by="me", id="y", image="img:2"))
    return world


def test_it_does_not_give_up_while_another_image_is_prepared_for_the_nodes_to_come() -> None:
    world = two_failed()
    assert dies(world, "x2") == [] and world.state.phase is Phase.WAITING
    given = world.tell(UpdatePrepared(version=2, ready_count=1))
    assert kinds(given) == ["KeepVersion", "AskNodes"], "one is asked for at once, with the image"
    joins(world, "x3")
    assert dies(world, "x3") == [1], "the first of that image"


def test_it_gives_up_with_the_next_node_if_that_image_cannot_be_used() -> None:
    world = two_failed()
    assert dies(world, "x2") == []
    world.tell(UpdatePrepared(version=2, ready_count=0, why="ImagePullBackOff"))
    assert waits(world) == pytest.approx(20.0, abs=0.2)
    joins(world, "x3")
    lost = NodeLost(node="x3", reason=NodeLostReason.PROCESS, detail=KILLED)
    assert only(world.tell(lost), EndJob).outcome is Outcome.GAVE_UP


def test_a_job_that_comes_to_wait_does_not_wait_for_as_long_as_its_spares() -> None:
    world = running()
    dies(world, "c", after_s=YOUNG_S)
    for number in range(7):
        joins(world, f"x{number}")
        if dies(world, f"x{number}") == [] and number < 6:
            waits(world)
    assert world.state.ask_at == pytest.approx(world.now + LAST_NODE_S)
    world.tell(NodeLost(node="b", reason=NodeLostReason.PROCESS))
    world.recover(cause="node-lost", rank=None)
    assert world.state.phase is Phase.WAITING
    assert world.state.ask_at == pytest.approx(world.now + 30.0)
    assert waits(world) == pytest.approx(30.0, abs=0.2), "for one, which shows whether others"
    assert only(world.add("d"), AskNodes).count == 1


def test_nodes_that_die_together_count_as_one() -> None:
    """Power is lost while all of them start, say: that is no reason to give up."""
    world = World(node_count=4, spare_count=0)
    world.tell(JobSubmitted())
    for node in "abcd":
        joins(world, node)
    asked = [count for node in "abcd" for count in dies(world, node, 0.01)]
    assert asked == [1, 1, 1, 1] and world.state.stillborn == 1 < MAX_STILLBORN


def test_nodes_that_cannot_start_workers_are_not_asked_for_at_once_nor_for_ever() -> None:
    world = World(spare_count=0)
    world.tell(JobSubmitted())
    world.add("a")
    why = "the forkserver died 4 times while it started: ImportError: no libc"
    for number, asked in enumerate([[1], []]):
        joins(world, f"x{number}")
        actions = world.tell(NodeLeft(node=f"x{number}", failed=why))
        assert [a.count for a in actions if isinstance(a, AskNodes)] == asked
    assert waits(world) == pytest.approx(10.0)
    joins(world, "x2")
    end = only(world.tell(NodeLeft(node="x2", failed=why)), EndJob)
    assert end.outcome is Outcome.GAVE_UP and why in end.reason


@pytest.mark.parametrize("how", ["young", "old", "taken away"])
def test_a_spare_that_is_ready_and_dies_at_once_was_of_no_use(how: str) -> None:
    world = running()
    world.now += YOUNG_S
    for number in range(3):
        if number:
            world.add(f"x{number}")
        node = f"x{number}" if number else "c"
        world.now += YOUNG_S if how == "old" else 0.0
        if how == "taken away":
            world.tell(NodeLeft(node=node))
        else:
            dies(world, node, 1.0)
        if world.state.ask_at is not None:
            assert how == "young" and waits(world) == pytest.approx(10.0)
    assert world.state.stillborn == (2 if how == "young" else 0)


def test_nobody_is_asked_for_once_the_job_is_to_end() -> None:
    world = running()
    for number in range(2):
        joins(world, f"x{number}")
        dies(world, f"x{number}")
    assert world.state.ask_at is not None
    assert kinds(world.tell(StopRequested(by="x"))) == ["StopAttempt"]
    assert world.controller.next_deadline() is None


def test_the_first_is_replaced_at_once_and_waits_end_somewhere() -> None:
    assert [next_node_s(count) for count in (0, 1, 2, 3, 1000)] == [0, 0, 10, 20, LAST_NODE_S]
