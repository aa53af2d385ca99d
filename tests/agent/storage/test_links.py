"""The links between nodes are measured by their storage processes, and whoever is slow is found."""

import itertools
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.storage import link_probe, peer_connection, protocol
from holdfast.agent.storage.link_probe import LinkRate, LinkWord, measure
from holdfast.agent.storage.peer_connection import PeerConnection, admit, key_of
from holdfast.controller import Limits, State
from holdfast.controller.state import Node, NodeState
from holdfast.diagnosis.slow_links import LinkFinding
from holdfast.links import Link, LinkFigures
from holdfast.messages import CheckMachine, MachineChecked
from holdfast.shell.link_measurement import LinkMeasurement
from tests.agent.storage import machines
from tests.agent.storage.site import TOKEN, Site, sites
from tests.patience import PATIENCE_S, until

apart = pytest.mark.skipif(
    bool(machines.missing()), reason=f"no network namespaces: {machines.missing()}"
)
KEY = key_of(TOKEN)
NAMES = "abcdefgh"


def measured(site: Site, address: str, number: int = 7) -> LinkFigures:
    assert site.sock is not None
    protocol.send(site.sock, protocol.MeasurePeer(number=number, address=address))
    news = site.news()
    assert isinstance(news, protocol.PeerMeasured) and news.number == number
    return news.found


def test_two_nodes_of_a_machine_measure_both_ways_and_know_that_they_share_it() -> None:
    with sites(2) as (one, other):
        found = measured(one, other.address)
        assert found.same_machine and not found.trouble
        assert min(found.there_bytes_per_s, found.back_bytes_per_s) > 1e6
        assert measured(other, one.address, 8).there_bytes_per_s > 1e6, "both do it again"


def test_what_was_sent_before_the_time_was_over_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a link of gigabytes a second, where the most that is sent has left long before."""
    monkeypatch.setattr(link_probe, "MOST_BYTES", 1 << 20)
    with other_side(link_probe.answer) as address:
        found = measure(address, KEY)
    assert not found.trouble and found.back_bytes_per_s > 0


def test_a_stranger_is_told_nothing_and_measures_nothing() -> None:
    with sites(1) as (one,):
        found = measure(one.address, key_of("another job's"))
        assert found == LinkFigures(trouble="wrong token")
        host, port = one.address.split(":")
        for said in (b"", os.urandom(4096), peer_connection.LINKS + bytes(64)):
            with socket.create_connection((host, int(port)), PATIENCE_S) as garbage:
                garbage.sendall(said)
                assert measure(one.address, KEY).there_bytes_per_s > 1e6


@contextmanager
def other_side(act: Callable[[PeerConnection], Any]) -> Iterator[str]:
    """A node that knows the token, and then does this; its address."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        sock, _ = server.accept()
        with sock:
            with suppress(OSError):
                act(admit(sock, KEY))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        thread.join(PATIENCE_S)
        server.close()
        assert not thread.is_alive()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_connection, "HANDSHAKE_S", 0.2)
    for name, value in (("FIRST_S", 0.2), ("WORD_S", 0.2), ("EACH_WAY_S", 0.1), ("SKIP_S", 0.02)):
        monkeypatch.setattr(link_probe, name, value)


def hello(connection: PeerConnection) -> None:
    connection.hear(LinkWord)
    connection.say(LinkWord(machine="m"))


def says(*words: bytes) -> Callable[[PeerConnection], None]:
    def act(connection: PeerConnection) -> None:
        hello(connection)
        for word in words:
            connection.send(memoryview(word))
        wait_for_its_end(connection)

    return act


def wait_for_its_end(connection: PeerConnection) -> None:
    connection.patience(PATIENCE_S)
    while True:
        connection.receive(memoryview(bytearray(1 << 20)))


def stuck(connection: PeerConnection) -> None:
    """Takes nothing that is sent."""
    hello(connection)
    gone = threading.Event()
    gone.wait(1.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("act", "trouble"),
    [
        (wait_for_its_end, "timed out"),
        (stuck, "timed out"),
        (says(), "timed out"),
        (hello, "closed"),
        (says(b"\xff\xff\xff\xff"), "a frame of"),
        (says(b"\x04\x00\x00\x00abcd"), "unreadable"),
    ],
)
def test_whatever_the_other_side_does_it_is_over_soon_and_the_trouble_is_told(
    act: Callable[[PeerConnection], Any], trouble: str
) -> None:
    with other_side(act) as address:
        found = measure(address, KEY)
    assert trouble in found.trouble or (trouble == "closed" and "reset" in found.trouble)
    assert not found.there_bytes_per_s


@pytest.mark.usefixtures("impatient")
def test_one_that_sends_nothing_back_is_as_slow_as_can_be() -> None:
    def act(connection: PeerConnection) -> None:
        hello(connection)
        connection.say(LinkRate(bytes_per_s=5e9))
        wait_for_its_end(connection)

    with other_side(act) as address:
        assert measure(address, KEY) == LinkFigures(there_bytes_per_s=5e9)


@pytest.mark.usefixtures("impatient")
def test_nobody_there_or_nobody_who_answers_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert "timed out" in measure(address, KEY).trouble
    assert "refused" in measure(address, KEY).trouble
    assert measure("nowhere", KEY).trouble and measure("127.0.0.1:99999", KEY).trouble


def state_of(count: int) -> State:
    """A job of nodes that wait."""
    state = State(limits=Limits(node_count=count))
    for name in NAMES[:count]:
        state.nodes[name] = Node(
            node=name, name=name, address="h", workers=1, state=NodeState.SPARE
        )
    return state


def ring_of(
    made: list[Site],
) -> tuple[list[Link], LinkFinding]:
    """What the shell makes of these storage processes."""
    names = dict(zip(NAMES, made, strict=False))
    busy: dict[int, tuple[str, str]] = {}
    told: list[tuple[list[Link], LinkFinding]] = []
    by_address = {site.address: name for name, site in names.items()}

    def send(node: str, order: CheckMachine) -> None:
        pair = node, by_address[order.peer]
        assert not {*pair} & {name for both in busy.values() for name in both}, "at most once"
        busy[order.number] = pair
        sock = names[node].sock
        assert sock is not None
        protocol.send(sock, protocol.MeasurePeer(number=order.number, address=order.peer))

    links = LinkMeasurement(state_of(len(made)), send, itertools.count(1))
    addresses = {name: site.address for name, site in names.items()}
    links.begin(addresses, lambda links, finding: told.append((list(links), finding)))
    while not told:
        links.look(names, time.monotonic())
        for node, _ in list(busy.values()):
            news = names[node].news()
            assert isinstance(news, protocol.PeerMeasured)
            del busy[news.number]
            links.answered(node, MachineChecked(number=news.number, link=news.found))
    return told[0]


FAST_BYTES_S = 50e6  # slower is no link between these processes that nothing slows down


def settled(
    made: list[Site], paced: Collection[str], right: Callable[[list[Link], LinkFinding], bool]
) -> tuple[list[Link], LinkFinding]:
    """Measured again where that comes out wrong because there was no processor: then a link is
    slow, too, that is none of those at `paced`."""
    told: list[tuple[list[Link], LinkFinding]] = []

    def is_settled() -> bool:
        links, finding = ring_of(made)
        told.append((links, finding))
        others = [one.found for one in links if one.node + one.other not in paced]
        found = [one for one in others if one is not None and not one.trouble]
        rates = [rate for one in found for rate in (one.there_bytes_per_s, one.back_bytes_per_s)]
        return right(links, finding) or min(rates, default=math.inf) > FAST_BYTES_S

    until(is_settled)
    links, finding = told[-1]
    assert right(links, finding), (links, finding)
    return links, finding


@apart
@pytest.mark.slow
@pytest.mark.parametrize("ways", ["both", "sends", "receives"])
def test_a_node_with_a_slow_network_is_named_and_its_neighbours_are_not(
    tmp_path: Path, ways: str
) -> None:
    with machines.machines(5, tmp_path) as (network, made):
        network.pace(2, "10mbit", sends=ways != "receives", receives=ways != "sends")
        links, finding = settled(made, ("bc", "cd"), lambda _, found: list(found.blamed) == ["c"])
        assert ("receives" if ways == "receives" else "sends") in finding.blamed["c"]
        assert len(links) == 5
        assert not any(link.found.same_machine for link in links if link.found is not None)


@apart
@pytest.mark.slow
def test_one_slow_link_is_shown_and_nobody_is_named(tmp_path: Path) -> None:
    def right(links: list[Link], finding: LinkFinding) -> bool:
        shown = not finding.blamed and "between b and c only" in finding.lines[1]
        return shown and (links[0].node, links[0].other) == ("b", "c")  # the slowest first

    with machines.machines(5, tmp_path) as (network, made):
        network.pace_to(1, 2, "10mbit")
        settled(made, ("bc",), right)


@apart
@pytest.mark.slow
def test_a_pair_that_cannot_reach_each_other_is_shown_and_a_node_that_nobody_reaches_is_named(
    tmp_path: Path,
) -> None:
    def shown(_links: list[Link], finding: LinkFinding) -> bool:
        return not finding.blamed and "b cannot reach c" in finding.lines[1]

    with machines.machines(5, tmp_path) as (network, made):
        network.cut(1, 2)
        settled(made, ("bc",), shown)
        network.unplug(4)
        around = ("bc", "de", "ea")
        _, finding = settled(made, around, lambda _, found: list(found.blamed) == ["e"])
        assert "cannot reach each other" in finding.blamed["e"]


@apart
@pytest.mark.slow
def test_between_three_nodes_the_figures_are_shown_and_nobody_is_named(tmp_path: Path) -> None:
    def right(links: list[Link], finding: LinkFinding) -> bool:
        slowest = links[0].found
        figures = slowest is not None and slowest.there_bytes_per_s < 10e6 / 8
        return not finding.blamed and len(finding.lines) == 1 and figures

    with machines.machines(3, tmp_path) as (network, made):
        network.pace(1, "10mbit")
        settled(made, ("ab", "bc"), right)
