"""The journal is in somebody's memory before anything happens, and a successor finds all of it."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from holdfast import lines
from holdfast.agent.controller_connection import ControllerConnection, Order
from holdfast.agent.journal_replica import JournalReplica
from holdfast.controller import Limits
from holdfast.drivers.kubernetes.gather import Gathering
from holdfast.events import StopRequested
from holdfast.messages import (
    GiveJournal,
    Hello,
    Keep,
    Kept,
    Question,
    Start,
    Stop,
    ToAgent,
    ToClient,
)
from holdfast.shell.host import cancelled
from holdfast.shell.outbox import LIMIT_BYTES
from holdfast.shell.replicas import (
    ASK_MORE_S,
    CHUNK_BYTES,
    REPLICAS,
    WINDOW,
    FileLines,
    Replicas,
)
from tests.shell import site
from tests.shell.scene import TERM, hello
from tests.shell.site import TOKEN, Site, open_site, send, until


class Copies:
    """A journal, nodes that may hold it in order, and what each was sent."""

    def __init__(self, folder: Path, *nodes: str, near: frozenset[str] = frozenset()) -> None:
        self.path = folder / "journal.jsonl"
        self.path.write_bytes(b"")
        self.nodes = list(nodes)
        self.connected = set(nodes)
        self.keepers = {node: JournalReplica() for node in nodes}
        self.queue: list[tuple[str, Keep]] = []
        self.now = 0.0
        self._checksum = 0
        self.replicas = Replicas(
            FileLines(self.path), TERM, lambda: self.nodes, near.__contains__,
            lambda node, keep: self.queue.append((node, keep)),
        )  # fmt: skip

    def write(self, *words: str) -> list[bytes]:
        """More of the journal."""
        found = []
        for word in words:
            line = bytearray(b'{"word":"%b"}' % word.encode())
            self._checksum = lines.seal(line, self._checksum)
            found.append(bytes(line))
        with self.path.open("ab") as file:
            file.writelines(found)
        return found

    def copy(self) -> bool:
        return self.replicas.copy(self.connected, self.now)

    def held(self) -> bool:
        return self.replicas.held(self.connected)

    def deliver(self, *nodes: str) -> None:
        """What was sent to these arrives, and what they answer, until nothing is under way."""
        while due := [pair for pair in self.queue if pair[0] in nodes]:
            self.queue = [pair for pair in self.queue if pair[0] not in nodes]
            for node, keep in due:
                assert self.replicas.answered(node, self.keepers[node].keep(keep))

    def whole(self, node: str) -> bool:
        """Whether it holds everything."""
        return held_by(self.keepers[node]) == self.path.read_bytes()

    def gone(self, node: str) -> None:
        self.connected.discard(node)
        self.queue = [pair for pair in self.queue if pair[0] != node]
        self.replicas.gone(node)

    @property
    def asked(self) -> set[str]:
        """Nodes to which something is under way."""
        return {node for node, _ in self.queue}


def held_by(keeper: JournalReplica) -> bytes:
    return b"".join(part.data for part in keeper.copy())


def test_what_was_written_is_held_once_one_has_all_of_it(tmp_path: Path) -> None:
    copies = Copies(tmp_path, "a")
    for words in (("header", "one"), ("two",)):
        copies.write(*words)
        assert not copies.copy()
        copies.deliver("a")
        assert copies.held() and copies.whole("a")


def test_nobody_to_hold_it_holds_nothing_up(tmp_path: Path) -> None:
    copies = Copies(tmp_path, "a")
    copies.write("header")
    copies.gone("a")
    assert copies.copy()


def test_a_few_hold_it_far_from_each_other_and_one_that_went_is_replaced(tmp_path: Path) -> None:
    nodes = [f"n{number}" for number in range(9)]
    copies = Copies(tmp_path, *nodes)
    copies.write("header")
    copies.copy()
    assert copies.asked == {"n0", "n3", "n6"}
    copies.deliver(*nodes)
    copies.gone("n3")
    copies.write("one")
    copies.copy()
    assert len(copies.asked) == REPLICAS and {"n0", "n6"} < copies.asked
    copies.deliver(*nodes)
    assert sum(map(copies.whole, nodes)) == REPLICAS


def test_one_on_the_machine_of_the_controller_counts_only_where_there_is_no_other(
    tmp_path: Path,
) -> None:
    copies = Copies(tmp_path, "near", "far", near=frozenset({"near"}))
    copies.write("header")
    copies.copy()
    assert copies.asked == {"far"}
    copies.gone("far")
    assert not copies.held()
    copies.copy()
    copies.deliver("near")
    assert copies.held()
    copies.connected.add("far")
    assert not copies.held(), "it is known to a machine that may vanish with it"


def test_one_answer_is_enough_whoever_else_is_slow(tmp_path: Path) -> None:
    nodes = [f"n{number}" for number in range(9)]
    copies = Copies(tmp_path, *nodes)
    copies.write("header")
    copies.copy()
    copies.deliver("n6")
    assert copies.held()


def test_where_all_that_were_asked_are_slow_others_are_asked_until_one_answers(
    tmp_path: Path,
) -> None:
    """A rack, say, whose switch is stuck."""
    rack, others = [f"r{number}" for number in range(8)], ["x", "y"]
    copies = Copies(tmp_path, *rack, *others)
    copies.write("header")
    copies.copy()
    assert copies.asked <= set(rack)
    for _ in range(4):
        copies.deliver(*others)
        if copies.held():
            break
        copies.replicas.look(copies.connected, copies.now)
        copies.now += ASK_MORE_S
        copies.replicas.look(copies.connected, copies.now)
    assert copies.held() and (copies.whole("x") or copies.whole("y"))


def test_those_that_were_asked_meanwhile_do_not_all_stay(tmp_path: Path) -> None:
    """Each moment in which all are slow would add a few, for good."""
    nodes = [f"n{number}" for number in range(12)]
    copies = Copies(tmp_path, *nodes)
    for word in ("header", "one", "two", "three"):
        copies.write(word)
        copies.copy()
        for _ in range(4):
            copies.now += ASK_MORE_S
            copies.replicas.look(copies.connected, copies.now)
        copies.deliver(*nodes)
    copies.write("four")
    copies.copy()
    assert len(copies.asked) == REPLICAS
    copies.deliver(*nodes)
    assert sum(map(copies.whole, nodes)) == REPLICAS


def test_a_long_journal_is_sent_a_few_parts_at_a_time(tmp_path: Path) -> None:
    """All of it at once is more than may wait to be sent: its node would be cut off each time."""
    copies = Copies(tmp_path, "a")
    copies.write("header", *("x" * (CHUNK_BYTES // 2) for _ in range(48)))
    assert copies.path.stat().st_size > LIMIT_BYTES
    copies.copy()
    under_way = sum(len(line) for _, keep in copies.queue for line in keep.lines)
    assert len(copies.queue) == WINDOW and under_way <= WINDOW * CHUNK_BYTES < LIMIT_BYTES
    copies.deliver("a")
    assert copies.held() and copies.whole("a")


def test_one_that_refuses_is_not_asked_again_at_once(tmp_path: Path) -> None:
    copies = Copies(tmp_path, "a")
    copies.write("header")
    for _ in range(3):
        copies.copy()
        ((node, _),) = copies.queue
        copies.queue.clear()
        assert copies.replicas.answered(node, Kept(seq=-1, term=0))
        assert copies.queue == [] and not copies.held()


def test_one_that_lost_its_copy_gets_all_of_it_again(tmp_path: Path) -> None:
    copies = Copies(tmp_path, "a")
    copies.write("header", "one")
    copies.copy()
    copies.deliver("a")
    copies.keepers["a"] = JournalReplica()
    copies.write("two")
    copies.copy()
    copies.deliver("a")
    assert not copies.held()
    copies.now += ASK_MORE_S
    copies.replicas.look(copies.connected, copies.now)
    copies.deliver("a")
    assert copies.held() and copies.whole("a")


def test_one_that_comes_back_is_asked_anew_whatever_it_had(tmp_path: Path) -> None:
    copies = Copies(tmp_path, "a")
    copies.write("header", "one")
    copies.copy()
    copies.deliver("a")
    copies.gone("a")
    copies.connected.add("a")
    assert not copies.held()
    copies.write("two")
    copies.copy()
    copies.deliver("a")
    assert copies.held() and copies.whole("a")


def test_who_was_given_the_journal_by_a_newer_controller_says_so(tmp_path: Path) -> None:
    copies = Copies(tmp_path, "a")
    copies.write("header")
    copies.copy()
    ((node, keep),) = copies.queue
    newer = Keep(first=0, lines=keep.lines, term=TERM + 1)
    copies.keepers[node].keep(newer)
    assert not copies.replicas.answered(node, copies.keepers[node].keep(keep))


def test_a_torn_line_is_not_sent(tmp_path: Path) -> None:
    copies = Copies(tmp_path, "a")
    whole, torn = copies.write("header", "torn")
    copies.path.write_bytes(whole + torn[:-5])
    copies.copy()
    copies.deliver("a")
    assert copies.held() and held_by(copies.keepers["a"]) == whole


# ── over real connections ──


class Replica(site.Agent):
    """An agent with what real ones hold copies with."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.keeper = JournalReplica()

    async def obey(self, message: ToAgent | Question | ToClient) -> None:
        """Keep what it is told to."""
        assert self.connection is not None
        match message:
            case Keep():
                await send(self.connection, self.keeper.keep(message))
            case GiveJournal():
                for part in self.keeper.copy():
                    await send(self.connection, part)
            case _:
                pass


def sealed(*words: str) -> list[bytes]:
    """Lines of a journal."""
    checksum, found = 0, []
    for word in words:
        line = bytearray(b'{"word":"%b"}' % word.encode())
        checksum = lines.seal(line, checksum)
        found.append(bytes(line))
    return found


def written(site: Site, path: Path) -> FileLines:
    """The journal of a site in a file, as it becomes durable."""
    checksum, sync = 0, site.book.sync

    def write(*entries: object) -> None:
        nonlocal checksum
        with path.open("ab") as file:
            for entry in entries:
                line = bytearray(b'{"entry":"%b"}' % type(entry).__name__.encode())
                checksum = lines.seal(line, checksum)
                file.write(line)

    def durable() -> None:
        pending = list(site.book.pending)
        sync()
        write(*pending)

    write("header")
    site.book.sync = durable  # type: ignore[method-assign]
    return FileLines(path)


def test_no_order_reaches_anybody_before_a_real_keeper_holds_what_led_to_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.jsonl"

    async def story() -> None:
        agents = [Replica(node) for node in ("a", "b")]
        held: list[int] = []

        class Witness(Replica):
            async def obey(self, message: ToAgent | Question | ToClient) -> None:
                if isinstance(message, Start | Stop):
                    known = [len(held_by(a.keeper).splitlines()) for a in (*agents, self)]
                    held.append(max(known) - len(path.read_bytes().splitlines()))
                await super().obey(message)

        agents.append(Witness("c"))
        async with open_site(Limits(node_count=3), lines=lambda s: written(s, path)) as (s, port):
            for agent in agents:
                await agent.join(port)
            await until(lambda: all(agent.was_told(Start) for agent in agents))
            s.shell.put(StopRequested(by="me"))
            s.host.wake()
            await until(lambda: all(agent.was_told(Stop) for agent in agents))
            for agent in agents:
                await agent.leave()
        assert held == [0, 0]
        assert any(held_by(a.keeper) == path.read_bytes() for a in agents)

    asyncio.run(story())


# ── a successor ──


class Agent:
    """An agent's connection to a successor, as in a pod, and what it keeps."""

    def __init__(self, node: str) -> None:
        self.node, self.keeper = node, JournalReplica()

    def hello(self) -> Hello:
        """Who it is and what it holds."""
        return msgspec.structs.replace(
            hello(self.node), kept=self.keeper.seq, term=self.keeper.term
        )

    async def connect(self, folder: Path, port: int) -> None:
        """For ever."""
        (folder / "token").write_text(TOKEN)
        (folder / "controller.json").write_text(json.dumps({"host": "127.0.0.1", "port": port}))
        orders: list[Order] = []
        link = ControllerConnection(folder, self.hello, orders.append, self.keeper.copy)
        await link.run()


async def free_port() -> int:
    """One on which nobody listens."""
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def gathered(folder: Path, *agents: Agent) -> bytes:
    """What a successor finds with these. All have said what they hold: nobody was waited for in
    vain."""
    port, nodes = await free_port(), [agent.node for agent in agents]
    connecting = [asyncio.create_task(agent.connect(folder, port)) for agent in agents]

    async def running() -> list[str]:
        return nodes

    try:
        call = await Gathering(TOKEN, nodes, (), running).gather("127.0.0.1", port)
    finally:
        await cancelled(*connecting)
    assert not call.silent
    return call.best


@pytest.mark.parametrize("size", [10, CHUNK_BYTES // 3, 2 * CHUNK_BYTES])
def test_a_successor_gathers_the_whole_journal(tmp_path: Path, size: int) -> None:
    copies = Copies(tmp_path, "a")
    copies.write("header", *("x" * size for _ in range(5)))
    copies.copy()
    copies.deliver("a")
    agent = Agent("a")
    agent.keeper = copies.keepers["a"]
    assert asyncio.run(gathered(tmp_path, agent)) == copies.path.read_bytes()


def test_what_a_newer_controller_had_kept_counts_more_than_what_is_longer(
    tmp_path: Path,
) -> None:
    old, new = Agent("old"), Agent("new")
    newer = tuple(sealed(*"01", "other"))
    old.keeper.keep(Keep(first=0, lines=tuple(sealed(*"01234")), term=1))
    new.keeper.keep(Keep(first=0, lines=newer, term=2))
    assert asyncio.run(gathered(tmp_path, old, new)) == b"".join(newer)


def test_a_copy_in_whose_memory_a_bit_has_flipped_is_passed_over(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damaged, sound = Agent("damaged"), Agent("sound")
    journal = tuple(sealed(*"012"))
    damaged.keeper.keep(Keep(first=0, lines=journal, term=1))
    damaged.keeper._lines[1] = journal[1].replace(b"1", b"3", 1)
    sound.keeper.keep(Keep(first=0, lines=journal[:2], term=1))
    assert asyncio.run(gathered(tmp_path, damaged, sound)) == b"".join(journal[:2])
    assert "the copy of damaged is ignored" in capsys.readouterr().err
