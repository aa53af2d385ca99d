"""The local driver: a job whose controller is here, and whose folder its nodes see.

Its nodes are processes of this machine, or of a Ray cluster's (`engines.py`).

The process that calls `run_job` is the controller. When it is killed, agents and workers train on;
`resume_job` replays the journal, finds the agents that live, and goes on. A lost node is fenced by
killing every process that carries its id in the environment, so that nothing of it can act later.
"""

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast import journal
from holdfast.actions import AskNodes, EndJob, Entry, Fence, Outcome
from holdfast.controller import Controller, Limits, State
from holdfast.controller.nodes import missing
from holdfast.controller.phases import Phase
from holdfast.counts import count
from holdfast.drivers import engines, records, started_code
from holdfast.drivers.engines import NodeEngine, StartedAgent
from holdfast.drivers.fencing import Fenced, fence_job, require_gone, say_stuck
from holdfast.drivers.job_books import JobBooks
from holdfast.drivers.job_history import JobHistory
from holdfast.drivers.job_metrics import JobMetrics, MetricsServer
from holdfast.drivers.machine_book import MachineBook
from holdfast.drivers.nodes import known_nodes, new_names
from holdfast.drivers.notifier import Notifier
from holdfast.drivers.otlp.telemetry import Telemetry
from holdfast.drivers.talk import say, talk_to_file
from holdfast.errors import Error
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    Beginning,
    ControllerResumed,
    JobSubmitted,
    NodeLost,
    NodeLostReason,
    StopRequested,
)
from holdfast.messages import PROTOCOL, Leave
from holdfast.replay import replay
from holdfast.shell.clock import Clock
from holdfast.shell.host import Host
from holdfast.shell.shell import Settings, Shell
from holdfast.spec import Job
from holdfast.versions import FIRST

REGISTER_S = 60.0  # for a new agent to connect: its interpreter may start on a busy machine
RECONNECT_S = 10.0  # for an agent to find a controller that came back
SPARES_AFTER_S = 10.0  # a job that takes longer to train again goes on beside its next spare
LOOK_S = 0.05
LEAVE_S = 10.0  # for agents to end by themselves when the job is over

Observer = Callable[[Entry, State], None]


def run_job(job: Job, folder: Path, lock: int | None = None, *, on_event: Observer) -> Outcome:
    """Run a job whose folder `records.create` has made, to its end, in the foreground.

    `lock` is the job's, held. What still runs of a job whose folder lay here before is ended first.
    """
    with records.locked(folder, lock), engines.opened(folder) as engine:
        former = engine.clear()
        say_stuck(former)
        if former.killed:
            killed = count(former.killed, "process", "processes")
            say(f"killed {killed} of an earlier {job.name}: its folder was gone")
        controller, book = replay(folder / "journal.jsonl", Limits.of(job))
        return _run(job, folder, (controller, book), engine, JobSubmitted(), on_event)


def resume_job(folder: Path, *, on_event: Observer) -> Outcome:
    """Go on with a job whose controller died, or that was stopped and has durable checkpoints.

    Raises `Error` job-running if it lives, job-ended if there is nothing to go on with,
    agent-version if its nodes cannot be taken over.
    """
    job = records.load_job(folder)
    with records.locked(folder), engines.opened(folder) as engine:
        records.require_same_job(folder, job)
        _require_same_protocol(folder, {agent.node for agent in engine.living()})
        controller, book = replay(folder / "journal.jsonl", Limits.of(job))
        known = frozenset(node.node for node in known_nodes(folder))
        say_stuck(engine.clear(known))  # its agent.json is lost: nobody could adopt it
        existing = tuple(agent.node for agent in engine.living())
        version = controller.state.version
        if controller.state.ended and not existing:
            book.close()
            if not records.may_begin_again(job, controller.state):
                raise _ended(folder.name, controller.state)
            records.begin_again(job, folder, time.time())
            controller, book = replay(folder / "journal.jsonl", Limits.of(job))
        begins = JobSubmitted(version=version)
        goes_on = ControllerResumed(existing=existing, obeyed=book.obeyed, diverged=book.diverged)
        event = goes_on if book.seq else begins
        return _run(job, folder, (controller, book), engine, event, on_event)


def require_unended(folder: Path) -> None:
    """Raise `Error` job-ended or agent-version where `resume_job` would, for a caller who does
    not wait for it."""
    job = records.load_job(folder)
    records.require_same_job(folder, job)
    state = records.state_of(folder)
    with engines.opened(folder) as engine:
        living = {agent.node for agent in engine.living()}
    _require_same_protocol(folder, living)
    if state.ended and not living and not records.may_begin_again(job, state):
        raise _ended(folder.name, state)


def _require_same_protocol(folder: Path, living: AbstractSet[str]) -> None:
    """An agent ends when its controller speaks another protocol, and its workers and all they have
    in memory with it. So whoever would take it over looks first."""
    said = {node.protocol for node in known_nodes(folder) if node.node in living} - {0, PROTOCOL}
    if said:
        other = ", ".join(map(str, sorted(said)))
        raise Error(
            "agent-version",
            f"this version of Holdfast cannot take over the nodes of job {folder.name!r}",
            why=f"their agents speak protocol {other}, this version speaks {PROTOCOL}",
            help=f"holdfast stop {folder.name}   (or resume it with the version that started it)",
        )


class Abandoned(NamedTuple):
    """What ending a job without its controller came to."""

    killed: int  # processes
    unreached: str = ""  # why nodes that may still run were not stopped


def stop_abandoned(folder: Path, by: str, *, force: bool = False) -> Abandoned:
    """End a job whose controller has died: kill what it left running, then record that the job was
    stopped. The job's lock is held meanwhile, so that no new controller adopts nodes that are about
    to be killed, and none loses its own.

    Where its Ray cluster cannot be reached, `force` ends the job in its record only: its nodes are
    recorded as not reached. Raises `Error` job-running if a controller has it, process-stuck, and
    ray-unreachable unless the job has ended or `force` is given; and `PermissionError` if the job
    is another user's. A record that cannot be written is told and stays as it is.
    """
    with contextlib.ExitStack() as held:
        unwritable = _locked_if_possible(folder, held)
        unreached, nodes = "", tuple[str, ...]()
        try:
            engine = held.enter_context(engines.opened(folder))
        except Error as error:
            if records.went_before_its_cluster(folder, error):
                say(f"{error.what}: whether anything of {folder.name} is left there is not known")
                return Abandoned(0)
            if not (force and error.slug in records.CLUSTER_GONE):
                raise
            unreached, fenced = f"{error.what} ({error.why})", fence_job(folder)
        else:
            nodes, fenced = tuple(agent.node for agent in engine.living()), engine.clear()
        remedy = f"holdfast stop {folder.name}   (once the process has exited)"
        require_gone(fenced, f"some processes of job {folder.name!r} are still running", remedy)
        try:
            if unwritable is not None:
                raise unwritable
            _record_abandoned(folder, nodes, by, unreached)
        except (Error, OSError) as error:
            why = f"{error.what}: {error.why}" if isinstance(error, Error) else str(error)
            say(f"the record of {folder.name} does not say that it was stopped: {why}")
    return Abandoned(fenced.killed, unreached)


def _locked_if_possible(folder: Path, held: contextlib.ExitStack) -> OSError | None:
    """Where the system refuses the lock, no controller can get it either, but for one of the user
    whose record it is: of that user's processes we see none. Raises `Error` job-running and
    `PermissionError`."""
    try:
        held.enter_context(records.locked(folder))
    except OSError as error:
        if isinstance(error, PermissionError) and folder.stat().st_uid != os.geteuid():
            raise
        return error
    return None


def _record_abandoned(folder: Path, nodes: tuple[str, ...], by: str, unreached: str) -> None:
    job = records.load_job(folder)
    if records.state_of(folder).ended:
        return
    records.require_same_job(folder, job)
    controller, book = replay(folder / records.JOURNAL, Limits.of(job))
    with contextlib.closing(book):
        _record_stop(controller, book, nodes, by, unreached)


def _record_stop(
    controller: Controller,
    book: journal.Journal,
    nodes: tuple[str, ...],
    by: str,
    unreached: str,
) -> None:
    """Orders are not carried out: whoever could hear them has been killed, or is not reached."""
    state = controller.state
    resumed = ControllerResumed(
        existing=nodes, term=book.seq + 1, obeyed=book.obeyed, diverged=book.diverged
    )

    def hear(event: AnyEvent) -> None:
        if not state.ended:
            at = max(time.time(), state.now)
            actions = tuple(controller.handle(event, at))
            book.append(Entry(book.seq + 1, at, event, actions, controller.choices))

    if unreached:
        by = f"{by} ({unreached}; whether its nodes still run is not known)"
        detail = f"not reached: {unreached}; whether it still runs is not known"
        for node in sorted(state.nodes):
            hear(NodeLost(node=node, reason=NodeLostReason.SILENT, detail=detail))
    hear(resumed if book.seq else JobSubmitted())
    hear(StopRequested(by=by, now=True))
    hear(AttemptStopped(attempt=state.attempt, store=None))
    book.sync()
    book.save(state)


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
    decides: tuple[Controller, journal.Journal],
    engine: NodeEngine,
    first: Beginning,
    on_event: Observer,
) -> Outcome:
    begins = isinstance(first, JobSubmitted) and first.version.number == FIRST.number

    async def drive() -> Outcome:
        driver = LocalDriver(job, folder, *decides, engine)
        if not begins:
            return await driver.run(first, on_event)
        started_code.begin(folder)
        keeping = asyncio.create_task(asyncio.to_thread(started_code.keep, job, folder))
        try:
            return await driver.run(first, on_event)
        finally:
            await keeping

    try:
        return asyncio.run(drive())
    finally:
        decides[1].close()


def withdraw_address(folder: Path) -> None:
    """Where that fails, the lock still says that there is no controller: how the job has ended is
    what is to be told. That of another controller, of a job that has this folder now, stays."""
    address = records.read_address(folder)
    if address is not None and address.pid != os.getpid():
        return
    try:
        (folder / "controller.json").unlink(missing_ok=True)
    except OSError as error:
        say(f"the address of the controller cannot be removed from the job folder: {error}")


def recovers(state: State) -> bool:
    """Whether a fault is being recovered from, and all nodes that this takes are there."""
    return state.phase in (Phase.RECOVERING, Phase.STARTING) and not missing(state)


def _explained(agents: Mapping[str, StartedAgent], event: AnyEvent) -> AnyEvent:
    """The loss of a node that is silent, with what its process does."""
    if not isinstance(event, NodeLost) or event.reason is not NodeLostReason.SILENT:
        return event
    does = agents[event.node].does() if event.node in agents else ""
    return msgspec.structs.replace(event, detail=f"{event.detail}; {does}") if does else event


def _account(node: str, fenced: Fenced) -> list[AnyEvent]:
    """What SIGKILL does not end runs no more code of its own, so the job goes on without it."""
    if not fenced.stuck:
        return []
    return [NodeLost(node=node, reason=NodeLostReason.STUCK, detail=fenced.words)]


class LocalDriver:
    """One job. Nodes are what its engine starts; everything else is the shell's."""

    def __init__(
        self,
        job: Job,
        folder: Path,
        controller: Controller,
        book: journal.Journal,
        engine: NodeEngine,
    ) -> None:
        self._engine = engine
        self._job = job
        self._folder = folder
        self._state = controller.state
        self._agents: dict[str, StartedAgent] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._full = False
        timeout_s = job.recovery.heartbeat_timeout_s
        settings = Settings(timeout_s, RECONNECT_S, term=book.seq + 1)  # the journal only grows
        self._clock = Clock(controller.state.now)
        self._shell = Shell(controller, book, self, settings, self._clock.now)
        self._host = Host(self._shell, self._clock, records.read_secret(folder), timeout_s)
        progress = self._shell.nodes.bridge.progress
        self._books = JobBooks(
            job.name, folder / records.JOURNAL, self._state, self._clock.now, progress.newest,
            engine.waits_for,
        )  # fmt: skip
        metrics = JobMetrics(job, self._state, self._books, progress, self._clock.now)
        self._scraped = MetricsServer(job.name, metrics.exposition)
        now, path = self._clock.now, folder / records.JOURNAL
        self._notifier = Notifier(job, self._state, folder, self._books.goodput, now)
        self._telemetry = Telemetry(job, self._state, self._books, path, now)
        self._scraped.agents = self._scraped_agents
        late = self._shell.stragglers.lateness
        self._history = JobHistory(folder, self._state, progress, late, now, curve=False)

    async def run(self, first: Beginning, observe: Observer) -> Outcome:
        """From the first fact to the last agent's end."""
        shell, host = self._shell, self._host
        book = MachineBook(self._state, say, asyncio.get_running_loop().call_soon)

        def seen(entry: Entry, state: State) -> None:
            self._books.add(entry)
            book.hear(entry)
            self._notifier.heard()
            self._telemetry.heard(entry)
            observe(entry, state)

        shell.decisions.observe = seen
        shell.decisions.explain = functools.partial(_explained, self._agents)
        self._telemetry.begin()
        self._notifier.begin(say)
        host.stop_at(signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._terminal_gone)
        self._publish(await host.server.listen(self._engine.host))
        if self._job.monitoring.port is not None:
            await self._scraped.open(self._engine.host, self._job.monitoring.port, say)
        for agent in self._engine.living():  # that a former controller of this job started
            self._add(agent, RECONNECT_S)
        shell.begin(first, self._agents)
        figures = {"recording metrics": lambda: self._history.run(say)}
        try:
            outcome = await host.run(figures, say, self._end)
            assert outcome is not None, "this job has another controller"  # its lock is ours
            return outcome
        finally:
            await self._notifier.close()
            await self._telemetry.close()
            self._scraped.close()
            await host.server.close()
            withdraw_address(self._folder)

    def _publish(self, port: int) -> None:
        address = records.Address(
            host=self._engine.host, port=port, pid=os.getpid(),
            ahead_s=self._clock.ahead_s, boot=records.this_boot(),
        )  # fmt: skip
        text = msgspec.json.encode(address).decode()
        records.write_private(self._folder / "controller.json", text)

    def _add(self, agent: StartedAgent, connects_within_s: float) -> None:
        self._agents[agent.node] = agent
        expect = self._shell.nodes.expect
        agent.watch(lambda: expect(agent.node, connects_within_s), self._agent_ended)

    # ── what the shell orders ──

    def make(self, order: AskNodes) -> None:
        """Start so many agents; spares of this machine once what recovers without them trains."""
        self._engine.see_room(self._state.wanted)
        if self._engine.shares_processors and recovers(self._state):
            self._do(self._start_spares(order.count))
        else:
            self._start_agents(order.count)

    def remove(self, order: Fence, done: Callable[[Sequence[AnyEvent]], None]) -> None:
        """Kill everything of a node."""
        self._agents.pop(order.node, None)
        self._do(self._kill(order.node, done))

    def _do(self, work: Coroutine[None, None, None]) -> None:
        async def done() -> None:
            try:
                await work
            except Exception as error:
                self._host.fail(error)
                raise

        task = asyncio.create_task(done())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _kill(self, node: str, done: Callable[[Sequence[AnyEvent]], None]) -> None:
        fenced = await asyncio.to_thread(self._engine.fence, {node})
        say_stuck(fenced)
        done(_account(node, fenced))

    def leave(self, order: EndJob) -> Leave:
        """The job is over."""
        return Leave(reason=order.reason)

    def near(self, _node: str) -> bool:
        """Nobody else takes over, so nodes that are cut off from us are lost."""
        return True

    def connections_changed(self) -> None:
        """Nobody waits for that."""

    def disk_full(self, full: bool) -> None:
        """Say so once; the job trains on, but nothing new is decided."""
        if full != self._full:
            self._full = full
            what = (
                "is full: nothing is decided, not even a stop, until there is space"
                if full
                else "has free space again"
            )
            say(f"the disk under {self._folder} {what}")

    async def _start_spares(self, count: int) -> None:
        latest = self._clock.now() + SPARES_AFTER_S
        while recovers(self._state) and self._clock.now() < latest:
            await asyncio.sleep(LOOK_S)
        if not self._state.ended:
            self._start_agents(count)

    def _start_agents(self, count: int) -> None:
        for name in new_names(self._folder, count):
            try:
                self._add(self._engine.start(name), REGISTER_S)
            except OSError as error:
                self._shell.nodes.died(name, f"cannot start an agent: {error.strerror}")

    async def _end(self, _outcome: Outcome) -> None:
        """Agents have been told; what does not go by itself is killed."""
        await self._end_unborn()
        endings = [agent.ended.wait() for agent in self._agents.values()]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*endings), LEAVE_S)
        nodes = set(self._agents) | set(self._state.lost)
        say_stuck(await asyncio.to_thread(self._engine.fence, nodes))
        await asyncio.to_thread(self._engine.give_back)

    async def _end_unborn(self) -> None:
        """Agents that have not said hello yet run no worker, and cannot be told to leave."""
        known = self._state.nodes.keys() | self._shell.nodes.connected
        unborn = {a.node for a in self._agents.values() if a.ours} - known
        if unborn:
            await asyncio.to_thread(self._engine.fence, unborn)

    # ── facts ──

    def _agent_ended(self, agent: StartedAgent, how: str) -> None:
        if agent.node in self._agents:
            self._shell.nodes.died(agent.node, how)

    def status(self) -> bytes:
        """`JobStatus` as JSON."""
        where = self._scraped.address
        url = f"http://{where}/metrics" if where is not None else None
        return msgspec.json.encode(msgspec.structs.replace(self._books.status(), metrics=url))

    def _scraped_agents(self) -> list[str]:
        """Those that live and are scraped."""
        cards = (card for card in known_nodes(self._folder) if card.node in self._agents)
        nodes = self._state.nodes
        scraped = (card for card in cards if card.metrics and card.node in nodes)
        return [f"{nodes[card.node].address}:{card.metrics}" for card in scraped]

    def _terminal_gone(self) -> None:
        """A closed terminal does not stop a job: go on, with output to a file."""
        talk_to_file(self._folder / "controller.log")
