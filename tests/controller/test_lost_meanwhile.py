"""A node that is lost while an attempt is stopped: what it explains, and what it does not."""

import pytest

from holdfast.events import NodeLost, NodeLostReason
from tests.controller.test_controller import running


def test_a_node_lost_while_an_error_of_the_script_is_stopped_does_not_explain_that() -> None:
    """Its agent was too slow to stop its workers in time, say."""
    world = running()
    world.tell(world.exited("b", 1))
    world.tell(NodeLost(node="b", reason=NodeLostReason.SILENT, detail="did not stop in time"))
    why = "Rank 1 failed with MemoryError."
    world.recover(cause="out-of-memory", summary=why, user_error=True, confidence=0.95)
    (incident,) = world.state.incidents
    assert (incident.cause, incident.rank, incident.nodes) == ("out-of-memory", 1, ["b"])
    assert incident.summary == f"{why} b was lost while the attempt was stopped."
    assert world.state.attempt == 2


@pytest.mark.parametrize(
    "verdict",
    [
        {"cause": "out-of-memory", "user_error": True, "confidence": 0.665},
        {"cause": "worker-killed", "confidence": 0.95},
    ],
    ids=["others failed as well", "not by itself"],
)
def test_a_node_lost_meanwhile_explains_what_may_come_from_it(verdict: dict[str, object]) -> None:
    world = running()
    world.tell(world.exited("a", 0))
    world.tell(NodeLost(node="b", reason=NodeLostReason.SILENT, detail="no heartbeat"))
    world.recover(rank=0, **verdict)
    (incident,) = world.state.incidents
    assert (incident.cause, incident.confidence) == ("node-lost", 0.6), "a worker had failed before"


def test_an_error_that_came_after_a_node_was_lost_is_explained_by_that() -> None:
    world = running()
    world.tell(NodeLost(node="b", reason=NodeLostReason.PROCESS, detail="killed"))
    world.tell(world.exited("a", 0))
    world.recover(cause="worker-exception", user_error=True, confidence=0.95, rank=0)
    (incident,) = world.state.incidents
    assert (incident.cause, incident.confidence) == ("node-lost", 0.95)


def test_the_end_of_its_own_worker_casts_no_doubt_on_the_loss_of_a_node() -> None:
    world = running()
    world.kill("b", 1)
    world.tell(NodeLost(node="b", reason=NodeLostReason.PROCESS, detail="killed"))
    world.recover(cause="worker-killed", confidence=0.95)
    (incident,) = world.state.incidents
    assert (incident.cause, incident.confidence) == ("node-lost", 0.95)
