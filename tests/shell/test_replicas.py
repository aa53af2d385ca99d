"""The journal is in somebody's memory before anything happens, and a successor finds all of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from holdfast.drivers.kubernetes.keepers import CHUNK_BYTES, KEEPERS, Keepers
from holdfast.drivers.links import Links
from tests.drivers.test_links import TOKEN, Ear
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from holdfast import lines
from holdfast.agent.keeper import Keeper
from holdfast.controller import Limits
from holdfast.controller.state import Node, State
from holdfast.drivers.kubernetes.gather import Gathering
from holdfast.messages import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    Ack,
    GiveJournal,
    Hello,
    Keep,
    Start,
    Stop,
    Welcome,
)

_decoder = msgspec.msgpack.Decoder(Welcome | Ack | Start | Stop | Keep | GiveJournal)


class Agent:
    """The keeping part of an agent, over a real connection."""

    def __init__(self, node: str) -> None:
        self.node, self.keeper, self.mute = node, Keeper(), False

    @contextlib.asynccontextmanager
    async def connected(self, port: int) -> AsyncIterator[None]:
        """Connected to whoever listens there, obeying."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"ws://127.0.0.1:{port}/"
        async with connect(
            url, additional_headers=headers, compression=None, max_size=MAX_MESSAGE_BYTES
        ) as socket:
            hello = Hello(
                protocol=PROTOCOL, node=self.node, name=self.node, address="", workers=1, pid=1,
                attempt=0, running=False, kept=self.keeper.seq, term=self.keeper.term,
            )  # fmt: skip
            await socket.send(msgspec.msgpack.encode(hello))
            obeying = asyncio.create_task(self._obey(socket))
            yield
            obeying.cancel()

    async def _obey(self, socket: ClientConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                match _decoder.decode(await socket.recv(decode=False)):
                    case Keep() as order if not self.mute:
                        answer = self.keeper.keep(order)
                        await socket.send(msgspec.msgpack.encode(answer))
                    case GiveJournal():
                        for part in self.keeper.copy():
                            await socket.send(msgspec.msgpack.encode(part))
                    case _:
                        continue

    @property
    def held(self) -> bytes:
        """What it keeps."""
        return b"".join(part.data for part in self.keeper.copy())


class Site:
    """A controller's connections and its journal."""

    def __init__(self, folder: Path, *nodes: str, term: int = 1) -> None:
        self.journal = folder / "journal.jsonl"
        if not self.journal.exists():
            self.journal.write_bytes(b"")
        self._checksum = 0
        self.links = Links(Ear(), TOKEN)
        known = {n: Node(node=n, name=n, address="", workers=1) for n in nodes}
        state = State(limits=Limits(node_count=len(nodes)), nodes=known)
        state.ranks = dict(enumerate(nodes))
        self.keepers = Keepers(self.links, self.journal, state, term)

    async def listen(self) -> int:
        """Start."""
        return await self.links.listen("127.0.0.1")

    def write(self, *words: str) -> None:
        """More of the journal."""
        with self.journal.open("ab") as file:
            file.writelines(self.sealed(*words))

    def sealed(self, *words: str) -> list[bytes]:
        """Lines that go on where the journal ends."""
        found = []
        for word in words:
            line = bytearray(b'{"word":"%b"}' % word.encode())
            self._checksum = lines.seal(line, self._checksum)
            found.append(bytes(line))
        return found

    async def there(self, count: int) -> None:
        """Until so many agents are connected."""
        async with asyncio.timeout(10):
            while len(self.links.connected) < count:
                await asyncio.sleep(0.01)


def test_what_was_written_is_kept_before_copy_returns(tmp_path: Path) -> None:
    async def story() -> None:
        site, agent = Site(tmp_path, "a"), Agent("a")
        port = await site.listen()
        async with agent.connected(port):
            await site.there(1)
            site.write("header", "one")
            await site.keepers.copy()
            assert agent.held == site.journal.read_bytes() != b""
            site.write("two")
            await site.keepers.copy()
            assert agent.held == site.journal.read_bytes()
        await site.links.close()

    asyncio.run(story())


def test_a_few_keep_and_a_new_one_takes_the_place_of_one_that_went(tmp_path: Path) -> None:
    async def story() -> None:
        agents = [Agent(f"n{i}") for i in range(KEEPERS + 1)]
        site = Site(tmp_path, *(a.node for a in agents))
        port = await site.listen()
        site.write("header")
        async with contextlib.AsyncExitStack() as stack:
            for agent in agents[1:]:
                await stack.enter_async_context(agent.connected(port))
            async with agents[0].connected(port):
                await site.there(len(agents))
                await site.keepers.copy()
                await _until(lambda: sum(a.held != b"" for a in agents) == KEEPERS)
                assert agents[-1].held == b""
            async with asyncio.timeout(10):
                while "n0" in site.links.connected:
                    await asyncio.sleep(0.01)
            site.keepers.gone("n0")
            site.write("one")
            await site.keepers.copy()
            await _until(lambda: all(a.held == site.journal.read_bytes() for a in agents[1:]))
        await site.links.close()

    asyncio.run(story())


async def _until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def test_nobody_to_keep_it_holds_nothing_up(tmp_path: Path) -> None:
    async def story() -> None:
        site = Site(tmp_path, "a")
        await site.listen()
        site.write("header")
        async with asyncio.timeout(0.5):
            await site.keepers.copy()
        await site.links.close()

    asyncio.run(story())


def test_a_keeper_that_never_answers_holds_it_up_for_a_moment_only(tmp_path: Path) -> None:
    async def story() -> None:
        site, agent = Site(tmp_path, "a"), Agent("a")
        agent.mute = True
        port = await site.listen()
        async with agent.connected(port):
            await site.there(1)
            site.write("header")
            async with asyncio.timeout(5):
                await site.keepers.copy()
        await site.links.close()

    asyncio.run(story())


def test_a_torn_line_is_not_sent(tmp_path: Path) -> None:
    async def story() -> None:
        site, agent = Site(tmp_path, "a"), Agent("a")
        port = await site.listen()
        async with agent.connected(port):
            await site.there(1)
            whole, torn = site.sealed("header", "torn")
            site.journal.write_bytes(whole + torn[:-5])
            await site.keepers.copy()
            assert agent.held == whole
        await site.links.close()

    asyncio.run(story())


@pytest.mark.parametrize("size", [10, CHUNK_BYTES // 3, 2 * CHUNK_BYTES])
def test_a_successor_gathers_the_whole_journal(tmp_path: Path, size: int) -> None:
    async def story() -> None:
        site, agent = Site(tmp_path, "a"), Agent("a")
        port = await site.listen()
        site.write("header", *("x" * size for _ in range(5)))
        async with agent.connected(port):
            await site.there(1)
            await site.keepers.copy()
        await site.links.close()
        gathering = Gathering(TOKEN, 1)
        waiting = asyncio.create_task(gathering.gather("127.0.0.1", port))
        while not waiting.done():
            with contextlib.suppress(OSError, ConnectionClosed):
                async with agent.connected(port):
                    await asyncio.sleep(0.2)
        assert waiting.result() == site.journal.read_bytes()

    asyncio.run(story())


def test_what_a_newer_controller_had_kept_counts_more_than_what_is_longer(tmp_path: Path) -> None:
    async def story() -> None:
        old, new = Agent("old"), Agent("new")
        longer = tuple(Site(tmp_path).sealed(*"01234"))
        newer = tuple(Site(tmp_path).sealed(*"01", "other"))
        old.keeper.keep(Keep(first=0, lines=longer, term=1))
        new.keeper.keep(Keep(first=0, lines=newer, term=2))
        site = Site(tmp_path)
        port = await site.listen()  # only to find a free port
        await site.links.close()
        gathering = Gathering(TOKEN, 2)
        waiting = asyncio.create_task(gathering.gather("127.0.0.1", port))
        while not waiting.done():
            for agent in (old, new):
                with contextlib.suppress(OSError, ConnectionClosed):
                    async with agent.connected(port):
                        await asyncio.sleep(0.1)
        assert waiting.result() == b"".join(newer)

    asyncio.run(story())


def test_a_copy_in_whose_memory_a_bit_has_flipped_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        damaged, sound = Agent("damaged"), Agent("sound")
        journal = tuple(Site(tmp_path).sealed(*"012"))
        damaged.keeper.keep(Keep(first=0, lines=journal, term=1))
        damaged.keeper._lines[1] = journal[1].replace(b"1", b"3", 1)
        sound.keeper.keep(Keep(first=0, lines=journal[:2], term=1))
        site = Site(tmp_path)
        port = await site.listen()  # only to find a free port
        await site.links.close()
        waiting = asyncio.create_task(Gathering(TOKEN, 2).gather("127.0.0.1", port))
        while not waiting.done():
            for agent in (damaged, sound):
                with contextlib.suppress(OSError, ConnectionClosed):
                    async with agent.connected(port):
                        await asyncio.sleep(0.1)
        assert waiting.result() == b"".join(journal[:2])

    asyncio.run(story())
    assert "the copy of damaged is passed over" in capsys.readouterr().err
