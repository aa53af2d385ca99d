"""A job leaves only so many nodes in an hour because they are blamed; those that are gone, all."""

import pytest

from holdfast.actions import AnyAction, AssignRank, EndJob, Fence, Outcome, StartAttempt
from holdfast.controller import Phase
from holdfast.controller.policies.replace import REMOVALS_MIN, REMOVALS_S, removals_most
from holdfast.controller.policies.restart import LAST_NODE_S
from holdfast.events import (
    DeadlinePassed,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    NodeLostReason,
    NodeReady,
    Severity,
)
from tests.controller.test_controller import World, kinds, only, running
from tests.controller.test_health import change

ALL_LEFT = f"{REMOVALS_MIN} nodes were removed in the last hour, the limit for this job"


def at_the_limit(**limits: float | str) -> World:
    """As many nodes were left as may be, each for a fault that it had as soon as it trained."""
    world = running(**{"max_restarts": 99, **limits})
    for number in range(REMOVALS_MIN):
        member = world.state.ranks[1]
        world.tell(change(member))
        assert only(world.recover(cause="peer-lost", rank=0), Fence).node == member
        world.train(step=20 + 10 * number)
        world.add(f"new-{number}")
    return world


def test_the_next_one_trains_on_and_why_is_what_was_chosen() -> None:
    world = at_the_limit()
    member = world.state.ranks[1]
    assert world.tell(change(member)) == []
    choice = world.controller.choices[-1]
    assert (choice.about, choice.step, choice.reason) == (member, "carry-on", ALL_LEFT)
    (row,) = [one for one in choice.alternatives if one.step == "replace"]
    assert (row.sufficient, row.why) == (False, ALL_LEFT)


def test_the_next_one_whose_worker_fails_starts_again_in_place() -> None:
    world = at_the_limit()
    member = world.state.ranks[1]
    world.kill(member, 1)
    actions = world.recover(cause="device-lost", rank=1)
    assert "Fence" not in kinds(actions) and only(actions, StartAttempt)
    assert world.state.ranks[1] == member
    assert ALL_LEFT in world.state.incidents[-1].choices[-1].reason


def test_it_is_left_once_an_hour_has_passed_since_the_first_of_them() -> None:
    world = at_the_limit()
    member = world.state.ranks[1]
    world.tell(change(member))
    due = world.controller.next_deadline()
    assert due is not None and due == world.state.removals[0].at + REMOVALS_S
    assert world.tell(DeadlinePassed(), after_s=due - world.now - 0.01) == []
    assert kinds(world.tell(DeadlinePassed(), after_s=0.01)) == ["StopAttempt"]
    assert only(world.recover(cause="peer-lost", rank=0), Fence).node == member
    assert world.state.held_until is None


def fails_again(world: World) -> tuple[list[AnyAction], float]:
    """An attempt with the same member, without progress, and the wait after it."""
    world.kill(world.state.ranks[1], 1)
    actions, since = world.recover(cause="device-lost", rank=1), world.now
    while world.state.phase is Phase.WAITING:
        due = world.controller.next_deadline()
        assert due is not None and due - world.now < LAST_NODE_S + 1.0
        actions += world.tell(DeadlinePassed(), after_s=due - world.now)
    return actions, world.now - since


def test_attempts_with_it_do_not_use_up_the_restarts_and_come_ever_later_until_it_is_left() -> None:
    world = at_the_limit(max_restarts=REMOVALS_MIN + 1)
    member, first = world.state.ranks[1], world.state.removals[0]
    waits: list[float] = []
    while world.state.ranks[1] == member:
        actions, waited_s = fails_again(world)
        assert "EndJob" not in kinds(actions)
        waits.append(waited_s)
    assert world.now >= first.at + REMOVALS_S - 1.0
    assert len(waits) < 25 and waits == sorted(waits[:-1]) + waits[-1:]
    assert kinds(actions)[-4:] == ["Fence", "AskNodes", "AssignRank", "StartAttempt"]
    assert len(world.state.restarts) <= REMOVALS_MIN + 1
    choice = world.state.incidents[-1].choices[-1]
    assert (choice.step, choice.about) == ("replace", member)


def test_while_it_waits_why_says_what_for_and_until_when() -> None:
    world = at_the_limit()
    for _ in range(3):
        fails_again(world)
    member = world.state.ranks[1]
    world.kill(member, 1)
    world.recover(cause="device-lost", rank=1)
    left_s = world.state.removals[0].at + REMOVALS_S - world.now
    said = f"{ALL_LEFT}: {member} may be replaced in {left_s:.3g} s"
    choice = world.state.incidents[-1].choices[-1]
    assert (choice.step, world.state.why) == ("wait", choice.reason)
    assert choice.reason.startswith(said), choice.reason
    rows = {one.step: one.why for one in choice.alternatives if not one.sufficient}
    assert "3 attempts in a row made no progress" in rows["restart"]
    assert rows["replace"] == ALL_LEFT


def test_its_first_failure_counts_as_one_with_a_spare_would() -> None:
    world = at_the_limit(max_restarts=REMOVALS_MIN)
    world.kill(world.state.ranks[1], 1)
    assert only(world.recover(cause="device-lost", rank=1), EndJob).outcome is Outcome.GAVE_UP


def test_where_it_goes_while_it_is_waited_for_a_spare_starts_at_once() -> None:
    world = at_the_limit()
    for _ in range(5):
        fails_again(world)
    member, spare = world.state.ranks[1], world.state.spares[0]
    world.kill(member, 1)
    world.recover(cause="device-lost", rank=1)
    assert world.state.start_deadline is not None
    actions = world.tell(NodeLost(node=member, reason=NodeLostReason.PROCESS))
    assert only(actions, AssignRank).node == spare and only(actions, StartAttempt)


def test_where_no_spare_waits_restarts_with_it_count() -> None:
    world = at_the_limit(max_restarts=REMOVALS_MIN + 2)
    world.tell(NodeLost(node=world.state.spares[0], reason=NodeLostReason.PROCESS))
    ended: list[AnyAction] = []
    for _ in range(3):
        ended, _ = fails_again(world)
    assert only(ended, EndJob).outcome is Outcome.GAVE_UP


def test_a_loop_that_comes_along_to_every_node_ends_and_costs_four_nodes_in_an_hour() -> None:
    world = running(max_restarts=6)
    began, left = world.now, 0
    for number in range(200):
        actions, _ = fails_again(world)
        fences = kinds(actions).count("Fence")
        left += fences
        if "EndJob" in kinds(actions):
            break
        if fences:
            world.add(f"new-{number}")
    assert world.state.outcome is Outcome.GAVE_UP
    assert left <= REMOVALS_MIN * (1 + (world.now - began) / REMOVALS_S)


def test_nobody_waits_for_that_hour_if_there_is_no_fault_any_more() -> None:
    world = at_the_limit()
    member = world.state.ranks[1]
    world.tell(change(member))
    assert world.controller.next_deadline() is not None
    world.tell(change(member, Severity.OK))
    assert world.tell(DeadlinePassed(), after_s=REMOVALS_S) == []
    assert world.controller.next_deadline() is None


def test_nobody_waits_for_that_hour_if_there_is_no_spare() -> None:
    world = at_the_limit()
    world.tell(NodeLost(node=world.state.spares[0], reason=NodeLostReason.PROCESS))
    world.tell(change(world.state.ranks[1]))
    assert world.state.held_until is None


@pytest.mark.parametrize("reason", [r for r in NodeLostReason if r is not NodeLostReason.STUCK])
def test_a_node_that_is_gone_is_replaced_whatever_was_before(reason: NodeLostReason) -> None:
    world = at_the_limit()
    for number in range(2 * REMOVALS_MIN):
        spare = world.state.spares[0]
        lost = world.tell(NodeLost(node=world.state.ranks[1], reason=reason))
        assert "AskNodes" in kinds(lost)
        assert only(world.recover(cause="peer-lost", rank=0), AssignRank).node == spare
        world.train(step=100 + 10 * number)
        world.add(f"more-{number}")
    assert len(world.state.removals) == REMOVALS_MIN, "and does not count as one that was left"


def test_a_node_that_is_to_go_hands_over_whatever_was_before() -> None:
    world = at_the_limit()
    member = world.state.ranks[1]
    assert kinds(world.tell(change(member, Severity.LEAVES))) == ["StopAttempt"]
    assert only(world.recover(cause="peer-lost", rank=0), Fence).node == member
    assert len(world.state.removals) == REMOVALS_MIN


def test_of_a_rack_only_half_is_left_and_of_another_one_more() -> None:
    world = World(node_count=4, spare_count=8, max_restarts=99)
    world.tell(JobSubmitted())
    for number in range(12):
        rack = "row-a" if number < 4 else f"rack-{number}"
        node = f"n{number}"
        world.tell(NodeJoined(node=node, name=node, address="h", workers=1, rack=rack))
        world.tell(NodeReady(node=node, store=world.store(), instrumented=True))
    for number in range(2):
        world.train(step=10 * number + 10)
        world.tell(change(f"n{number}"))
        assert only(world.recover(cause="peer-lost", rank=None), Fence).node == f"n{number}"
    world.train(step=40)
    assert world.tell(change("n2")) == []
    reason = world.controller.choices[-1].reason
    assert reason == "nodes removed from row-a in the last hour: 2; check that rack"
    other = world.state.ranks[0]
    assert world.state.nodes[other].rack != "row-a"
    assert kinds(world.tell(change(other))) == ["StopAttempt"]
    assert only(world.recover(cause="peer-lost", rank=None), Fence).node == other


def test_both_nodes_of_a_small_rack_are_left() -> None:
    world = World(node_count=4, spare_count=4)
    world.tell(JobSubmitted())
    for number in range(8):
        rack = f"rack-{number // 2}"
        node = f"n{number}"
        world.tell(NodeJoined(node=node, name=node, address="h", workers=1, rack=rack))
        world.tell(NodeReady(node=node, store=world.store(), instrumented=True))
    for node in ("n0", "n1"):
        world.train(step=10)
        world.tell(change(node))
        assert only(world.recover(cause="peer-lost", rank=None), Fence).node == node


def test_of_several_that_fail_at_once_as_many_are_left_as_may_be() -> None:
    world = World(node_count=8, spare_count=8, copies=8)
    world.tell(JobSubmitted())
    for number in range(16):
        world.add(f"n{number}")
    world.train(step=10)
    for node in sorted(world.state.ranks.values())[:6]:
        world.tell(change(node))
    fences = [a for a in world.recover(cause="peer-lost", rank=None) if isinstance(a, Fence)]
    assert len(fences) == REMOVALS_MIN
    assert world.state.phase in ("starting", "running")


@pytest.mark.parametrize(("nodes", "most"), [(1, 4), (400, 4), (401, 5), (12_500, 125)])
def test_a_large_job_may_leave_more(nodes: int, most: int) -> None:
    expected = 6.5e-3 * nodes / 24  # of RSC-1
    assert removals_most(nodes) == most > 30 * expected
