"""The local driver: a job on this machine, each node an agent process with a session of its own.

The process that calls `run_job` is the controller. When it is killed, agents and workers train on;
`resume_job` replays the journal, finds the agents that live, and goes on. A lost node is fenced by
killing every process that carries its id in the environment, so that nothing of it can act later.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import assert_never

import msgspec

from holdfast import journal
from holdfast.actions import (
    AnyAction,
    AskNodes,
    AssignRank,
    Diagnose,
    Dismiss,
    EndJob,
    Entry,
    Fence,
    Outcome,
    StartAttempt,
    StopAttempt,
)
from holdfast.controller import Controller, Limits, NodeState, Phase, State
from holdfast.detection.liveness import Liveness
from holdfast.detection.progress import ProgressReducer
from holdfast.detection.stopping import MARGIN_S, StopTally
from holdfast.diagnosis.verdict import weigh
from holdfast.drivers import records, report
from holdfast.drivers.base import Clock, Observer, Queue, Receipt, drive
from holdfast.drivers.links import Links, wait_closed
from holdfast.drivers.nodes import (
    AgentProcess,
    alive,
    kill_nodes,
    known_nodes,
    number_of,
    start_agent,
)
from holdfast.errors import Error
from holdfast.events import (
    AnyEvent,
    ControllerResumed,
    Diagnosed,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    NodeLostReason,
    StopRequested,
    WorkerExited,
)
from holdfast.messages import (
    AskStatus,
    Done,
    Fact,
    Hello,
    Leave,
    Report,
    Start,
    StatusReply,
    Stop,
    StopJob,
    ToAgent,
    ToClient,
    WorkersStarted,
    WorkersStopped,
)
from holdfast.spec import Job

HOST = "127.0.0.1"
TICK_S = 0.25
REGISTER_S = 60.0  # for a new agent to connect: its interpreter may start on a busy machine
RECONNECT_S = 10.0  # for an agent to find a controller that came back
LEAVE_S = 10.0  # for agents to end by themselves when the job is over


def run_job(job: Job, folder: Path, *, on_event: Observer) -> Outcome:
    """Run a job whose folder `records.create` has made, to its end, in the foreground."""
    with records.locked(folder):
        controller, book = journal.replay(folder / "journal.jsonl", Limits.of(job))
        return _run(job, folder, controller, book, JobSubmitted(), on_event)


def resume_job(folder: Path, *, on_event: Observer) -> Outcome:
    """Go on with a job whose controller died.

    Raises `Error` job-running if it lives, job-ended if there is nothing to go on with.
    """
    job = records.load_job(folder)
    with records.locked(folder):
        controller, book = journal.replay(folder / "journal.jsonl", Limits.of(job))
        living = tuple(node.node for node in known_nodes(folder) if alive(node))
        if controller.state.ended and not living:
            book.close()
            raise _ended(folder.name, controller.state)
        event = ControllerResumed(existing=living) if book.seq else JobSubmitted()
        return _run(job, folder, controller, book, event, on_event)


def _ended(name: str, state: State) -> Error:
    return Error(
        "job-ended",
        f"job {name!r} has already ended: {state.outcome}",
        why=state.why,
        help=f"holdfast why {name}   (to run it again: holdfast run, with a new --name)",
    )


def _run(
    job: Job,
    folder: Path,
    controller: Controller,
    book: journal.Journal,
    first: AnyEvent,
    on_event: Observer,
) -> Outcome:
    driver = LocalDriver(job, folder, controller)
    try:
        return asyncio.run(driver.run(book, first, on_event))
    finally:
        book.close()


class LocalDriver:
    """Turns orders into processes and messages, and what happens to them into facts."""

    def __init__(self, job: Job, folder: Path, controller: Controller) -> None:
        self._job = job
        self._folder = folder
        self._state = controller.state
        self._controller = controller
        self._clock = Clock()
        self._queue: Queue = asyncio.Queue()
        self._links = Links(self, records.read_secret(folder))
        self._agents: dict[str, AgentProcess] = {}
        self._reducer = ProgressReducer()
        self._liveness = Liveness()
        self._tally = StopTally()
        self._expected: dict[str, float] = {}  # agents that are to connect, and until when
        self._stops_asked = 0
        self._full = False

    async def run(self, book: journal.Journal, first: AnyEvent, observe: Observer) -> Outcome:
        """From the first fact to the last agent's end."""
        self._install_signals()
        port = await self._links.listen(HOST)
        self._publish(port)
        self._adopt()
        self._put(first)
        tick = asyncio.create_task(self._watch_heartbeats())
        try:
            return await drive(self._controller, book, self, self._queue, self._clock, observe)
        finally:
            await wait_closed(tick)
            await self._links.close()
            (self._folder / "controller.json").unlink(missing_ok=True)

    def _publish(self, port: int) -> None:
        address = records.Address(host=HOST, port=port, pid=os.getpid())
        text = msgspec.json.encode(address).decode()
        records.write_private(self._folder / "controller.json", text)

    def _adopt(self) -> None:
        """Take over the agents that a former controller of this job started."""
        self._reducer.begin(self._state.attempt, self._state.world_size, self._clock.now())
        for node in known_nodes(self._folder):
            if alive(node):
                self._add(AgentProcess(node.node, node.name, node.pid, None), RECONNECT_S)

    # ── orders ──

    async def perform(self, action: AnyAction) -> None:
        """Carry out one order."""
        match action:
            case AskNodes():
                self._start_agents(action.count)
            case AssignRank():
                pass  # told with the attempt
            case StartAttempt():
                await self._start_attempt(action)
            case StopAttempt():
                await self._stop_attempt(action)
            case Diagnose():
                self._put(_diagnose(action))
            case Fence():
                await self._fence(action.node)
            case Dismiss():
                await self._links.send(action.node, Leave(reason=action.reason))
            case EndJob():
                await self._end(action.reason)
            case _:
                assert_never(action)

    async def settled(self, receipts: Sequence[Receipt]) -> None:
        """Tell agents which of their facts are safe."""
        newest = {receipt.node: receipt.seq for receipt in receipts}
        for node, seq in newest.items():
            await self._links.acknowledge(node, seq)

    def disk_full(self, full: bool) -> None:
        """Say so once; the job trains on, but nothing new is decided."""
        if full != self._full:
            self._full = full
            what = "is full: no decision can be written" if full else "has room again"
            print(f"holdfast: the disk under {self._folder} {what}", file=sys.stderr, flush=True)

    def _start_agents(self, count: int) -> None:
        taken = [number_of(p.name) for p in (self._folder / "nodes").glob("node-*")]
        first = max(taken, default=-1) + 1
        for number in range(first, first + count):
            try:
                self._add(start_agent(self._folder, f"node-{number}"), REGISTER_S)
            except OSError as error:
                detail = f"cannot start an agent: {error.strerror}"
                self._lost(f"node-{number}", NodeLostReason.PROCESS, detail)

    def _add(self, agent: AgentProcess, connects_within_s: float) -> None:
        self._agents[agent.node] = agent
        self._expected[agent.node] = self._clock.now() + connects_within_s
        agent.watch(self._agent_ended)

    async def _start_attempt(self, order: StartAttempt) -> None:
        self._reducer.begin(order.attempt, self._state.world_size, self._clock.now())
        for node_rank, node in sorted(self._state.ranks.items()):
            await self._links.send(node, _start_message(order, node_rank))

    async def _stop_attempt(self, order: StopAttempt) -> None:
        ranks = self._state.ranks
        deadline = self._clock.now() + order.grace_s + MARGIN_S
        self._put(self._tally.begin(order.attempt, ranks.values(), ranks.get(0), deadline))
        message = Stop(attempt=order.attempt, grace_s=order.grace_s)
        for node in sorted(self._tally.pending):
            await self._links.send(node, message)

    async def _fence(self, node: str) -> None:
        await self._links.send(node, Leave(reason="this node was given up"))
        await asyncio.to_thread(kill_nodes, {node})
        self._liveness.forget(node)
        self._expected.pop(node, None)
        self._agents.pop(node, None)
        self._put(self._tally.lost(node))

    async def _end(self, reason: str) -> None:
        for node in self._agents:
            await self._links.send(node, Leave(reason=reason))
        endings = [agent.ended.wait() for agent in self._agents.values()]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*endings), LEAVE_S)
        await asyncio.to_thread(kill_nodes, set(self._agents) | set(self._state.lost))

    # ── facts ──

    def _put(self, event: AnyEvent | None, receipt: Receipt | None = None) -> None:
        self._queue.put_nowait((event, receipt))

    def _agent_ended(self, agent: AgentProcess, how: str) -> None:
        if agent.node in self._agents:
            self._lost(agent.node, NodeLostReason.PROCESS, how)

    def _lost(self, node: str, reason: NodeLostReason, detail: str) -> None:
        """Facts that agents sent before they died are already in the queue, hence go first."""
        self._flush_progress()
        self._put(NodeLost(node=node, reason=reason, detail=detail))

    def _flush_progress(self) -> None:
        self._put(self._reducer.flush(self._clock.now()))

    def hello(self, hello: Hello) -> bool:
        """An agent (re)connected."""
        if hello.node in self._state.lost:
            return False
        self._liveness.heard(hello.node, self._clock.now())
        self._expected.pop(hello.node, None)
        if hello.node not in self._state.nodes:
            self._put(
                NodeJoined(
                    node=hello.node, name=hello.name, address=hello.address, workers=hello.workers
                )
            )
        return True

    def orders_for(self, node: str) -> list[ToAgent]:
        """What a node that just (re)connected has to know."""
        member = self._state.nodes.get(node)
        if member is None or member.state is not NodeState.MEMBER or member.node_rank is None:
            return []
        match self._state.phase:
            case Phase.STARTING | Phase.RUNNING if self._state.start is not None:
                return [_start_message(self._state.start, member.node_rank)]
            case Phase.RECOVERING | Phase.CLOSING if node in self._tally.pending:
                grace_s = self._state.limits.restart_grace_s
                return [Stop(attempt=self._state.attempt, grace_s=grace_s)]
            case _:
                return []

    def fact(self, node: str, fact: Fact) -> None:
        """A fact not heard before."""
        self._liveness.heard(node, self._clock.now())
        receipt = Receipt(node, fact.seq)
        match fact.event:
            case WorkersStopped():
                self._put(self._tally.stopped(fact.event), receipt)
            case WorkersStarted():
                self._put(None, receipt)
            case WorkerExited():
                self._flush_progress()
                self._put(fact.event, receipt)
            case _:
                self._put(fact.event, receipt)

    def report(self, report: Report) -> None:
        """Telemetry: a sign of life, and now and then a fact."""
        now = self._clock.now()
        self._liveness.heard(report.node, now)
        for event in self._reducer.observe(report, now):
            self._put(event)

    def client(self, message: StopJob | AskStatus) -> ToClient:
        """A request of the command line."""
        match message:
            case StopJob():
                self._put(StopRequested(by=message.by, now=message.now))
                return Done()
            case AskStatus():
                return StatusReply(status=self._status())
            case _:
                assert_never(message)

    def _status(self) -> bytes:
        now = self._clock.now()
        status = report.job_status(
            self._job.name,
            self._state,
            records.ledger_of(self._folder, None if self._state.ended else now),
            controller="alive",
            telemetry=self._reducer.newest(),
        )
        return msgspec.json.encode(status)

    async def _watch_heartbeats(self) -> None:
        """Find silent nodes. If we ourselves were stopped for a while, nobody is to blame."""
        timeout_s = self._job.recovery.heartbeat_timeout_s
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now, late_s = self._clock.now(), time.monotonic() - last - TICK_S
            last = time.monotonic()
            if late_s > timeout_s / 4:
                self._forgive(now, late_s)
            for node, silent_s in self._liveness.silent(now, timeout_s):
                self._liveness.forget(node)
                self._silent(node, silent_s, f"no heartbeat for {silent_s:.1f} s")
            for node in [n for n, until in self._expected.items() if now > until]:
                del self._expected[node]
                self._silent(node, 0.0, "its agent runs but does not connect")
            for node in self._tally.late(now):
                self._silent(node, 0.0, "it did not stop its workers in time")

    def _forgive(self, now: float, late_s: float) -> None:
        """What was sent while we did not run is still to be read: start to wait anew."""
        for node, until in self._expected.items():
            self._expected[node] = until + late_s
        for node in self._agents.keys() - self._expected.keys():
            self._liveness.heard(node, now)

    def _silent(self, node: str, silent_s: float, detail: str) -> None:
        self._flush_progress()
        reason = NodeLostReason.SILENT
        self._put(NodeLost(node=node, reason=reason, ago_s=silent_s, detail=detail))

    # ── signals ──

    def _install_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._asked_to_stop, "Ctrl-C")
        loop.add_signal_handler(signal.SIGTERM, self._asked_to_stop, "SIGTERM")
        loop.add_signal_handler(signal.SIGHUP, self._terminal_gone)

    def _asked_to_stop(self, by: str) -> None:
        """First cleanly, then at once."""
        self._stops_asked += 1
        self._put(StopRequested(by=by, now=self._stops_asked > 1))

    def _terminal_gone(self) -> None:
        """A closed terminal does not stop a job: go on, with output to a file."""
        fd = os.open(self._folder / "controller.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)


def _start_message(order: StartAttempt, node_rank: int) -> Start:
    return Start(
        attempt=order.attempt,
        node_rank=node_rank,
        node_count=order.node_count,
        workers_per_node=order.workers_per_node,
        store=order.store,
        redo_until=order.redo_until,
        restarts=order.restarts,
    )


def _diagnose(order: Diagnose) -> Diagnosed:
    """Weigh the exits; without any (a node was lost) there is nothing to blame on a worker."""
    verdict = weigh(order.exits)
    return Diagnosed(
        attempt=order.attempt,
        cause=verdict.cause,
        summary=verdict.summary,
        confidence=verdict.confidence,
        rank=verdict.chosen.rank if verdict.chosen else None,
        user_error=verdict.user_error,
        signature=verdict.signature,
        also_failed=verdict.also_failed,
    )


def quiet(_entry: Entry, _state: State) -> None:
    """An observer that shows nothing."""
