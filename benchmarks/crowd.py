"""Thousands of agents in one process, as cheap as can be: each is a small object around a socket.

What they send is what agents send: signs of life and reports as often as the controller wants
them, facts, answers to orders. One clock serves them all. Orders of the benchmark itself come over
a pipe: `("silence", n)` lets agent n fall silent, its connection open, `("storm", n)` cuts
n connections, which come back at once.
"""

import asyncio
import heapq
import time
from multiprocessing.connection import Connection

import msgspec

from holdfast.agent.progress_watch import REPEAT_S
from holdfast.collectives import Collective, GroupLog, unread
from holdfast.events import Milestone, NodeReady, Progress, Store
from holdfast.evidence import NodeEvidence
from holdfast.messages import (
    PROTOCOL,
    Ack,
    AgentFact,
    EvidenceReply,
    Fact,
    GiveJournal,
    Hello,
    Keep,
    Kept,
    Leave,
    Report,
    Stacks,
    Start,
    Stop,
    TakeEvidence,
    TakeStacks,
    Welcome,
    WorkerReport,
    WorkersStarted,
    WorkersStopped,
)
from holdfast.rank_runs import in_runs
from holdfast.shell.server import allow_connections
from holdfast.stacks import Activity, StackGroup, ThreadStack

TOKEN = "benchmark"
WORKERS = 8
TICK_S = 0.02
AT_ONCE = 200  # connections that are opened at once, unless a storm is asked for
ANSWER_S = 1.4  # a real agent takes as long for three looks at its workers
STAGES = 16  # of a pipeline; a node is one tensor-parallel group
MAIN = (
    *(f"Trainer.step_{n} (site-packages/trainer/loop_{n}.py:{n}20)" for n in range(14)),
    "all_reduce (torch/distributed/distributed_c10d.py:2806)",
)
OTHERS = 11  # threads beside the main one
RECENT = tuple(
    Collective(n, 0, n == 5_032, "all_reduce float[1048576]") for n in range(5_001, 5_033)
)
REACHED = (
    Milestone.STARTED, Milestone.ARRIVED, Milestone.JOINED, Milestone.RESTORED,
    Milestone.FIRST_STEP,
)  # fmt: skip

REQUEST = (
    "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    f"Authorization: Bearer {TOKEN}\r\n\r\n"
).encode()
MASK = bytes(4)  # changes nothing
PULSE = b"\x8a\x80" + MASK

Order = Welcome | Ack | Start | Stop | Leave | Keep | GiveJournal | TakeEvidence | TakeStacks
_decoder = msgspec.msgpack.Decoder(Order)
_encoder = msgspec.msgpack.Encoder()


def be_agents(orders: Connection, port: int, count: int) -> None:
    """All agents, until the process is killed."""
    allow_connections()
    asyncio.run(Crowd(orders, port, count).run())


class Crowd:
    """All of them."""

    def __init__(self, orders: Connection, port: int, count: int) -> None:
        self._orders, self._port = orders, port
        self._agents = [Agent(number) for number in range(count)]

    async def run(self) -> None:
        """Connect, then serve them in turn."""
        asyncio.get_running_loop().add_reader(self._orders.fileno(), self._ordered)
        self._connecting = asyncio.create_task(self._connect(self._agents, AT_ONCE))
        due = [(0.0, number) for number in range(len(self._agents))]
        while True:
            now = time.monotonic()
            while due[0][0] <= now:
                _, number = due[0]
                heapq.heapreplace(due, (self._agents[number].live(now), number))
            await asyncio.sleep(TICK_S)

    async def _connect(self, agents: "list[Agent]", at_once: int) -> None:
        gate = asyncio.Semaphore(at_once)
        await asyncio.gather(*(agent.connect(self._port, gate) for agent in agents))

    def _ordered(self) -> None:
        word, count = self._orders.recv()  # of a storm; for silence, the number of the agent
        if word == "silence":
            self._agents[count].silent = True
        else:
            crowd = [agent for agent in self._agents if not agent.silent][-count:]
            for agent in crowd:
                agent.cut()
            self._connecting = asyncio.create_task(self._connect(crowd, len(crowd)))


class Agent(asyncio.Protocol):
    """One of them."""

    def __init__(self, number: int) -> None:
        self._node = f"node-{number:05}"
        self._store = Store("127.0.0.1", number + 1, True)
        self._spread = (number * 0.618) % 1.0  # of its turn within a period
        self._seq = 0
        self._kept: list[Fact] = []
        self._order: Start | None = None
        self._step = 0
        self._transport: asyncio.Transport | None = None
        self._unread = b""
        self._open = False
        self._welcomed = asyncio.Event()
        self._pulse_s = self._report_s = 1.0
        self._pulse_at = self._report_at = 0.0
        self._looks: TakeStacks | None = None  # that are under way
        self._looked_at = 0.0
        self.silent = False

    async def connect(self, port: int, gate: asyncio.Semaphore) -> None:
        """Until a controller has taken it in."""
        loop = asyncio.get_running_loop()
        async with gate:
            self._welcomed.clear()
            self._unread, self._open = b"", False
            self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", port)
            self._transport.write(REQUEST)
            await self._welcomed.wait()

    def cut(self) -> None:
        """Its switch has failed."""
        if self._transport is not None:
            self._transport.abort()

    def live(self, now: float) -> float:
        """What is due now; when something is next."""
        if self.silent or not self._welcomed.is_set():
            return now + 0.1
        if now >= self._report_at and self._order is not None:
            self._step += 1
            self._say(self._report(self._order))
            self._report_at = now + self._report_s
        if now >= self._pulse_at and self._transport is not None:
            self._transport.write(PULSE)
            self._pulse_at = now + self._pulse_s
        if self._looks is not None and self._order is not None and now >= self._looked_at:
            self._say(stacks(self._looks.number, self._order))
            self._looks = None
        next_at = self._report_at if self._order is not None else now + 0.1
        return min(self._pulse_at, next_at, now + 0.1 if self._looks is not None else next_at)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Cut, or given up: nothing can be said any more."""
        self._welcomed.clear()

    def data_received(self, data: bytes) -> None:
        """Frames."""
        if self.silent:
            return
        self._unread += data
        if not self._open:
            _, found, self._unread = self._unread.partition(b"\r\n\r\n")
            self._open = bool(found)
            self._hello()
        for message in self._messages():
            self._hear(_decoder.decode(message))

    def _messages(self) -> list[bytes]:
        """Those that have come whole, of a server that sends each in one frame."""
        found, at, unread = [], 0, self._unread
        while at + 2 <= len(unread):
            size, begin = unread[at + 1], at + 2
            if size > 125:
                begin += 2 if size == 126 else 8
                size = int.from_bytes(unread[at + 2 : begin], "big")
            if begin + size > len(unread):
                break
            if unread[at] == 0x82:
                found.append(unread[begin : begin + size])
            at = begin + size
        self._unread = unread[at:]
        return found

    def _hello(self) -> None:
        hello = Hello(
            protocol=PROTOCOL, node=self._node, name=self._node, address="127.0.0.1",
            workers=WORKERS, pid=1, attempt=0, running=self._order is not None,
        )  # fmt: skip
        self._say(hello)

    def _hear(self, message: Order) -> None:
        match message:
            case Welcome():
                self._welcome(message)
            case Ack(seq=seq):
                self._kept = [fact for fact in self._kept if fact.seq > seq]
            case Keep():
                last = message.first + len(message.lines) - 1
                self._say(Kept(seq=last, term=message.term))
            case TakeEvidence():
                found = NodeEvidence(node=self._node)
                self._say(EvidenceReply(number=message.number, found=found))
            case TakeStacks():
                self._looks, self._looked_at = message, time.monotonic() + ANSWER_S
            case Start() if self._order is None or message.attempt > self._order.attempt:
                self._order, self._report_at = message, 0.0
                self._tell(WorkersStarted(node=self._node, attempt=message.attempt))
            case Stop():
                self._order = None
                stopped = WorkersStopped(
                    node=self._node, attempt=message.attempt, store=self._fresh(),
                    progress=Progress(step=self._step),
                )  # fmt: skip
                self._tell(stopped)
            case _:
                pass

    def _welcome(self, welcome: Welcome) -> None:
        now = time.monotonic()
        self._pulse_s, self._report_s = welcome.pulse_s, max(welcome.report_s, 0.2)
        self._pulse_at = now + self._spread * self._pulse_s
        self._report_at = now + self._spread * self._report_s
        self._welcomed.set()
        if self._seq == 0:
            self._tell(NodeReady(node=self._node, store=self._store, instrumented=True))
        else:
            for fact in self._kept:
                self._say(fact)

    def _fresh(self) -> Store:
        self._store = Store(self._store.host, (self._store.port + 20_000) % 60_000, True)
        return self._store

    def _tell(self, event: AgentFact) -> None:
        self._seq += 1
        self._kept.append(Fact(seq=self._seq, event=event))
        self._say(self._kept[-1])

    def _say(self, message: Hello | Fact | Report | Kept | EvidenceReply | Stacks) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        data = _encoder.encode(message)
        size = len(data)
        if size < 126:
            head = bytes((0x82, 0x80 | size))
        else:
            short = size < 1 << 16
            head = (b"\x82\xfe" if short else b"\x82\xff") + size.to_bytes(2 if short else 8, "big")
        self._transport.write(head + MASK + data)

    def _report(self, order: Start) -> Report:
        first = order.node_rank * WORKERS
        ages = dict.fromkeys(REACHED, 10.0 + self._step * REPEAT_S)
        workers = tuple(
            WorkerReport(
                rank=first + local, pid=1, progress=Progress(step=self._step, step_ago_s=0.1),
                milestones=ages, phase="step", loss=1.25, grad_norm=0.5, step_time_s=0.4,
                tokens=1_000_000,
            )
            for local in range(WORKERS)
        )  # fmt: skip
        return Report(node=self._node, attempt=order.attempt, workers=workers)


def stacks(number: int, order: Start) -> Stacks:
    """What a node tells whose ranks wait for others: one place, and what each has entered in its
    tensor-parallel, data-parallel and pipeline group."""
    nodes = max(1, order.node_count // STAGES)  # of a stage
    stage, first = order.node_rank // nodes, order.node_rank * WORKERS
    own = ((first, first + WORKERS - 1),)
    frames = [("_bootstrap (threading.py:1002)", *MAIN[: 1 + n]) for n in range(OTHERS)]
    threads = [ThreadStack(name="MainThread", pid=1, frames=MAIN)]
    threads += [ThreadStack(name=f"thread-{n}", pid=1, frames=f) for n, f in enumerate(frames)]
    group = StackGroup(
        ranks=own, threads=tuple(threads), state="sleeping", sleeps_in="futex_do_wait",
        activity=Activity.STILL,
    )  # fmt: skip
    logs = [
        GroupLog(
            name="tp", members=in_runs(range(first, first + WORKERS)), ranks=own, recent=RECENT
        )
    ]
    for rank in range(first, first + WORKERS):
        local, row = rank - first, rank - stage * nodes * WORKERS
        beside = range(stage * nodes * WORKERS + local, (stage + 1) * nodes * WORKERS, WORKERS)
        along = range(row, order.node_count * WORKERS, nodes * WORKERS)
        for name, members in (("dp", beside), ("pp", along)):
            me = ((rank, rank),)
            logs.append(GroupLog(name=name, members=in_runs(members), ranks=me, recent=RECENT))
    return Stacks(number=number, groups=(group,), collectives=tuple(map(unread, logs)))
