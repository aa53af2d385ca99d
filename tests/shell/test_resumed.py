"""A new controller that hears of no node, or late: who is to blame for that."""

import pytest

from holdfast.controller import Limits, State
from holdfast.events import ControllerResumed, HandedOver, NodeLost
from tests.shell import scene as scene_of_tests
from tests.shell.scene import RECONNECT_S, Scene


def resumed(state: State, nearby: str = "", hands_over: bool = True) -> Scene:
    """A new controller, of a journal that tells of these nodes."""
    nodes = tuple(state.nodes)
    scene = Scene(
        Limits(node_count=3), state=state, existing=nodes, first=ControllerResumed(existing=nodes),
        begin=False,
    )  # fmt: skip
    scene.engine.nearby = frozenset(nearby)
    scene.shell.can_hand_over = lambda: hands_over
    scene.shell.begin(ControllerResumed(existing=nodes), nodes)
    scene.settle()
    return scene


def told(scene: Scene) -> list[NodeLost]:
    """Who is lost."""
    return [one for one in scene.events(NodeLost) if isinstance(one, NodeLost)]


def training() -> State:
    scene = Scene(Limits(node_count=3))
    scene.running("a", "b", "c")
    return scene.state


def test_a_controller_that_begins_where_it_hears_of_no_member_gives_none_up() -> None:
    """It was started again in the same place, say: members train, for all that anybody knows."""
    for nearby in ("", "a"):
        scene = resumed(training(), nearby)
        lively = [scene.connect(node) for node in nearby]
        scene.wait(RECONNECT_S - 0.5, *lively)
        assert not scene.shell.cut_off
        scene.wait(1.0, *lively)
        assert (scene.shell.cut_off, scene.state.lost) == (True, {})


def test_controllers_that_meet_nobody_hand_over_ever_later_and_not_for_ever() -> None:
    """After some in a row it is the nodes that are silent, wherever the controller is."""
    scene = resumed(training())
    waited = []
    while not scene.state.lost:
        began = scene.now
        while not (scene.shell.cut_off or scene.state.lost):
            scene.wait(1.0)
        waited.append(scene.now - began)
        if scene.shell.cut_off:
            assert scene.events(HandedOver)
            scene = resumed(scene.state)
    assert waited == pytest.approx([11.0, 11.0, 20.0, 40.0, 80.0, 160.0, 11.0], abs=1.0)
    assert set(scene.state.lost) == {"a", "b", "c"} and not scene.shell.cut_off


def test_a_controller_after_a_deaf_one_gives_up_no_new_node_though_no_member_is_left() -> None:
    scene = resumed(training())
    scene.wait(RECONNECT_S + 1.0)
    scene = resumed(scene.state)
    for node in "abc":
        scene.shell.nodes.died(node, "power was lost")
    scene.shell.nodes.expect("d", RECONNECT_S)
    scene.wait(RECONNECT_S + 1.0)
    assert scene.shell.cut_off and "d" not in scene.state.lost


def test_a_controller_that_has_met_a_node_begins_to_count_anew() -> None:
    scene = resumed(training())
    scene.wait(RECONNECT_S + 1.0)
    scene = resumed(scene.state)
    assert scene.state.handed_over == 1
    for node in "abc":
        scene.connect(node)
    scene.wait(1.0)
    assert scene.state.handed_over == 0  # though it may die, and hand nothing over
    scene.wait(2 * RECONNECT_S)
    assert scene.shell.cut_off and scene.events(HandedOver)
    assert scene.state.handed_over == 1


def test_who_may_be_silent_for_longer_may_be_before_it_connects_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scene_of_tests, "TIMEOUT_S", 3 * RECONNECT_S)
    scene = resumed(training())
    a = scene.connect("a")
    scene.wait(3 * RECONNECT_S - 1.0, a)
    assert not scene.events(NodeLost)
    scene.wait(1.5, a)
    assert set(scene.state.lost) == {"b", "c"} and not scene.shell.cut_off


def test_once_one_is_heard_the_others_get_the_whole_time_to_connect() -> None:
    scene = resumed(training())
    scene.wait(RECONNECT_S - 0.5)
    a = scene.connect("a")
    scene.wait(RECONNECT_S - 1.0, a)
    assert not scene.events(NodeLost) and not scene.shell.cut_off
    scene.wait(1.5, a)
    assert set(scene.state.lost) == {"b", "c"} and not scene.shell.cut_off


def test_time_in_which_nobody_listened_is_given_once() -> None:
    scene = resumed(training())
    scene.wait(1.0)
    scene.now += 30.0
    scene.shell.forgive(30.0)
    a = scene.connect("a")
    scene.wait(RECONNECT_S - 1.0, a)
    assert not scene.events(NodeLost)
    scene.wait(2.5, a)
    assert set(scene.state.lost) == {"b", "c"}


def test_nodes_of_a_job_that_has_waited_for_long_get_no_longer_for_it() -> None:
    """As in a queue, or all on the machine of the controller: the first to come from elsewhere is
    no news of the others."""
    for scene in (Scene(Limits(node_count=3)), resumed(training(), "abc")):
        scene.shell.can_hand_over = lambda: True
        near = [scene.connect(node) for node in sorted(scene.engine.nearby)]
        scene.wait(100.0, *near)
        scene.shell.nodes.expect("e", RECONNECT_S)
        d = scene.connect("d")
        scene.wait(RECONNECT_S + 1.0, d, *near)
        assert [lost.node for lost in told(scene)] == ["e"]


def test_one_that_comes_and_goes_at_once_has_shown_that_nodes_can_come() -> None:
    scene = resumed(training())
    scene.shell.closed("a", scene.connect("a"))
    assert scene.shell.nodes.cut_off(scene.engine.near, scene.now) is False


@pytest.mark.parametrize("why", ["nobody could go on", "only one is elsewhere", "none trained"])
def test_members_that_never_connect_are_lost_where_it_may_be_their_fault(why: str) -> None:
    state = training() if why != "none trained" else Scene(Limits(node_count=3)).state
    scene = resumed(state, "ab" if why == "only one is elsewhere" else "", why[:2] != "no")
    if why == "none trained":
        scene.shell.nodes.expect("c", RECONNECT_S)
    near = [scene.connect(node) for node in sorted(scene.engine.nearby)]
    scene.wait(RECONNECT_S + 1.0, *near)
    assert "c" in scene.state.lost and not scene.shell.cut_off
