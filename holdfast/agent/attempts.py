"""The attempts of this node: their start, and the deaths of their workers.

An attempt is started at most once, and never after it was ordered to stop. Where there is no
forkserver yet, or a step is still being repeated, the order waits for it.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import psutil

from holdfast.agent import environment, processes
from holdfast.agent.end_watch import watch_end
from holdfast.agent.node_attempt import NodeAttempt, exited
from holdfast.agent.notes import note
from holdfast.agent.oom_kills import OomKills
from holdfast.agent.parts import NodeParts
from holdfast.agent.processes import ProcessExit
from holdfast.agent.signals import kill, terminate
from holdfast.agent.workers import Worker
from holdfast.masking import masker
from holdfast.messages import Start, WorkersStarted
from holdfast.versions import Version

SURE_S = 1.0  # that a worker has got its rank


class Attempts:
    """`ordered` and `fenced` only grow: up to which attempt a start and a stop was ordered.

    `newest` is the newest attempt that was started here.
    """

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts
        self._processes = parts.processes
        self.ordered = 0
        self.fenced = 0
        self._waiting: Start | None = None  # for a forkserver, its code, or what is to be gone
        self._held = False  # by the last of these
        self.newest: NodeAttempt | None = None
        self._oom = OomKills()
        self.mask = masker({**os.environ, **parts.job.env})

    @property
    def shown(self) -> NodeAttempt | None:
        """The newest attempt, unless the controller knows that it has stopped."""
        return None if self.newest is None or self.newest.stopped else self.newest

    def alive(self) -> list[Worker]:
        """Workers of that attempt that live."""
        return self.shown.alive if self.shown is not None else []

    # ── start ──

    def start(self, order: Start, gone: Callable[[], Awaitable[None]] | None = None) -> None:
        """Start its workers, now or as soon as there is a forkserver; once those are `gone` that
        would take memory from them."""
        if order.attempt <= max(self.ordered, self.fenced):
            return
        self.ordered, self._waiting = order.attempt, order
        if gone is not None:
            self._held = True
            self._parts.tasks.start(self._once(gone))
        if self._parts.versions.missing(order.version):
            self._parts.tasks.start(self._unpack(order.version))
        self.start_waiting()

    async def _once(self, gone: Callable[[], Awaitable[None]]) -> None:
        await gone()
        self._held = False
        if not self._parts.end.begun:
            self.start_waiting()

    async def _unpack(self, version: Version) -> None:
        try:
            why = await self._parts.code.fetch(version.code)
            if not why:
                await asyncio.to_thread(self._parts.versions.unpack, version)
        except (OSError, ValueError) as error:
            why = str(error)
        if why:
            self._parts.end.fail(f"version {version.number} cannot be started: {why}")
            return
        self.start_waiting()

    def start_waiting(self) -> None:
        """Start what waits for a forkserver, or for its code, once there is, and nothing that is
        to be gone first."""
        order = self._waiting
        if order is None or self._held or not self._processes.ready:
            return
        if not self._parts.versions.missing(order.version):
            self._waiting = None
            self._launch(order)

    def fence(self, attempt: int) -> bool:
        """Start nothing up to this attempt any more; whether that may have started elsewhere."""
        ahead = attempt > max(self.ordered, self.fenced)
        self.fenced = max(self.fenced, attempt)
        if self._waiting is not None and self._waiting.attempt <= self.fenced:
            self._waiting = None
        return ahead

    def _launch(self, order: Start) -> None:
        now = time.monotonic()
        if self.newest is not None:  # never both: the controller should have stopped it
            terminate(self.newest, self._processes, now)
            kill(self.newest, self._processes)
        self._oom.new()  # what was killed before is no news of this attempt
        self._processes.workers.drop_logs(order.attempt)
        self._processes.stores.use(order.store)
        self._parts.ready.begin(self._parts.versions.program(order.version))
        run = self.newest = NodeAttempt(order)
        for local_rank in range(self._processes.workers.count):
            told = environment.assignment(self._parts.job, order, local_rank)
            run.workers[local_rank] = self._processes.start(told)
        self.mask = masker({**os.environ, **self._parts.job.env, **order.version.env})
        if self._processes.stores.failure:  # nobody would ever meet there
            note("agent: the attempt is ended: its rendezvous store had died before it began")
            kill(run, self._processes)
        self._parts.warm_up.attempt_started(now)
        self.announce()

    def store_failed(self, how: str) -> None:
        """The store of the attempt has died. Ranks that have met train on without it. Those that
        have not would dial a dead port, or one that somebody else has taken since, until the
        timeout of their process group, so they are ended."""
        run = self.newest
        waits = run is not None and run.alive and run.stop_at is None and not _has_met(run)
        note(f"agent: the rendezvous store of the attempt has died ({how})")
        if run is not None and waits:
            note("agent: the attempt is ended: its rendezvous store died before its ranks had met")
            self._processes.stores.is_missed()
            kill(run, self._processes)

    def announce(self) -> None:
        """Tell the controller once every worker has a process."""
        run = self.newest
        if run is None or run.announced or run.stop_at is not None or not run.all_forked:
            return
        run.announced = True
        pids = tuple(worker.pid for _, worker in sorted(run.workers.items()))
        number = run.order.attempt
        self._parts.controller.fact(
            WorkersStarted(node=self._parts.node, attempt=number, pids=pids)
        )

    # ── deaths ──

    def look_for_ends(self) -> None:
        """Who has raised has failed, and so has whom the kernel takes apart, and that is told now:
        until the process is gone its peers would wait, or fail because of it."""
        run = self.newest
        if run is None or run.stop_at is not None:
            return
        found = []
        for worker in run.alive:
            watch_end(worker.page.end_lock, self.look_for_ends)
            if worker.ends is None and (ends := self._ending(worker)):
                found.append((worker, ends))
        for worker, ends in sorted(found, key=lambda one: one[1].at):
            self._parts.watch.last_look(run)
            self.announce()
            worker.ends = ends
            worker.output.catch_up()
            self._tell(worker, ends, self._oom.new())
        if found:  # what broke under them is to be known before the verdict, which comes later
            self._parts.health.look()

    def _tell(self, worker: Worker, ends: ProcessExit, oom: str = "") -> None:
        store = self._processes.stores.failure
        fact = exited(self._parts.node, worker, ends, oom, self.mask, store)
        self._parts.controller.fact(fact)

    def _ending(self, worker: Worker) -> ProcessExit | None:
        """How it has begun to end, other than well. When a warm one did that is known to a moment
        only once it is gone: whoever has got its rank just now may have ended without."""
        if worker.raised_at:
            return ProcessExit(worker.pid, 1, None, worker.raised_at)
        if not worker.pid or time.monotonic() < worker.assigned_at + SURE_S:
            return None
        forkserver, ends = self._processes.forkserver, processes.ending_of(worker.pid)
        ours = forkserver is not None and processes.has_parent(worker.pid, {forkserver.pid})
        return ends if ours or worker.forkserver else None

    def died(self, worker: Worker, death: ProcessExit) -> None:
        """A worker has died, with a rank or without."""
        if worker.assignment is None:
            needed = worker.control is not None and worker.control.open
            if needed and not self._parts.end.begun:
                note(f"agent: warm worker {worker.local_rank} ended without a rank: {death.words}")
            return
        if worker.is_parked:
            note(f"agent: parked worker {worker.local_rank} ended: {death.words}")
            return
        run = self.newest
        if run is None or run.workers.get(worker.local_rank) is not worker:
            return
        if _died_before_its_rank(worker, death) and run.stop_at is None and self._processes.ready:
            run.workers[worker.local_rank] = self._processes.start(worker.assignment)
            return
        news, own = run.is_news(death), worker.own_status
        if own == 1 or (own == 0 and not news):  # our signal only came in between
            death, news = death._replace(exit_code=own, signal=None), True
        if death.exit_code == 1 and worker.raised_at:
            death = death._replace(at=worker.raised_at)
        self._parts.watch.last_look(run)
        self.announce()
        if worker.ends is not None:
            pass
        elif death.exit_code == 0 and own != 0 and self._parts.saves.unsaved(run.order.attempt):
            self._parts.tasks.start(self._tell_when_saved(run, worker, death))
        elif news:
            self._tell(worker, death, self._oom.new() if death.exit_code != 0 else "")
        run.look_gone()

    async def _tell_when_saved(self, run: NodeAttempt, worker: Worker, death: ProcessExit) -> None:
        """A worker has finished once its last step is in safety: with the news the job may end."""
        await self._parts.saves.until_saved(run.order.attempt)
        if run.is_news(death):
            self._parts.controller.fact(exited(self._parts.node, worker, death))


def _has_met(run: NodeAttempt) -> bool:
    """Whether a rank of this node has made a step, or is connected to the store. To be asked as
    soon as that has died: who takes its port next is dialled, too."""
    port = run.order.store.port
    has_stepped = run.progress().step is not None
    return has_stepped or any(one.pid and _is_connected(one.pid, port) for one in run.alive)


def _is_connected(pid: int, port: int) -> bool:
    """Whether it or what it has started, such as the program of a shell script, has a connection to
    this port of anybody; also where that cannot be known."""
    try:
        worker = psutil.Process(pid)
        family = [worker, *worker.children(recursive=True)]
        found = [one for process in family for one in process.net_connections("tcp")]
    except psutil.Error:
        return True
    return any(one.raddr and one.raddr.port == port for one in found)


def _died_before_its_rank(worker: Worker, death: ProcessExit) -> bool:
    return bool(worker.pid) and death.at < worker.assigned_at
