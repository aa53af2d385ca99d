"""Who says nothing is named as a condition of its node, and nothing follows from that alone."""

import msgspec
import pytest

from holdfast.detection.answers import TcpState
from holdfast.events import AttemptStopped, HealthChanged, NodeLost, Severity
from tests.shell.scene import TIMEOUT_S, Scene, Wire


def conditions(scene: Scene) -> list[tuple[str, Severity]]:
    """What was told of the health of nodes."""
    told = [event for event in scene.events(HealthChanged) if isinstance(event, HealthChanged)]
    assert {event.condition for event in told} <= {"silent"}
    return [(event.node, event.severity) for event in told]


def training() -> tuple[Scene, list[Wire]]:
    """Two members and a spare."""
    scene = Scene()
    wires = scene.running("a", "b", "c")
    return scene, wires


def test_a_silent_node_is_named_within_two_seconds_and_lost_after_five() -> None:
    scene, (a, _, c) = training()
    scene.wait(1.5, a, c)
    assert conditions(scene) == []
    scene.wait(0.5, a, c)
    assert conditions(scene) == [("b", Severity.WARN)]
    (told,) = scene.state.health["b"].values()
    assert told.detail == "no heartbeat for 1.8 s" and not told.fault
    assert not scene.events(NodeLost)
    scene.wait(TIMEOUT_S - 1.75, a, c)
    (lost,) = scene.events(NodeLost)
    assert isinstance(lost, NodeLost) and lost.node == "b"
    assert conditions(scene) == [("b", Severity.WARN)] and "b" not in scene.state.health


def test_one_that_is_heard_again_has_lost_nothing() -> None:
    scene, (a, b, c) = training()
    for _ in range(3):
        scene.wait(3.0, a, c)
        scene.wait(8.0, a, b, c)
    assert conditions(scene) == [("b", Severity.WARN), ("b", Severity.OK)] * 3
    assert scene.state.health == {} and scene.state.open_incident is None
    assert not scene.events(NodeLost) and not scene.events(AttemptStopped)


@pytest.mark.parametrize("waits", [True, False])
def test_it_is_told_what_the_machine_answers(waits: bool) -> None:
    scene, (a, b, c) = training()
    b.tcp_state = lambda: TcpState(waits, 1, scene.now, 0.0, 0.001)  # type: ignore[assignment]
    scene.wait(2.0, a, c)
    (told,) = scene.state.health["b"].values()
    assert ("acknowledges nothing" if waits else "its process does not run") in told.detail


def test_where_nobody_is_heard_nobody_is_named() -> None:
    scene, _ = training()
    scene.wait(4.0)
    assert conditions(scene) == []


def test_who_has_not_listened_names_nobody_for_what_it_has_not_heard() -> None:
    scene, (a, _, c) = training()
    scene.now += 60.0
    scene.shell.forgive(60.0)
    scene.wait(1.25, a, c)
    assert conditions(scene) == []


def test_the_next_controller_takes_back_what_the_one_before_has_told() -> None:
    scene, (a, _, c) = training()
    scene.wait(3.0, a, c)
    state = msgspec.convert(msgspec.to_builtins(scene.state), type(scene.state))
    after = Scene(state=state, existing=("a", "b", "c"))
    wires = [after.connect(node) for node in "abc"]
    after.wait(8.0, *wires)
    assert conditions(after) == [("b", Severity.OK)] and after.state.health == {}
