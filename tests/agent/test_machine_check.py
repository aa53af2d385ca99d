"""A node is not ready before its machine has passed its checks, and says why if it has not."""

from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.agent import machine_check
from holdfast.checks.compare import CheckReport
from holdfast.checks.outcome import CheckResult
from holdfast.events import ENVIRONMENT, NodeReady, NodeUnfit, Severity
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
    assert (told.number, told.why) == (4, "")
    assert {what.partition(": ")[0] for what in told.digests} >= {"matmul"}, "to be compared"


def test_a_disk_for_checkpoints_that_takes_no_file_keeps_the_node_from_training(
    node: Node,
) -> None:
    tiers = {"local": {"path": "/proc/no-such-folder"}}
    controller, agent = node("pass", framework="command", recovery=QUICK, checkpoints=tiers)
    fact = controller.wait_for(NodeUnfit)
    assert "disk /proc: " in fact.why
    assert controller.of_kind(NodeReady) == []
    controller.send(Leave(reason=fact.why))
    agent.ended()


def test_a_shared_place_for_checkpoints_that_takes_no_file_is_no_fault_of_the_machine(
    node: Node,
) -> None:
    tiers = {"shared": {"path": "/proc/no-such-folder"}}
    controller, _ = node("pass", framework="command", recovery=QUICK, checkpoints=tiers)
    ready, unfit = (partial(controller.of_kind, kind) for kind in (NodeReady, NodeUnfit))
    assert until(lambda: [*ready(), *unfit()], "its checks") == ready()


@pytest.mark.parametrize("said", [b"", b"{", b'{"machine": 1}'])
def test_checks_without_a_result_are_no_success(said: bytes) -> None:
    assert "without a result" in machine_check._judged(said, "n", lambda _: None).why


def test_what_is_wrong_on_every_machine_is_told_and_leaves_the_machine_fit() -> None:
    results = (
        CheckResult(name="clock", state="ok", found="runs evenly"),
        CheckResult(
            name="shared memory", state="failed", found="64 MiB", help="more", environment=True
        ),
        CheckResult(name="disk /l", state="failed", found="Permission denied", environment=True),
        CheckResult(name="memory", state="failed", found="1 of 64 blocks"),
    )
    said, told = msgspec.json.encode(CheckReport(machine="m", checks=results)), list[Any]()
    assert machine_check._judged(said, "n", told.append).why == "memory: 1 of 64 blocks"
    [warning] = told
    assert (warning.condition, warning.severity) == (ENVIRONMENT, Severity.WARN)
    assert (warning.detail, warning.advice) == ("shared memory: 64 MiB", "more")


def test_a_node_that_has_passed_measures_links_unless_it_trains(node: Node) -> None:
    """With itself here: what it says is where other nodes find it."""
    controller, _ = node("import time; time.sleep(600)", framework="command")
    controller.ready()

    def told(number: int) -> MachineChecked:
        answers = controller.answers
        return until(
            lambda: [a for a in answers if isinstance(a, MachineChecked) and a.number == number],
            f"answer {number}",
        )[0]

    controller.send(CheckMachine(number=1, only="clock"))
    assert told(1).address == "", "whoever asks for one check says that it trains"
    controller.send(CheckMachine(number=2))
    address = told(2).address
    controller.send(CheckMachine(number=3, peer=address))
    link = told(3).link
    assert link is not None and link.same_machine and link.there_bytes_per_s > 1e6
    controller.start()
    controller.started()
    controller.send(CheckMachine(number=4, peer=address))
    assert told(4).link is None
