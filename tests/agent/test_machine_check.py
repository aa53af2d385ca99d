"""A node is not ready before its machine has passed its checks, and says why if it has not."""

import pytest

from holdfast.agent import machine_check
from holdfast.events import NodeReady, NodeUnfit
from holdfast.messages import CheckMachine, Leave, MachineChecked
from tests.agent.conftest import Node
from tests.agent.controller_stub import until

QUICK = {"check": "quick"}


@pytest.mark.slow
def test_a_machine_that_passes_is_ready_and_can_be_checked_again(node: Node) -> None:
    controller, _ = node("pass", framework="command", recovery=QUICK)
    controller.ready()
    controller.send(CheckMachine(number=4))
    answers = controller.answers
    told = until(lambda: [a for a in answers if isinstance(a, MachineChecked)], "its checks")[0]
    assert told == MachineChecked(number=4)


def test_a_place_for_checkpoints_that_takes_no_file_keeps_the_node_from_training(
    node: Node,
) -> None:
    tiers = {"shared": {"path": "/proc/no-such-folder"}}
    controller, agent = node("pass", framework="command", recovery=QUICK, checkpoints=tiers)
    fact = controller.wait_for(NodeUnfit)
    assert "disk /proc: " in fact.why
    assert controller.of_kind(NodeReady) == []
    controller.send(Leave(reason=fact.why))
    agent.ended()


@pytest.mark.parametrize("said", [b"", b"{", b'{"machine": 1}'])
def test_checks_without_a_result_are_no_success(said: bytes) -> None:
    assert "without a result" in machine_check._failures(said)
