"""What a controller costs that 2,000 agents talk to: memory and processor.

    .venv/bin/python benchmarks/agents.py [--quick] [--json] [--agents N]

The controller's side is production code in a process of its own: connections, bridge, controller
and journal, with everything imported that the pod of a controller imports. The agents are one
process with as many real connections, each of a node with 8 workers that reports as often as an
agent does. Measured once all are members and one attempt has been started.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import resource
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import psutil
from websockets.asyncio.client import ClientConnection, connect

from holdfast.agent.progress_watch import REPORT_EVERY_S
from holdfast.drivers.base import drive
from holdfast.drivers.kubernetes import api, config, driver, incluster
from holdfast.drivers.switchboard import Switchboard
from holdfast.events import JobSubmitted, NodeReady, Progress, Store
from holdfast.journal import VERSION, Header, Journal
from holdfast.messages import (
    PROTOCOL,
    Ack,
    Fact,
    Hello,
    Leave,
    Report,
    Start,
    Stop,
    Welcome,
    WorkerReport,
)
from table import Row, report

TOKEN = "benchmark"
WORKERS = 8
SETTLE_S = 5.0
MIB = 1024 * 1024
PODS_IMPORTS = (api, config, driver, incluster)  # so that memory is that of a controller's pod

_orders = msgspec.msgpack.Decoder(Welcome | Ack | Start | Stop | Leave)


def main() -> None:
    args = _arguments()
    agents = 200 if args.quick else args.agents
    row = measure(agents, args.seconds)
    report(
        f"A controller with {agents:,} agents of {WORKERS} workers",
        {"holdfast": row},
        as_json=args.json,
        note=f"cpu_share: of one core, while each agent reports every {REPORT_EVERY_S:g} s.",
    )


def measure(agents: int, seconds: float) -> Row:
    """Memory and processor of a controller once every agent has its rank."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        journal = Path(folder) / "journal.jsonl"
        words = (theirs, agents, seconds, journal)
        controller = spawn.Process(target=control, args=words, daemon=True)
        controller.start()
        crowd = spawn.Process(target=be_agents, args=(ours.recv(), agents), daemon=True)
        crowd.start()
        try:
            found: dict[str, float] = ours.recv()
        finally:
            for process in (crowd, controller):
                process.kill()
                process.join()
    return {"n": agents, **found}


# ── the controller's side ─────────────────────────────────────────────────────────────────────


def control(told: Connection, agents: int, seconds: float, journal: Path) -> None:
    """Drive a job of so many nodes and say what it took."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4 * agents + 100,) * 2)
    asyncio.run(_control(told, agents, seconds, journal))


async def _control(told: Connection, agents: int, seconds: float, path: Path) -> None:
    from holdfast.controller import Controller, Limits

    controller = Controller(Limits(node_count=agents))
    header = Header(journal=VERSION, holdfast="benchmark", job={}, created_at=time.time())
    book = Journal.create(path, header)
    board = Switchboard(controller.state, 30.0, TOKEN, lambda: b"{}")
    told.send(await board.links.listen("127.0.0.1"))
    board.put(JobSubmitted())
    tasks = [
        asyncio.create_task(board.tick()),
        asyncio.create_task(
            drive(controller, book, Only(board), board.queue, board.clock, lambda *_: None)
        ),
    ]
    process = psutil.Process()
    base = process.memory_info().rss
    while len(board.bridge.progress.newest()) < agents * WORKERS:
        await asyncio.sleep(0.2)
    await asyncio.sleep(SETTLE_S)
    before, began = sum(process.cpu_times()[:2]), time.perf_counter()
    await asyncio.sleep(seconds)
    used, took = sum(process.cpu_times()[:2]) - before, time.perf_counter() - began
    told.send(
        {
            "base_mib": round(base / MIB, 1),
            "rss_mib": round(process.memory_info().rss / MIB, 1),
            "cpu_share": round(used / took, 3),
        }
    )
    for task in tasks:
        task.cancel()


class Only:
    """A driver without an engine: orders only reach agents."""

    def __init__(self, board: Switchboard) -> None:
        self._board = board
        self.settled = board.settled

    async def perform(self, action: object) -> None:
        """Send what an order means."""
        self._board.put(*await self._board.send(action))  # type: ignore[arg-type]

    def disk_full(self, full: bool) -> None:
        """It is not."""


# ── the agents' side ──────────────────────────────────────────────────────────────────────────


def be_agents(port: int, agents: int) -> None:
    """All agents in one process."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4 * agents + 100,) * 2)
    asyncio.run(_be_agents(port, agents))


async def _be_agents(port: int, agents: int) -> None:
    gate = asyncio.Semaphore(50)
    await asyncio.gather(*(_agent(port, number, gate) for number in range(agents)))


async def _agent(port: int, number: int, gate: asyncio.Semaphore) -> None:
    node = f"node-{number:05}"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with contextlib.AsyncExitStack() as stack:
        async with gate:
            url = f"ws://127.0.0.1:{port}/"
            socket = await stack.enter_async_context(
                connect(url, additional_headers=headers, compression=None, open_timeout=60)
            )
            await _register(socket, node, number)
        while not isinstance(order := _orders.decode(await socket.recv(decode=False)), Start):
            pass
        hearing = asyncio.create_task(_hear(socket))
        step = 0
        while not hearing.done():
            step += 1
            await socket.send(msgspec.msgpack.encode(_report(node, order, step)))
            await asyncio.sleep(REPORT_EVERY_S)


async def _hear(socket: ClientConnection) -> None:
    async for _ in socket:
        pass


async def _register(socket: ClientConnection, node: str, number: int) -> None:
    hello = Hello(
        protocol=PROTOCOL, node=node, name=node, address="127.0.0.1", workers=WORKERS,
        pid=1, attempt=0, running=False,
    )  # fmt: skip
    await socket.send(msgspec.msgpack.encode(hello))
    ready = NodeReady(node=node, store=Store("127.0.0.1", number + 1, True), instrumented=True)
    await socket.send(msgspec.msgpack.encode(Fact(seq=1, event=ready)))


def _report(node: str, order: Start, step: int) -> Report:
    first = order.node_rank * WORKERS
    workers = tuple(
        WorkerReport(rank=first + local, pid=1, progress=Progress(step=step), milestones={})
        for local in range(WORKERS)
    )
    return Report(node=node, attempt=order.attempt, workers=workers)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="200 agents")
    parser.add_argument("--json", action="store_true", help="print JSON too")
    parser.add_argument("--agents", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to measure")
    return parser.parse_args()


if __name__ == "__main__":
    main()
