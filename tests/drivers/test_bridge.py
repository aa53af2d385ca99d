"""Between controller and nodes: regressions that the simulation found."""

from holdfast.actions import StopAttempt
from holdfast.controller import Controller, Limits
from holdfast.drivers.bridge import Bridge
from holdfast.events import (
    AnyEvent,
    CheckpointFailed,
    JobSubmitted,
    NodeJoined,
    NodeReady,
    Store,
    WorkerExited,
)
from holdfast.messages import Hello, Stop


def two_nodes_recovering() -> Controller:
    """A job of two nodes, whose first attempt has just failed."""
    controller = Controller(Limits(node_count=2, restart_grace_s=30.0))
    joined = [NodeJoined(node=n, name=n, address="h", workers=1) for n in ("a", "b")]
    ready = [NodeReady(node=n, store=Store("h", 1, True)) for n in ("a", "b")]
    failed = WorkerExited(node="a", attempt=1, rank=0, exit_code=1)
    events: list[AnyEvent] = [JobSubmitted(), *joined, *ready, failed]
    for event in events:
        controller.handle(event, 1.0)
    return controller


def hello(node: str) -> Hello:
    return Hello(
        protocol=1, node=node, name=node, address="h", workers=1, pid=1, attempt=1, running=True
    )


def test_a_node_that_reconnects_gets_the_grace_time_of_the_order_not_a_longer_one() -> None:
    bridge = Bridge(two_nodes_recovering().state, 5.0, 1.0)
    bridge.carry_out(StopAttempt(attempt=1, grace_s=0.0, reason="again"), 1.0)
    bridge.hello(hello("a"), 1.5)
    assert bridge.orders_for("a") == [Stop(attempt=1, grace_s=0.0)]


def test_a_controller_that_was_stopped_for_a_while_still_waits_for_answers() -> None:
    bridge = Bridge(two_nodes_recovering().state, 1000.0, 1.0)
    bridge.carry_out(StopAttempt(attempt=1, grace_s=0.0, reason="x"), 1.0)
    bridge.forgive(50.0, 45.0)
    assert bridge.tick(50.0) == []
    assert [event.node for event in bridge.tick(57.0) if hasattr(event, "node")] == ["a", "b"]


def test_storage_that_fails_on_every_node_is_told_once_for_each_try() -> None:
    bridge = Bridge(two_nodes_recovering().state, 5.0, 1.0)

    def failed(node: str, failures: int = 1, step: int = 40) -> CheckpointFailed:
        return CheckpointFailed(
            node=node, tier="shared", attempt=1, step=step, why="away", failures=failures
        )

    heard = [failed("a"), failed("b"), failed("b", 2), failed("a", 2), failed("a", step=50)]
    told = [event for fact in heard for event in bridge.fact("a", fact, 1.0)]
    assert told == [failed("a"), failed("b", 2), failed("a", step=50)]
