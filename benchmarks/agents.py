"""What a controller costs that 12,500 agents talk to, and what it does for them meanwhile.

    .venv/bin/python benchmarks/agents.py [--quick] [--json] [--agents N]

The controller's side is production code in a process of its own: the shell, its host and server,
the controller, the journal with its copies in the memory of agents, and everything imported that
the pod of a controller imports. Only the engine is none. The agents are one process (`crowd.py`)
with as many real connections, each of a node with 8 workers.

Five things are measured, one after the other: what the controller costs once all are members and
train; a look at what all their workers do, as where a job hangs; nodes that fall silent while their
connections stay open, and with each of them how long it takes from the order to stop until the last
node has answered; a storm, in which many connections break and come back at once; and what of it
all was felt by nodes that did nothing wrong.
"""

import argparse
import asyncio
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from crowd import ANSWER_S, TOKEN, WORKERS, be_agents
from holdfast.actions import AskNodes, CollectEvidence, EndJob, Entry, Fence
from holdfast.controller import Controller, Limits, State
from holdfast.drivers.kubernetes import api, config, driver, incluster
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    HangJudged,
    HangSuspected,
    JobSubmitted,
    Judgement,
    NodeLost,
    StopRequested,
)
from holdfast.journal import VERSION, Header, Journal
from holdfast.messages import Leave
from holdfast.shell.clock import Clock
from holdfast.shell.host import Host
from holdfast.shell.replicas import FileLines
from holdfast.shell.server import allow_connections
from holdfast.shell.shell import Settings, Shell
from table import Row, report

TIMEOUT_S = 5.0  # as by default
SPARES = 3  # as many nodes fall silent, one after the other
STORM = 2_000
SETTLE_S = 5.0
LOOK_S = 0.05
HOUR_S = 3_600.0
MIB = 1024 * 1024
PODS_IMPORTS = (api, config, driver, incluster)  # so that memory is that of a controller's pod


def main() -> None:
    args = _arguments()
    agents = 200 if args.quick else args.agents
    row = measure(agents, args.seconds)
    report(
        f"A controller with {agents:,} agents of {WORKERS} workers",
        {"holdfast": row},
        as_json=args.json,
        note=(
            "cpu_share: of one core. look_s: from the order to look at all workers until that is "
            f"judged;\nagents take {ANSWER_S:g} s of it. lost_s: from the last sign of life, at "
            f"{TIMEOUT_S:g} s it is due.\nstop_s: from the order until all have answered. "
            "wrongly_lost: nodes that were there.\nsilence_s: the longest of any well node during "
            f"the storm; signs of life come every {TIMEOUT_S / 4:g} s.\nstall_s: the longest time "
            "for which nothing was heard or done."
        ),
    )


def measure(agents: int, seconds: float) -> Row:
    """All figures of one run."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    heard, told = spawn.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        words = (theirs, told, agents, seconds, Path(folder) / "journal.jsonl")
        controller = spawn.Process(target=control, args=words, daemon=True)
        controller.start()
        theirs.close()
        crowd = spawn.Process(target=be_agents, args=(heard, ours.recv(), agents), daemon=True)
        crowd.start()
        try:
            found: dict[str, float] = ours.recv()
        finally:
            for process in (crowd, controller):
                process.kill()
                process.join()
    return {"n": agents, **found}


# ── the controller's side ─────────────────────────────────────────────────────────────────────


def control(results: Connection, crowd: Connection, agents: int, seconds: float, at: Path) -> None:
    """Drive a job of so many nodes and say what it took."""
    allow_connections()
    results.send(asyncio.run(_control(results, crowd, agents, seconds, at)))


async def _control(
    results: Connection, crowd: Connection, agents: int, seconds: float, at: Path
) -> dict[str, float]:
    return await Site(results, crowd, agents, at).run(seconds)


class Site:
    """A controller and what is seen of it."""

    def __init__(self, results: Connection, crowd: Connection, agents: int, at: Path) -> None:
        self._results, self._crowd, self._agents = results, crowd, agents
        limits = Limits(
            node_count=agents - SPARES, spare_count=SPARES, max_restarts=1_000, node_wait_s=3_600.0
        )
        header = Header(journal=VERSION, holdfast="benchmark", job={}, created_at=time.time())
        book = Journal.create(at, header)
        clock = Clock()
        self._controller = Controller(limits)
        self._shell = Shell(
            self._controller, book, NoEngine(), Settings(TIMEOUT_S, 15.0, 1), clock.now,
            FileLines(at),
        )  # fmt: skip
        self._shell.decisions.observe = self._seen
        self._host = Host(self._shell, clock, TOKEN, TIMEOUT_S)
        self._entries: list[tuple[float, AnyEvent]] = []
        self._process = psutil.Process()
        self._stall_s = 0.0

    async def run(self, seconds: float) -> dict[str, float]:
        """From the first connection to the end of the job."""
        base = self._process.memory_info().rss
        self._results.send(await self._host.server.listen("127.0.0.1"))
        self._shell.begin(JobSubmitted())
        running = asyncio.create_task(self._host.run({}, print))
        watching = asyncio.create_task(self._watch_for_stalls())
        joined = await self._join()
        found = {"base_mib": round(base / MIB, 1), **joined, **await self._steady(seconds)}
        found |= await self._look()
        found |= await self._silence()
        found |= await self._storm()
        self._shell.put(StopRequested(by="benchmark"))
        await running
        watching.cancel()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {**found, "peak_mib": round(peak / MIB, 1)}

    async def _join(self) -> dict[str, float]:
        began, used = time.perf_counter(), self._cpu_s()
        await self._all_train()
        took, used = time.perf_counter() - began, self._cpu_s() - used
        return {"join_s": round(took, 2), "join_cpu_s": round(used, 2)}

    async def _steady(self, seconds: float) -> dict[str, float]:
        await asyncio.sleep(SETTLE_S)
        self._stall_s = 0.0
        began, before = time.perf_counter(), self._cpu_s()
        await asyncio.sleep(seconds)
        used, took = self._cpu_s() - before, time.perf_counter() - began
        rss = self._process.memory_info().rss
        return {
            "rss_mib": round(rss / MIB, 1),
            "cpu_share": round(used / took, 3),
            "steady_stall_s": round(self._stall_s, 3),
        }

    async def _look(self) -> dict[str, float]:
        """All ranks wait at one place, and for no longer than a link may take to come back."""
        state = self._controller.state
        suspicion = HangSuspected(
            attempt=state.attempt, ago_s=-HOUR_S, budget_s=2.0, step=1, step_s=0.4, trained=True,
            ranks=(),
        )  # fmt: skip
        order = CollectEvidence(suspicion=suspicion, reason="benchmark")
        self._entries.clear()
        self._stall_s = 0.0
        before, began = self._cpu_s(), time.perf_counter()
        connected = self._shell.nodes.connected
        self._shell.hangs.collect(order, connected, self._host.server.clock())
        at, judged = await self._heard(HangJudged)
        assert isinstance(judged, HangJudged) and judged.judgement is Judgement.SLOW, judged
        return {
            "look_s": round(at - began, 2),
            "look_cpu_s": round(self._cpu_s() - before, 2),
            "look_stall_s": round(self._stall_s, 3),
        }

    async def _silence(self) -> dict[str, float]:
        lost_s, stop_s = [], []
        for _ in range(SPARES):
            self._entries.clear()
            self._crowd.send(("silence", self._some_member()))
            lost_at, lost = await self._heard(NodeLost)
            assert isinstance(lost, NodeLost)
            stopped_at, _ = await self._heard(AttemptStopped)
            lost_s.append(lost.ago_s)
            stop_s.append(stopped_at - lost_at)
            await self._all_train()
        return {
            "lost_s": round(max(lost_s), 2),
            "stop_s": round(sorted(stop_s)[len(stop_s) // 2], 3),
            "stop_worst_s": round(max(stop_s), 3),
        }

    def _some_member(self) -> int:
        """The number of an agent that trains, which a spare may do by now."""
        members = list(self._controller.state.ranks.values())
        return int(members[len(members) // 2].removeprefix("node-"))

    async def _storm(self) -> dict[str, float]:
        count = min(STORM, self._agents // 2)
        await asyncio.sleep(TIMEOUT_S)
        self._entries.clear()
        self._stall_s = silence_s = 0.0
        there = len(self._shell.nodes.connected)
        old = frozenset(self._host.server.connections)
        began, used = time.perf_counter(), self._cpu_s()
        self._crowd.send(("storm", count))
        while (
            len(old & self._host.server.connections) > len(old) - count
            or len(self._shell.nodes.connected) < there
        ):
            silence_s = max(silence_s, self._longest_silence_s())
            await asyncio.sleep(LOOK_S)
        back, used = time.perf_counter() - began, self._cpu_s() - used
        await asyncio.sleep(TIMEOUT_S)
        return {
            "storm": count,
            "storm_back_s": round(back, 2),
            "storm_cpu_s": round(used, 2),
            "silence_s": round(silence_s, 2),
            "stall_s": round(self._stall_s, 3),
            "wrongly_lost": sum(isinstance(event, NodeLost) for _, event in self._entries),
        }

    def _longest_silence_s(self) -> float:
        now = self._host.server.clock()
        connected = self._shell.nodes.connected
        return max(
            (now - c.heard_at for c in self._host.server.connections if c.node in connected),
            default=0.0,
        )

    async def _all_train(self) -> None:
        """Until every rank has reported in the newest attempt."""
        members = self._agents - SPARES
        while len(self._shell.nodes.bridge.progress.newest()) < members * WORKERS:
            await asyncio.sleep(LOOK_S)

    async def _heard(self, kind: type[AnyEvent]) -> tuple[float, AnyEvent]:
        while True:
            for at, event in self._entries:
                if isinstance(event, kind):
                    return at, event
            await asyncio.sleep(LOOK_S)

    async def _watch_for_stalls(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(LOOK_S)
            self._stall_s = max(self._stall_s, time.perf_counter() - began - LOOK_S)

    def _seen(self, entry: Entry, _state: State) -> None:
        self._entries.append((time.perf_counter(), entry.event))

    def _cpu_s(self) -> float:
        return sum(self._process.cpu_times()[:2])


class NoEngine:
    """Nodes are there, or are not."""

    def make(self, order: AskNodes) -> None:
        """The crowd comes by itself."""

    def remove(self, _order: Fence, done: Callable[[Sequence[AnyEvent]], None]) -> None:
        """It only listens to its own silence."""
        done(())

    def leave(self, order: EndJob) -> Leave:
        """The end."""
        return Leave(reason=order.reason)

    def near(self, _node: str) -> bool:
        """All are far."""
        return False

    def connections_changed(self) -> None:
        """Nobody waits for that."""

    def disk_full(self, full: bool) -> None:
        """It is not."""

    def status(self) -> bytes:
        """Nobody asks."""
        return b"{}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="200 agents")
    parser.add_argument("--json", action="store_true", help="print JSON too")
    parser.add_argument("--agents", type=int, default=12_500)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to measure")
    return parser.parse_args()


if __name__ == "__main__":
    main()
