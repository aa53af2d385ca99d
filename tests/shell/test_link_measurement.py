"""Links are measured pair by pair around a ring, beside no training, and nobody is waited for."""

import pytest

from holdfast.actions import CheckNodes
from holdfast.controller import IncidentRecord, Limits, Phase
from holdfast.events import NodesChecked, NodeUnfit
from holdfast.links import LinkFigures
from holdfast.messages import AskChecks, CheckMachine, ChecksReply, MachineChecked, ToClient
from holdfast.shell.link_measurement import LINK_S, ring, turns
from tests.shell.scene import Scene, Wire

GOOD = LinkFigures(there_bytes_per_s=1e9, back_bytes_per_s=1e9)
SICK = LinkFigures(there_bytes_per_s=1e7, back_bytes_per_s=1e7)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 12, 13, 5000])
def test_each_node_is_measured_with_the_next_and_never_twice_at_once(count: int) -> None:
    nodes = [str(number) for number in range(count)]
    pairs = ring(nodes)
    assert len(pairs) == (count if count > 2 else max(0, count - 1))
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)
    planned = turns(pairs)
    assert len(planned) <= 3 and sorted(p for turn in planned for p in turn) == sorted(pairs)
    for turn in planned:
        busy = [node for pair in turn for node in pair]
        assert len(busy) == len({*busy})


class Waiting:
    """A job of one node that trains, and spares that are asked."""

    def __init__(self, spares: str) -> None:
        self.scene = Scene(Limits(node_count=1, spare_count=len(spares)))
        self.member, *self.spares = self.scene.running("m", *spares)
        self.replies: list[ToClient] = []
        self.seen: dict[str, int] = {}
        self.link: dict[tuple[str, str], LinkFigures | None] = {}
        self.order: list[set[tuple[str, str]]] = []

    def ask(self, *, why: str = "") -> None:
        self.scene.shell.client(AskChecks(), self.replies.append)
        for wire in self.spares:
            found = why if wire is self.spares[0] else ""
            self.check(wire, found)

    def check(self, wire: Wire, why: str) -> None:
        told, *_ = self.new(wire)  # one that has failed is to repeat it
        answer = MachineChecked(number=told.number, why=why, address=f"{wire.node}:1")
        self.scene.shell.answered(wire.node, answer)
        self.scene.settle()

    def new(self, wire: Wire) -> list[CheckMachine]:
        """What it was asked since the last time."""
        told = [one for one in wire.told(CheckMachine) if isinstance(one, CheckMachine)]
        fresh = told[self.seen.get(wire.node, 0) :]
        self.seen[wire.node] = len(told)
        return fresh

    def turn(self, *silent: str) -> None:
        """One turn, in which all but these answer."""
        self.scene.wait(0.25, self.member, *self.spares)
        asked = [(wire, order) for wire in self.spares for order in self.new(wire)]
        if asked:
            self.order.append({(wire.node, order.peer[0]) for wire, order in asked})
        for wire, order in asked:
            pair = wire.node, order.peer[0]
            if wire.node not in silent:
                answer = MachineChecked(number=order.number, link=self.link.get(pair, GOOD))
                self.scene.shell.answered(wire.node, answer)

    def turns(self) -> int:
        """Until somebody has heard what was found; how many there were."""
        before = len(self.order)
        while not self.replies:
            self.turn()
        return len(self.order) - before

    @property
    def reply(self) -> ChecksReply:
        (reply,) = self.replies
        assert isinstance(reply, ChecksReply)
        return reply


def test_spares_measure_their_links_once_all_have_checked_and_members_do_not() -> None:
    it = Waiting("abcd")
    it.ask()
    assert it.turns() == 2
    assert it.order[:2] == [{("a", "b"), ("c", "d")}, {("b", "c"), ("d", "a")}]
    assert not it.member.told(CheckMachine)
    network = it.reply.network
    assert len(network.links) == 4 and all(link.found == GOOD for link in network.links)
    assert not network.slow and "4 links between machines" in network.lines[0]


def test_who_is_slow_is_measured_once_more_and_then_named_and_keeps_its_place() -> None:
    it = Waiting("abcde")
    it.link = {("a", "b"): SICK, ("b", "c"): SICK}
    it.ask()
    assert it.turns() == 3 + 2
    assert it.order[3:5] == [{("a", "b")}, {("b", "c")}], "only what is in doubt"
    assert [*it.reply.network.slow] == ["b"] and it.reply.found["b"] == ""
    assert {(one.node, one.other) for one in it.reply.network.links[:2]} == {("a", "b"), ("b", "c")}
    assert not it.scene.events(NodeUnfit), "no other machine could confirm it"


def test_what_is_well_the_second_time_names_nobody() -> None:
    it = Waiting("abcde")
    it.link = {("a", "b"): SICK, ("b", "c"): SICK}
    it.ask()
    for _ in range(3):
        it.turn()
    it.link = {}
    assert it.turns() == 2
    assert not it.reply.network.slow and all(one.found == GOOD for one in it.reply.network.links)


def test_a_link_that_cannot_be_opened_is_tried_once_more() -> None:
    it = Waiting("abc")
    it.link = {("b", "c"): LinkFigures(trouble="timed out")}
    it.ask()
    for _ in range(3):
        it.turn()
    it.link = {}
    assert it.turns() == 1 and it.order[-1] == {("b", "c")}
    assert all(link.found == GOOD for link in it.reply.network.links)


@pytest.mark.parametrize("how", ["silent", "gone", "trains"])
def test_who_does_not_answer_is_neither_waited_for_nor_judged(how: str) -> None:
    it = Waiting("abcde")
    it.ask()
    if how == "gone":
        it.turn("a")
        it.scene.shell.closed("a", it.spares[0])
    elif how == "silent":
        it.turn("a")
        it.scene.wait(LINK_S, it.member, *it.spares)
    else:
        it.link = {("a", "b"): None}
    it.turns()
    unknown = {frozenset((one.node, one.other)) for one in it.reply.network.links if not one.found}
    gone = {frozenset("ab"), frozenset("ea")} if how == "gone" else {frozenset("ab")}
    assert unknown == gone and not it.reply.network.slow


def test_a_spare_that_has_got_a_rank_meanwhile_is_left_alone() -> None:
    it = Waiting("abcd")
    it.ask()
    it.scene.shell.closed("m", it.member)
    while "a" in it.scene.state.spares:
        it.scene.wait(1.0, *it.spares)
    before = len(it.spares[0].told(CheckMachine))
    it.turns()
    assert len(it.spares[0].told(CheckMachine)) == before


def test_one_that_has_failed_is_not_measured_and_one_alone_measures_nothing() -> None:
    it = Waiting("ab")
    it.ask(why="memory: 1 of 64 blocks")
    assert it.reply.network.links == () and it.reply.found["b"] == ""


class Puzzle:
    """A job whose attempt has ended, nobody knows why."""

    def __init__(self, nodes: str) -> None:
        self.scene = Scene(Limits(node_count=len(nodes), checks="all"))
        self.wires = self.scene.running(*nodes)
        state = self.scene.state
        state.phase, state.stopped = Phase.RECOVERING, True
        state.incidents.append(
            IncidentRecord(
                id=1, cause="hang", summary="x", node="", rank=None, attempt=1, step=None,
                started_at=1.0, detected_at=1.0,
            )
        )  # fmt: skip

    def check(self, slow: str) -> NodesChecked:
        nodes = tuple(wire.node for wire in self.wires)
        order = CheckNodes(nodes=nodes, attempt=1, reason="x")
        self.scene.shell.checks.obey(order, nodes, self.scene.now)
        done: set[tuple[int, str]] = set()
        for _ in range(40):
            for wire in self.wires:
                for told in wire.told(CheckMachine):
                    assert isinstance(told, CheckMachine)
                    if (told.number, wire.node) not in done:
                        done.add((told.number, wire.node))
                        bad = slow in (wire.node, told.peer[:1])
                        link = (SICK if bad else GOOD) if told.peer else None
                        answer = MachineChecked(
                            number=told.number, address=f"{wire.node}:1", link=link
                        )
                        self.scene.shell.answered(wire.node, answer)
            self.scene.shell.checks.look(nodes, self.scene.now)
        self.scene.settle()
        (fact,) = self.scene.events(NodesChecked)
        assert isinstance(fact, NodesChecked)
        return fact


def test_a_member_with_a_slow_network_has_failed_its_checks() -> None:
    it = Puzzle("abcde")
    found = it.check("c").found
    assert {node for node, why in found.items() if why} == {"c"}
    assert found["c"].startswith("network: c sends only 10 MB/s to b")


def test_members_that_are_alike_have_not() -> None:
    it = Puzzle("abcde")
    assert not any(it.check("nobody").found.values())


def test_what_was_found_of_the_links_is_evidence_of_the_incident() -> None:
    it = Puzzle("abcde")
    found = it.check("c").found["c"]
    (incident,) = it.scene.state.incidents
    assert incident.network[0].startswith("5 links between machines: median 1.00 GB/s, slowest ")
    assert f"network: {incident.network[1]}" == found and len(incident.network) == 2
