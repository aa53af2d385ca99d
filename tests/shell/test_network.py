"""Over real connections, with networks and peers that misbehave: who is stuck holds up nobody."""

import asyncio
import contextlib
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from holdfast.controller import Limits
from holdfast.events import CheckpointCommitted, NodeLost, StopRequested
from holdfast.messages import (
    Fact,
    Keep,
    Kept,
    Question,
    Report,
    Start,
    Stop,
    ToAgent,
    ToClient,
    Welcome,
)
from holdfast.shell.replicas import CHUNK_BYTES, WINDOW
from tests.shell.line import frame
from tests.shell.scene import hello
from tests.shell.site import TOKEN, Agent, Site, open_site, proxied, send, until

MIB = 1 << 20
LINES = 24  # of one MiB each, in the journal of a job that has run for long


class LongJournal:
    """What was decided lies behind many megabytes."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def count(self) -> int:
        """Lines."""
        return LINES + len(self._site.book.entries)

    def read(self, first: int, limit_bytes: int) -> list[bytes]:
        """One at a time."""
        assert limit_bytes == CHUNK_BYTES
        return [b"x" * (MIB if first < LINES else 10) + b"\n"]


class Replica(Agent):
    """Holds what it is told to."""

    async def obey(self, message: ToAgent | Question | ToClient) -> None:
        """Say so."""
        if isinstance(message, Keep):
            assert self.connection is not None
            seq = message.first + len(message.lines) - 1
            await send(self.connection, Kept(seq=seq, term=message.term))


@contextlib.asynccontextmanager
async def replicas(site_port: int, *nodes: str) -> AsyncIterator[list[Replica]]:
    """These are there."""
    agents = [Replica(node) for node in nodes]
    for agent in agents:
        await agent.join(site_port)
    yield agents
    for agent in agents:
        await agent.leave()


def queued_bytes(site: Site) -> int:
    """What waits to be sent, over all connections."""
    transports = [c._transport for c in site.host.server.connections]
    return sum(t.get_write_buffer_size() for t in transports if t is not None)


def lost(site: Site) -> list[str]:
    return [e.node for e in site.events(NodeLost) if isinstance(e, NodeLost)]


async def decided_without(site: Site, node: str, well: list[Replica]) -> None:
    """The order to stop reaches all others; the one that is stuck is given up, cut, and no copy of
    it counts; what waits for it stays bounded all the while."""
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, queued_bytes(site))
        return all(agent.was_told(Stop) for agent in well) and node in lost(site)

    await until(done, f"{lost(site)}")
    await until(lambda: node not in {c.node for c in site.host.server.connections})
    assert node not in site.shell.nodes.connected
    assert most <= (WINDOW + 1) * MIB * 2
    assert lost(site) == [node]


def test_an_agent_that_is_cut_off_while_megabytes_are_sent_to_it_holds_up_nothing() -> None:
    async def story() -> None:
        async with (
            open_site(Limits(node_count=3), timeout_s=1.5, lines=LongJournal) as (site, port),
            proxied(port) as (proxy, far),
            replicas(port, "a", "b") as well,
        ):
            stuck = await Replica("c").join(far)
            await until(lambda: len(site.shell.nodes.connected) == 3)
            proxy.hold("up", "down")  # its packets vanish
            await until(lambda: all(agent.was_told(Start) for agent in well))
            site.shell.put(StopRequested(by="me"))
            await decided_without(site, "c", well)
            await stuck.leave()

    asyncio.run(story())


STUCK_AGENT = """
import asyncio, sys
sys.path.insert(0, {root!r})
from tests.shell.test_network import Replica

async def live():
    await Replica("c").join({port})
    print("there", flush=True)
    await asyncio.Event().wait()

asyncio.run(live())
"""


def test_an_agent_that_is_stopped_while_megabytes_are_sent_to_it_holds_up_nothing() -> None:
    async def story() -> None:
        async with (
            open_site(Limits(node_count=3), timeout_s=1.5, lines=LongJournal) as (site, port),
            replicas(port, "a", "b") as well,
        ):
            source = STUCK_AGENT.format(root=str(Path(__file__).parents[2]), port=port)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", source, stdout=subprocess.PIPE
            )
            try:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"there\n"
                process.send_signal(signal.SIGSTOP)
                await until(lambda: all(agent.was_told(Start) for agent in well))
                site.shell.put(StopRequested(by="me"))
                await decided_without(site, "c", well)
            finally:
                process.kill()
                await process.wait()

    asyncio.run(story())


def test_where_a_rack_of_neighbours_stalls_another_replica_answers() -> None:
    """Before any of the rack counts as lost."""

    async def story() -> None:
        rack, others = [f"r{n}" for n in range(6)], ["x"]
        limits = Limits(node_count=len(rack) + 1)
        async with (
            open_site(limits, timeout_s=1_000.0, lines=ShortJournal) as (site, port),
            proxied(port) as (proxy, far),
            replicas(far, *rack) as neighbours,
            replicas(port, *others) as (well,),
        ):
            await until(lambda: all(a.was_told(Start) for a in (*neighbours, well)))
            proxy.hold("up", "down")
            site.shell.put(StopRequested(by="me"))
            site.host.wake()
            await until(lambda: well.was_told(Stop))
            assert lost(site) == []
            proxy.release()

    asyncio.run(story())


class ShortJournal:
    """Only what was decided."""

    def __init__(self, site: Site) -> None:
        self.count, self.read = site.book.count, site.book.read


def test_a_node_whose_words_do_not_arrive_is_lost_although_it_takes_what_it_is_sent() -> None:
    async def story() -> None:
        async with (
            open_site(Limits(node_count=2), timeout_s=1.5) as (site, port),
            proxied(port) as (proxy, far),
        ):
            stuck = await Agent("a").join(far)
            await until(lambda: stuck.was_told(Welcome))
            proxy.hold("up")
            await until(lambda: lost(site) == ["a"])
            assert site.shell.nodes.connected == frozenset()
            await stuck.leave()

    asyncio.run(story())


def test_a_node_that_hears_nothing_holds_up_nothing_although_it_gives_signs_of_life() -> None:
    async def story() -> None:
        async with (
            open_site(Limits(node_count=2), timeout_s=1.5, lines=LongJournal) as (site, port),
            proxied(port) as (proxy, far),
            replicas(port, "a") as (well,),
        ):
            stuck = await Replica("b").join(far)
            await until(lambda: stuck.was_told(Welcome))
            proxy.hold("down")
            await until(lambda: well.was_told(Start))
            site.shell.put(StopRequested(by="me"))
            await until(lambda: well.was_told(Stop))
            assert lost(site) == []
            await stuck.leave()

    asyncio.run(story())


def test_a_connection_that_ends_half_way_is_replaced_by_the_next() -> None:
    """The old one is still open for the controller, because nobody told it."""

    async def story() -> None:
        async with (
            open_site(Limits(node_count=1), timeout_s=5.0) as (site, port),
            proxied(port) as (proxy, far),
        ):
            old = await Agent("a").join(far)
            await until(lambda: old.was_told(Start))
            proxy.hold("up", "down")
            new = await Agent("a").join(port)
            await until(lambda: new.was_told(Start))
            assert site.shell.nodes.connected == {"a"}
            await until(lambda: len(site.host.server.connections) == 1)
            proxy.cut()
            await until(lambda: new.was_told(Start))
            assert lost(site) == [] and site.shell.nodes.connected == {"a"}
            await old.leave()
            await new.leave()

    asyncio.run(story())


def test_a_slow_network_loses_nobody() -> None:
    async def story() -> None:
        async with (
            open_site(Limits(node_count=1), timeout_s=1.5, lines=LongJournal) as (site, port),
            proxied(port) as (proxy, far),
        ):
            proxy.delay_s = 0.002  # for each 64 KiB
            agent = await Replica("a").join(far)
            await until(lambda: agent.was_told(Start))
            assert lost(site) == []
            await agent.leave()

    asyncio.run(story())


UPGRADE = (
    "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    f"Authorization: Bearer {TOKEN}\r\n\r\n"
).encode()


def _same(cheap: "Cheap") -> "Cheap":
    return cheap


class Cheap(asyncio.Protocol):
    """Asks to be let in, says hello once it is, and gives one sign of life with it."""

    def __init__(self, said: bytes) -> None:
        self._said, self.welcomed = said, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(UPGRADE)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 101"):
            self._transport.write(self._said)
        else:
            self.welcomed = True


def test_a_storm_of_a_thousand_that_join_at_once_costs_no_sign_of_life_of_others() -> None:
    count = 1_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 3 * count:
        pytest.skip("needs more open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3 * count), hard))

    async def story() -> None:
        async with open_site(Limits(node_count=2 * count), timeout_s=10.0) as (site, port):
            agent = await Agent("there").join(port)
            await until(lambda: site.shell.nodes.connected == {"there"})
            loop = asyncio.get_running_loop()
            says = [frame(msgspec.msgpack.encode(hello(f"n{n}"))) for n in range(count)]
            opened = await asyncio.gather(
                *(loop.create_connection(partial(Cheap, said), "127.0.0.1", port) for said in says)
            )
            storm = [cheap for _, cheap in opened]
            await until(lambda: all(cheap.welcomed for cheap in storm))
            await until(lambda: len(site.shell.state.nodes) == count + 1)
            assert lost(site) == [] and "there" in site.shell.nodes.connected
            for transport, _ in opened:
                transport.abort()
            await agent.leave()

    asyncio.run(story())


def committed(node: str) -> CheckpointCommitted:
    return CheckpointCommitted(node=node, tier="local", attempt=1, step=5, seconds=1.0, bytes=5)


def test_a_flood_of_reports_of_one_node_starves_neither_its_facts_nor_others() -> None:
    async def story() -> None:
        async with open_site(Limits(node_count=1, spare_count=1), timeout_s=5.0) as (site, port):
            flooding, other = await Agent("a").join(port), await Agent("b").join(port)
            assert flooding.connection is not None
            for step in range(5_000):
                await send(flooding.connection, Report(node="a", attempt=step, workers=()))
            await send(flooding.connection, Fact(seq=2, event=committed("a")))
            assert other.connection is not None
            await send(other.connection, Fact(seq=2, event=committed("b")))
            await until(lambda: len(site.events(CheckpointCommitted)) == 2)
            assert lost(site) == []
            await flooding.leave()
            await other.leave()

    asyncio.run(story())


def test_a_sign_of_life_alone_keeps_a_node_and_its_end_is_noticed() -> None:
    async def story() -> None:
        async with open_site(Limits(node_count=1), timeout_s=1.0) as (site, port):
            agent = await Agent("a").join(port)
            since = time.monotonic()
            await until(lambda: time.monotonic() > since + 1.5 or lost(site))
            assert lost(site) == []
            for task in agent._tasks:
                task.cancel()
            assert agent.connection is not None
            agent.connection.transport.pause_reading()  # else it answers when it is asked
            await until(lambda: lost(site) == ["a"])
            await agent.leave()

    asyncio.run(story())
