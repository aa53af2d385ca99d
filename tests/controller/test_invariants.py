"""The invariants are cheap to watch and still find what is broken."""

import pytest

from holdfast.controller import Controller, Limits, NodeState, State
from holdfast.controller.invariants import OFTEN, Watch, check
from holdfast.controller.state import IllegalMoveError, Node
from holdfast.events import JobSubmitted, NodeJoined, NodeLost, NodeLostReason, NodeReady, Store


def crew(count: int, spares: int = 1) -> Controller:
    controller = Controller(Limits(node_count=count, spare_count=spares))
    controller.handle(JobSubmitted(), 0.0)
    for number in range(count + spares):
        node = f"n{number}"
        controller.handle(NodeJoined(node=node, name=node, address="h", workers=1), 1.0)
    for number in reversed(range(count + spares)):
        controller.handle(NodeReady(node=f"n{number}", store=Store("h", number, True)), 2.0)
    return controller


def check_often(watch: Watch, state: State) -> None:
    for _ in range(OFTEN):
        watch.check(state)


def forget_a_spare(state: State) -> None:
    state.spares.clear()


def give_a_rank_twice(state: State) -> None:
    state.nodes["n0"].node_rank, state.nodes["n0"].state = 1, NodeState.MEMBER


def resurrect(state: State) -> None:
    state.lost["n1"] = "gone"


def forget_a_vacancy(state: State) -> None:
    del state.ranks[0]


@pytest.mark.parametrize(
    "breakage", [forget_a_spare, give_a_rank_twice, resurrect, forget_a_vacancy]
)
def test_what_only_a_look_at_all_nodes_shows_is_found_within_a_thousand_events(
    breakage: object,
) -> None:
    state, watch = crew(3).state, Watch()
    watch.check(state)
    assert callable(breakage)
    breakage(state)
    with pytest.raises(IllegalMoveError, match="invariant broken"):
        check(state)
    with pytest.raises(IllegalMoveError, match="invariant broken"):
        check_often(watch, state)


def test_a_broken_rule_that_is_cheap_to_check_is_found_at_once() -> None:
    state, watch = crew(2).state, Watch()
    watch.check(state)
    state.stopped = True
    with pytest.raises(IllegalMoveError, match="a training attempt is not stopped"):
        watch.check(state)


def test_the_spare_that_has_been_ready_longest_takes_the_lowest_vacant_rank() -> None:
    controller = crew(3, spares=2)
    state = controller.state
    assert state.ranks == {0: "n4", 1: "n3", 2: "n2"}
    assert state.spares == ["n1", "n0"]
    for node in ("n2", "n4"):
        controller.handle(NodeLost(node=node, reason=NodeLostReason.PROCESS), 3.0)
    assert state.vacant == [0, 2]
    check(state)


def test_a_spare_that_is_lost_takes_no_rank() -> None:
    controller = crew(2, spares=1)
    controller.handle(NodeLost(node="n0", reason=NodeLostReason.PROCESS), 3.0)
    assert controller.state.spares == []
    check(controller.state)


def test_a_node_that_is_named_spare_by_the_state_alone_is_found() -> None:
    state = crew(2, spares=0).state
    odd = Node(node="x", name="x", address="h", workers=1, state=NodeState.SPARE)
    state.nodes["x"] = odd
    with pytest.raises(IllegalMoveError, match="spares are those that wait"):
        check(state)
