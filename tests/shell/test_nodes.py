"""The life of a node: expected, connected, silent, given up, let go. Each fact counts once."""

import msgspec
import pytest

from holdfast.controller import Limits, State
from holdfast.controller.state import Node
from holdfast.events import (
    AnyEvent,
    CheckpointCommitted,
    NodeJoined,
    NodeLost,
    NodeLostReason,
)
from holdfast.messages import PROTOCOL, Ack, Fact, Leave, Question, Report, ToAgent, Welcome
from holdfast.shell.nodes import (
    GOODBYE_S,
    LATE_LOOKS,
    LOOK_S,
    PULSES,
    REPORT_S,
    NodeLives,
    Receipt,
)
from tests.shell.scene import TERM, TIMEOUT_S, hello


class Register:
    """Nodes alone, and what they put and changed."""

    def __init__(self, limits: Limits | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.now = 100.0
        self.state = State(limits=limits or Limits(node_count=2))
        self.put: list[tuple[list[AnyEvent], Receipt | None]] = []
        self.changed: list[str] = []
        self.nodes = NodeLives(
            self.state, timeout_s, TERM, lambda: self.now,
            lambda events, receipt: self.put.append((events, receipt)), self.changed.append,
        )  # fmt: skip

    def connect(self, node: str) -> "Line":
        line = Line(self)
        assert self.nodes.hello(line, hello(node))
        return line

    def look(self, seconds: float) -> list[AnyEvent]:
        """Time passes; what was put because of it."""
        self.now += seconds
        self.put.clear()
        self.nodes.look(self.now)
        return [event for events, _ in self.put for event in events]

    def receipts(self) -> list[Receipt]:
        return [receipt for _, receipt in self.put if receipt is not None]


class Line:
    """A wire."""

    def __init__(self, register: Register) -> None:
        self.heard_at = register.now
        self.sent: list[ToAgent | Question] = []
        self.stuck = self.ended = ""

    def send(self, message: ToAgent | Question) -> None:
        self.sent.append(message)

    def ask(self) -> None:
        pass

    def tcp_state(self) -> None:
        return None

    def overdue(self, _now: float) -> str:
        return self.stuck

    def close(self, why: str) -> None:
        self.ended = f"closed: {why}"

    def abort(self, why: str) -> None:
        self.ended = f"aborted: {why}"


def committed(node: str = "n", step: int = 5) -> CheckpointCommitted:
    return CheckpointCommitted(node=node, tier="shared", attempt=1, step=step, seconds=1.0, bytes=5)


def lost(events: list[AnyEvent]) -> list[str]:
    return [event.node for event in events if isinstance(event, NodeLost)]


# ── connecting ──


def test_an_agent_that_connects_is_welcomed_and_joins_once() -> None:
    register = Register()
    line = register.connect("n")
    (welcome,) = line.sent
    assert welcome == Welcome(
        protocol=PROTOCOL, acked=0, known=True, term=TERM, pulse_s=TIMEOUT_S / PULSES,
        report_s=REPORT_S,
    )  # fmt: skip
    assert [type(event) for events, _ in register.put for event in events] == [NodeJoined]
    assert register.nodes.connected == {"n"} and register.changed == ["n"]


def test_nodes_of_a_large_job_report_less_often() -> None:
    register = Register(Limits(node_count=12_000, spare_count=500))
    (welcome,) = register.connect("n").sent
    assert isinstance(welcome, Welcome) and welcome.report_s == 5.0


@pytest.mark.parametrize("protocol", [PROTOCOL - 1, PROTOCOL + 1])
def test_one_of_another_protocol_is_told_ours_and_not_taken_in(protocol: int) -> None:
    register = Register()
    line = Line(register)
    assert not register.nodes.hello(line, hello("n", protocol))
    (welcome,) = line.sent
    assert isinstance(welcome, Welcome) and (welcome.protocol, welcome.known) == (PROTOCOL, False)
    assert not register.nodes.connected and not register.put


def test_one_that_was_given_up_is_not_taken_in_again() -> None:
    register = Register()
    register.state.lost["n"] = "it was silent"
    line = Line(register)
    assert not register.nodes.hello(line, hello("n"))
    (welcome,) = line.sent
    assert isinstance(welcome, Welcome) and not welcome.known


def test_a_second_connection_of_a_node_takes_the_place_of_the_first() -> None:
    register = Register()
    first = register.connect("n")
    second = register.connect("n")
    assert first.ended == "aborted: its agent has connected again"
    register.nodes.closed("n", first)  # news of the old one
    assert register.nodes.connected == {"n"}
    register.nodes.send("n", Leave(reason="x"))
    assert len(first.sent) == 1 and second.sent[-1] == Leave(reason="x")
    register.nodes.closed("n", second)
    assert register.nodes.connected == frozenset()
    assert register.changed == ["n", "n", "n"]


# ── facts ──


def test_a_fact_is_put_once_however_often_and_over_however_many_connections_it_comes() -> None:
    register = Register()
    for _ in range(2):
        register.connect("n")
        for _ in range(2):
            register.nodes.fact("n", Fact(seq=1, event=committed()))
    register.nodes.fact("n", Fact(seq=2, event=committed(step=6)))
    assert register.receipts() == [("n", 1), ("n", 2)]


def test_a_fact_that_is_durable_is_acknowledged_again_one_that_is_not_yet_is_not() -> None:
    register = Register()
    line = register.connect("n")
    register.nodes.fact("n", Fact(seq=1, event=committed()))
    register.nodes.fact("n", Fact(seq=1, event=committed()))
    assert line.sent[1:] == []
    register.nodes.acknowledge("n", 1)
    register.nodes.fact("n", Fact(seq=1, event=committed()))
    assert line.sent[1:] == [Ack(seq=1, term=TERM)] * 2


def test_after_a_reconnect_the_welcome_says_what_is_durable() -> None:
    register = Register()
    register.connect("n")
    register.nodes.fact("n", Fact(seq=1, event=committed()))
    register.nodes.fact("n", Fact(seq=2, event=committed(step=6)))
    register.nodes.acknowledge("n", 1)
    (welcome,) = register.connect("n").sent
    assert isinstance(welcome, Welcome) and welcome.acked == 1


def test_a_fact_that_becomes_durable_while_its_node_is_away_is_told_when_it_is_back() -> None:
    register = Register()
    line = register.connect("n")
    register.nodes.fact("n", Fact(seq=1, event=committed()))
    register.nodes.closed("n", line)
    register.nodes.acknowledge("n", 1)
    (welcome,) = register.connect("n").sent
    assert isinstance(welcome, Welcome) and welcome.acked == 1


@pytest.mark.parametrize(
    "event",
    [committed("another"), msgspec.structs.replace(committed(), seconds=float("nan"))],
    ids=["about another", "NaN"],
)
def test_what_the_journal_cannot_keep_or_is_about_others_is_refused(event: object) -> None:
    register = Register()
    register.connect("n")
    assert isinstance(event, CheckpointCommitted)
    with pytest.raises(msgspec.ValidationError):
        register.nodes.fact("n", Fact(seq=1, event=event))
    assert register.receipts() == []
    register.nodes.fact("n", Fact(seq=1, event=committed()))
    assert register.receipts() == [("n", 1)], "its number is not used up"


def test_reports_of_strangers_are_not_heard() -> None:
    register = Register()
    register.put.clear()
    register.nodes.report(Report(node="n", attempt=0, workers=()))
    assert register.put == []


# ── silence ──


def test_signs_of_life_of_whatever_kind_keep_a_node() -> None:
    register = Register()
    line = register.connect("n")
    for _ in range(20):
        line.heard_at = register.now + 1.0
        assert register.look(1.0) == []
    assert not line.ended


def test_a_silent_node_is_named_once_and_its_connection_closed() -> None:
    register = Register()
    line = register.connect("n")
    assert register.look(TIMEOUT_S - 0.1) == []
    (event,) = register.look(0.2)
    assert isinstance(event, NodeLost) and event.reason is NodeLostReason.SILENT
    assert line.ended == "aborted: no message from it for 5.1 s"
    assert register.look(100.0) == [] and register.nodes.connected == frozenset()


def test_a_sign_of_life_counts_from_when_it_came_however_late_it_is_looked_for() -> None:
    """Nodes are not looked at each time, and none is named for that."""
    register = Register()
    line = register.connect("n")
    for _ in range(100):
        line.heard_at = register.now + 0.1
        assert register.look(LOOK_S * 0.6) == []
    last = line.heard_at
    while not (events := register.look(0.25)):
        assert register.now - last < 2 * TIMEOUT_S
    (event,) = events
    assert isinstance(event, NodeLost) and TIMEOUT_S <= event.ago_s < TIMEOUT_S + 0.25


def test_a_node_whose_connection_broke_is_named_by_its_last_sign_of_life() -> None:
    register = Register()
    line = register.connect("n")
    line.heard_at = register.now + 2.0
    assert register.look(2.0) == []
    register.nodes.closed("n", line)
    assert register.look(TIMEOUT_S - 0.1) == []
    assert lost(register.look(0.2)) == ["n"]


def test_one_that_takes_nothing_is_disconnected_and_may_come_again() -> None:
    register = Register()
    line = register.connect("n")
    line.heard_at, line.stuck = register.now + 1.0, "it has read nothing for 10.0 s"
    assert register.look(1.0) == []
    assert line.ended == "aborted: it has read nothing for 10.0 s"
    assert register.changed == ["n", "n"]
    register.connect("n")
    assert register.nodes.connected == {"n"}


def test_a_node_that_is_expected_and_never_comes_is_named() -> None:
    register = Register()
    register.nodes.expect("n", 10.0)
    assert register.look(9.9) == []
    assert lost(register.look(0.2)) == ["n"]
    assert register.look(100.0) == []


def test_one_that_comes_or_is_there_is_not_waited_for() -> None:
    register = Register(timeout_s=1_000.0)
    register.nodes.expect("n", 10.0)
    register.connect("n")
    register.connect("m")
    register.nodes.expect("m", 10.0)
    assert register.look(100.0) == []


def test_what_is_expected_once_is_not_expected_again_nor_after_it_was_heard() -> None:
    register = Register(timeout_s=1_000.0)
    register.nodes.expect_once("n", 10.0)
    register.look(5.0)
    register.nodes.expect_once("n", 10.0)
    assert lost(register.look(5.1)) == ["n"]
    line = register.connect("m")
    register.nodes.closed("m", line)
    register.nodes.expect_once("m", 10.0)
    register.nodes.expect_once("n", 10.0)
    assert register.look(100.0) == []


def test_whoever_did_not_listen_blames_nobody_also_not_who_has_only_just_come() -> None:
    register = Register()
    known, fresh = register.connect("known"), register.connect("fresh")
    register.state.nodes["known"] = Node(node="known", name="known", address="h", workers=1)
    register.nodes.expect("away", 10.0)
    register.now += 60.0
    register.nodes.forgive(60.0)
    assert register.look(0.0) == [] and not known.ended and not fresh.ended
    assert lost(register.look(TIMEOUT_S)) == ["known", "fresh"]
    assert lost(register.look(5.1)) == ["away"]


def test_a_sign_of_life_that_nobody_has_looked_for_counts_before_any_silence_is_forgiven() -> None:
    register = Register()
    well = register.connect("well")
    register.now += 60.0
    well.heard_at = register.now
    register.now += 7.0
    register.nodes.forgive(7.0)
    assert register.look(0.0) == []


def test_whoever_is_always_late_misses_a_silent_node_all_the_same() -> None:
    """A controller that gets a tenth of its processor is late at every look."""
    register = Register()
    well, _ = register.connect("well"), register.connect("silent")
    looks = 0
    while not (found := lost(register.look(0.0))):
        register.now += 2.0
        well.heard_at = register.now
        register.nodes.forgive(1.75)
        looks += 1
        assert looks <= LATE_LOOKS + 1 + TIMEOUT_S / 0.25
    assert found == ["silent"] and not well.ended


# ── given up, let go ──


def test_a_node_given_up_is_disconnected_after_what_it_was_told() -> None:
    register = Register()
    line = register.connect("n")
    register.nodes.send("n", Leave(reason="x"))
    register.nodes.give_up("n")
    assert line.ended == "closed: this node was replaced" and line.sent[-1] == Leave(reason="x")
    register.put.clear()
    register.nodes.fact("n", Fact(seq=1, event=committed()))
    register.nodes.report(Report(node="n", attempt=0, workers=()))
    register.nodes.send("n", Leave(reason="y"))
    register.nodes.acknowledge("n", 1)
    register.nodes.closed("n", line)
    assert register.put == [] and line.sent[-1] == Leave(reason="x")
    assert register.changed == ["n", "n"]


def test_who_is_let_go_and_stays_is_cut_off() -> None:
    register = Register(timeout_s=1_000.0)
    line = register.connect("n")
    register.nodes.send("n", Leave(reason="not needed"))
    register.look(GOODBYE_S)
    assert str(line.ended) == ""
    register.look(LOOK_S)
    assert line.ended == "aborted: it was released and is still connected"
    assert register.nodes.connected == frozenset()


def test_of_nodes_that_were_let_go_and_went_nothing_is_kept() -> None:
    register = Register()
    for number in range(100):
        line = register.connect(f"n{number}")
        register.nodes.send(f"n{number}", Leave(reason="not needed"))
        register.nodes.closed(f"n{number}", line)
    assert register.nodes._nodes == {}


def test_everybody_hears_the_farewell_and_nobody_is_cut_off_for_staying() -> None:
    register = Register(timeout_s=1_000.0)
    early = register.connect("a")
    leave = Leave(reason="the end", term=TERM)
    register.nodes.say_farewell(leave)
    late = register.connect("b")
    register.look(GOODBYE_S + 1)
    for line in (early, late):
        assert line.sent[-1] == leave and not line.ended
