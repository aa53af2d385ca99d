"""What an attempt needs on a node, kept ready: the forkserver, a fresh store, warm workers.

The supply owns every process below the agent. It starts the forkserver again when that dies,
passes on who was forked and who died, and knows nothing of orders or of the controller.
"""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.agent import fork_protocol, processes
from holdfast.agent.datasets.handle import DatasetsHandle
from holdfast.agent.forkserver_handle import ForkserverHandle
from holdfast.agent.import_ahead import START_TRIES, ImportsAhead
from holdfast.agent.notes import note
from holdfast.agent.processes import ProcessExit
from holdfast.agent.rendezvous_stores import RendezvousStores
from holdfast.agent.storage.handle import StorageHandle
from holdfast.agent.tracker_handle import TrackerHandle
from holdfast.agent.unreaped import Unreaped
from holdfast.agent.workers import Worker, Workers
from holdfast.messages import Assignment

REAPED_AT_ONCE, REAPED_AGAIN_S = 256, 0.01  # a script may end processes faster than that takes


@dataclass(frozen=True)
class ProcessListener:
    """Whom the supply tells what."""

    on_ready: Callable[[], None]  # a forkserver can fork; also after each new start of it
    on_forked: Callable[[], None]
    on_death: Callable[[Worker, ProcessExit], None]
    on_store_lost: Callable[[], None]
    on_store_failed: Callable[[str], None]  # that of the attempt, and how
    on_broken: Callable[[str], None]  # no forkserver can be started


class NodeProcesses:
    """Every process below the agent.

    A worker is either a child of the living forkserver or, after that died, an orphan of ours in
    `_orphans`, by pid.
    """

    def __init__(
        self,
        workers: Workers,
        environment: Mapping[str, str],
        program: fork_protocol.Program,
        preload: fork_protocol.Preload,
        storage: StorageHandle,
        stores: RendezvousStores,
    ) -> None:
        self.storage = storage
        self.stores = stores
        self.workers = workers
        self._environment = environment
        self.program = program  # of the newest attempt; `ReadyVersions` changes it
        self._ahead = ImportsAhead(preload)
        self._tell: ProcessListener
        self._orphans: dict[int, Worker] = {}
        self._closed = False
        self._fallen: ForkserverHandle | None = None  # the last one that died
        self._unreaped = Unreaped()
        self.forkserver: ForkserverHandle | None = None
        self.tracker: TrackerHandle | None = None
        self.datasets: DatasetsHandle

    def open(self, listener: ProcessListener) -> None:
        """Start the forkserver; `on_ready` follows."""
        self._tell = listener
        self._start_forkserver()

    def _start_forkserver(self) -> None:
        self.forkserver = ForkserverHandle(self._environment, self._on_reply, self._on_gone)
        self.forkserver.prepare(self.program, self._ahead.next())

    @property
    def ready(self) -> bool:
        """Whether a worker can be forked now."""
        return self.forkserver is not None and self.forkserver.ready

    # ── asking ──

    def start(self, assignment: Assignment) -> Worker:
        """A worker with this rank."""
        assert self.forkserver is not None
        return self.workers.start(self.forkserver, assignment, self.program)

    def signal(self, worker: Worker, sig: int) -> None:
        """Signal a worker and its process group; nothing happens if it is dead."""
        if worker.pid in self._orphans:
            processes.signal_group(worker.pid, sig)
        elif worker.death is None and self.forkserver is not None:
            self.forkserver.signal(worker.id, sig)

    def warm_up(self) -> None:
        """Fill the warm set."""
        if self.ready and self.forkserver is not None:
            self.workers.warm_up(self.forkserver, self.program)

    def spared(self) -> frozenset[int]:
        """Our children that are no leftovers of a worker."""
        living = {self.forkserver.pid} if self.forkserver is not None else set()
        living.add(self.storage.pid)
        tracking = self.tracker.pids if self.tracker is not None else set()
        return frozenset(living | tracking | self._orphans.keys())

    def close(self) -> None:
        """End the forkserver and everything below it."""
        self._closed = True
        self.storage.close()
        if self.forkserver is not None:
            self.forkserver.close()
            if (
                not self.forkserver.ready
            ):  # it hears us only once it has loaded, and has no children
                self.forkserver.kill()

    def kill(self) -> None:
        """End the forkserver by force."""
        if self.forkserver is not None:
            self.forkserver.kill()

    @property
    def closed(self) -> bool:
        """Whether `close` is complete."""
        running = self.forkserver is not None and self.forkserver.running
        return self._closed and not running and not self.storage.pid

    # ── hearing ──

    def _on_reply(self, reply: fork_protocol.AnyReply) -> None:
        match reply:
            case fork_protocol.Ready():
                self._on_ready()
            case fork_protocol.Importing(module=module):
                self._ahead.begins(module, time.monotonic())
            case fork_protocol.Unfit(modules=modules):
                self._do_without(modules)
            case fork_protocol.Forked(id=id_, pid=pid):
                if worker := self.workers.table.get(id_):
                    worker.pid = pid
                    self._tell.on_forked()
            case fork_protocol.ForkFailed(id=id_, why=why):
                _say_why_not(self.workers.table.get(id_), why)
                self._on_child_death(id_, ProcessExit(0, os.EX_OSERR, None, time.monotonic()))
            case fork_protocol.Died(id=id_, exit_code=code, signal=sig, at=at):
                self._on_child_death(id_, ProcessExit(0, code, sig, at))

    def _on_ready(self) -> None:
        assert self.forkserver is not None
        self.forkserver.has_loaded()
        self._ahead.done()
        self.stores.fork_from(self.forkserver)
        self._tell.on_ready()

    def _do_without(self, modules: dict[str, str]) -> None:
        """The forkserver ends by itself; the next one leaves these out."""
        assert self.forkserver is not None
        self.forkserver.replaced = True
        self._ahead.leave_out(modules)

    def _on_child_death(self, id_: int, death: ProcessExit) -> None:
        if worker := self.workers.table.get(id_):
            self._bury(worker, death)
        elif self.stores.died(id_):
            self._tell.on_store_lost()
        elif self.stores.failed(id_, death.words):
            self._tell.on_store_failed(death.words)

    def _bury(self, worker: Worker, death: ProcessExit) -> None:
        self._orphans.pop(worker.pid, None)
        self.workers.bury(worker, death)
        self._tell.on_death(worker, death)

    def _on_gone(self) -> None:
        """The forkserver has died; the kernel kills what it forked, and we are their parent now."""
        old, self.forkserver = self.forkserver, None
        self._fallen = old
        self.stores.forget()
        if self._closed or old is None:
            self.forkserver = old
            return
        if not old.replaced:
            note("agent: the forkserver has died; starting another")
        self._tell.on_store_lost()
        if not (old.ready or old.replaced):
            self._ahead.died(old.last_words)
        for worker in list(self.workers.table.values()):
            self._adopt(worker, old.pid)
        if not self._ahead.given_up:
            self._start_forkserver()
        else:
            died = f"the forkserver died {START_TRIES} times while it started"
            self._tell.on_broken(f"{died}: {old.last_words}")

    def _adopt(self, worker: Worker, forkserver: int) -> None:
        self._orphans[worker.pid], worker.fallen = worker, self._fallen
        if processes.has_parent(worker.pid, {os.getpid(), forkserver}):
            processes.signal_group(worker.pid, signal.SIGKILL)
        else:  # never forked, or reaped by the forkserver with its last breath
            self._bury(worker, ProcessExit(worker.pid, None, signal.SIGKILL, time.monotonic()))

    def reap(self) -> None:
        """Children of the agent itself have ended: a forkserver, the storage process, orphans."""
        every = processes.reap(self._orphans.__contains__)
        some = list(itertools.islice(every, REAPED_AT_ONCE))
        for death in some:
            if worker := self._orphans.get(death.pid):
                self._bury(worker, death)
            elif self.forkserver is not None and death.pid == self.forkserver.pid:
                self.forkserver.reaped(death)
            elif self._fallen is not None and death.pid == self._fallen.pid:
                self._fallen.reaped(death)
            elif death.pid == self.storage.pid:
                self.storage.reaped(death)
        if len(some) == REAPED_AT_ONCE:
            asyncio.get_running_loop().call_later(REAPED_AGAIN_S, self.reap)

    def look(self, now: float) -> None:
        """Declare those orphans dead that somebody else has reaped. End a forkserver that reaps
        nobody: then its children are orphans of ours; and one that an import does not return to."""
        for pid, worker in list(self._orphans.items()):
            if not processes.exists(pid):
                self._bury(worker, ProcessExit(pid, None, signal.SIGKILL, time.monotonic()))
        own = {one.pid for one in self.workers.table.values() if one.pid and one.death is None}
        if self.forkserver is not None and self._unreaped.too_long(own - self._orphans.keys(), now):
            note("agent: the forkserver does not reap a worker that has ended, so it is killed")
            self.forkserver.kill()
        if self.forkserver is None or self.forkserver.replaced:
            return
        if stuck := self._ahead.stuck(self.forkserver.pid, now):
            self._do_without(stuck)
            self.forkserver.kill()


def _say_why_not(worker: Worker | None, why: str) -> None:
    note(f"agent: a child could not be forked: {why}")
    if worker is not None:
        worker.output.add(f"holdfast: the worker could not be started: {why}\n".encode())
