"""Spares check their machines when somebody asks; one that fails is replaced."""

import pytest

from holdfast.actions import CheckNodes
from holdfast.controller import Limits
from holdfast.events import NodesChecked, NodeUnfit
from holdfast.messages import AskChecks, CheckMachine, ChecksReply, MachineChecked, ToClient
from holdfast.shell.machine_checks import NODE_S
from tests.shell.scene import Scene, Wire


class Asking:
    """A job of one node and two spares, and somebody who asks."""

    def __init__(self) -> None:
        self.scene = Scene(Limits(node_count=1, spare_count=2))
        self.member, *self.spares = self.scene.running("a", "b", "c")
        self.replies: list[ToClient] = []

    def ask(self) -> None:
        self.scene.shell.client(AskChecks(), self.replies.append)

    def answer(self, wire: Wire, why: str = "", number: int = 1) -> None:
        self.scene.shell.answered(wire.node, MachineChecked(number=number, why=why))
        self.scene.settle()

    def asked(self, wire: Wire) -> list[object]:
        return list(wire.told(CheckMachine))


def test_spares_are_asked_and_members_are_not() -> None:
    it = Asking()
    it.ask()
    assert not it.asked(it.member)
    for wire in it.spares:
        assert it.asked(wire) == [CheckMachine(number=1)] and not it.replies
        it.answer(wire)
    assert it.replies == [ChecksReply(found={"b": "", "c": ""})]
    assert not it.scene.events(NodeUnfit)


def test_one_that_fails_is_replaced_and_the_others_stay() -> None:
    it = Asking()
    it.ask()
    it.answer(it.spares[0], "memory: 1 of 64 blocks")
    it.answer(it.spares[1])
    assert it.replies == [ChecksReply(found={"b": "memory: 1 of 64 blocks", "c": ""})]
    assert it.scene.state.spares == ["b", "c"], "the other one is to fail likewise, or not"
    for node, why in (("b", "memory: 2 of 64 blocks"), ("c", "")):
        it.scene.shell.answered(node, MachineChecked(number=2, why=why))
    it.scene.settle()
    assert it.scene.state.spares == ["c"] and ("removed", "b") in it.scene.effects
    assert ("made", 1) in it.scene.effects


def test_one_that_computes_other_bits_than_most_fails_though_it_passes_by_itself() -> None:
    """Also in a later round of its own, which is how it is made sure of."""
    scene = Scene(Limits(node_count=4))
    wires = scene.running(*"abcd")
    bits = {node: {"matmul: cpu": "other" if node == "c" else "same"} for node in "abcd"}

    def found(*nodes: str) -> dict[str, str]:
        scene.shell.checks.obey(CheckNodes(nodes=nodes, reason="x"), nodes, 1.0)
        orders = [order for wire in wires for order in wire.told(CheckMachine)]
        number = max(order.number for order in orders if isinstance(order, CheckMachine))
        for node in nodes:
            answer = MachineChecked(number=number, digests=bits[node])
            scene.shell.answered(node, answer)
        scene.settle()
        newest = scene.events(NodesChecked)[-1]
        assert isinstance(newest, NodesChecked)
        return newest.found

    assert found("a", "b") == {"a": "", "b": ""}
    assert found("c") == {"c": "matmul: cpu: its result differs from that of 2 of 3 nodes"}
    assert found("d", "c")["c"].endswith("3 of 4 nodes")
    bits["c"] = bits["d"]
    assert found("c") == {"c": ""}, "it is repaired"


@pytest.mark.parametrize("how", ["silent", "gone"])
def test_who_does_not_answer_is_named(how: str) -> None:
    it = Asking()
    it.ask()
    it.answer(it.spares[0])
    if how == "gone":
        it.scene.shell.closed("c", it.spares[1])
    else:
        it.scene.wait(NODE_S + 1.0, it.member, *it.spares)
    assert it.replies == [ChecksReply(found={"b": ""}, missing=("c",))]


def test_those_who_ask_meanwhile_hear_the_same_and_late_answers_count_for_nobody() -> None:
    it = Asking()
    it.ask()
    it.ask()
    assert [len(it.asked(wire)) for wire in it.spares] == [1, 1]
    for wire in it.spares:
        it.answer(wire)
    assert len(it.replies) == 2 and it.replies[0] == it.replies[1]
    it.answer(it.spares[0], "late")
    assert it.scene.state.spares == ["b", "c"]


def test_without_spares_the_answer_is_that_there_are_none() -> None:
    scene, replies = Scene(Limits(node_count=1)), list[ToClient]()
    scene.running("a")
    scene.shell.client(AskChecks(), replies.append)
    assert replies == [ChecksReply(found={})]


def test_a_member_runs_only_the_check_that_it_is_to_repeat_beside_its_training() -> None:
    it = Asking()
    order = CheckNodes(nodes=("b", "a"), beside="matmul", reason="x")
    it.scene.shell.checks.obey(order, ("a", "b"), 1.0)
    assert it.asked(it.spares[0]) == [CheckMachine(number=1)]
    assert it.asked(it.member) == [CheckMachine(number=1, only="matmul")]


def test_whom_the_controller_names_is_asked_too_and_the_answer_is_one_fact() -> None:
    scene = Scene(Limits(node_count=2))
    first, second = scene.running("a", "b")
    scene.shell.checks.obey(CheckNodes(nodes=("a", "b"), reason="x"), ("a", "b"), 1.0)
    asked = [list(wire.told(CheckMachine)) for wire in (first, second)]
    assert asked == [[CheckMachine(number=1)]] * 2
    scene.shell.answered("a", MachineChecked(number=1, why="memory: 1 of 64 blocks"))
    scene.settle()
    assert not scene.events(NodesChecked)
    scene.shell.closed("b", second)
    scene.settle()
    (told,) = scene.events(NodesChecked)
    assert told == NodesChecked(found={"a": "memory: 1 of 64 blocks"}, missing=("b",))
    assert not scene.events(NodeUnfit)
