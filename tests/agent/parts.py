"""The parts of a node, played by the test: what they were asked to do, in order."""

import asyncio
import os
import signal
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from holdfast.agent.health.watch import HealthWatch
from holdfast.agent.job_versions import JobVersions
from holdfast.agent.node_end import NodeEnd
from holdfast.agent.parts import NodeParts
from holdfast.agent.processes import ProcessExit
from holdfast.agent.store_offer import StoreOffer
from holdfast.agent.warm_up import WarmUp
from holdfast.agent.workers import Worker, WorkerSockets
from holdfast.events import Progress, Store
from holdfast.messages import Assignment, Start, Stop
from holdfast.spec import Job


class FakeController:
    """The connection: facts as they were told."""

    def __init__(self) -> None:
        self.facts: list[Any] = []

    def fact(self, event: Any) -> None:
        """Told."""
        self.facts.append(event)


class FakeStores:
    """Rendezvous stores that are there as soon as they are wanted."""

    def __init__(self) -> None:
        self.fresh: Store | None = None
        self.can_open = True
        self.on_fresh: Any = None
        self.opened = 0
        self.retired: list[Store | None] = []
        self._used: Store | None = None
        self.failure = ""

    def open(self) -> None:
        """Have a fresh one."""
        if self.fresh is None and self.can_open:
            self.opened += 1
            self.fresh = Store(host="h", port=self.opened, hosted=True)
            self.on_fresh(self.fresh)

    def use(self, store: Store) -> None:
        """An attempt starts on it."""
        if store == self.fresh:
            self._used, self.fresh = self.fresh, None

    def retire(self) -> None:
        """It is over."""
        self.retired.append(self._used)
        self._used = None

    def close_beside(self) -> None:
        """There is none beside."""


class FakeProcesses:
    """Workers that are forked at once and die when the test says so."""

    def __init__(self, count: int) -> None:
        self.ready = True
        self.stores = FakeStores()
        self.signals: list[tuple[int, int]] = []  # local rank, signal
        self.started: list[Assignment] = []
        self.killed = False
        self.forkserver = SimpleNamespace(pid=os.getpid())  # what the test starts are its workers
        self.workers = SimpleNamespace(
            count=count, drop_logs=lambda _: None, table={}, warm={}, dismiss_parked=lambda: None
        )

    def start(self, assignment: Assignment) -> Any:
        """A worker with this rank."""
        self.started.append(assignment)
        number = len(self.started)
        worker = SimpleNamespace(
            is_parked=False, is_to_park=False, sockets=WorkerSockets(),
            pid=number, local_rank=assignment.local_rank, assignment=assignment, assigned_at=0.0,
            death=None, own_status=None, ends=None, raised_at=0.0, log="", error_file=None,
            forkserver="",
            output=SimpleNamespace(tail=b"", catch_up=lambda: None),
            page=SimpleNamespace(
                progress=lambda _: Progress(), error=lambda: None, first_broke=lambda _: None,
                report=lambda *_: SimpleNamespace(phase="step", progress=Progress()),
                end_lock=SimpleNamespace(held=False, awaited=False),
            ),
        )  # fmt: skip
        worker.acts_in = partial(Worker.acts_in, cast("Any", worker))
        return worker

    def signal(self, worker: Any, sig: int) -> None:
        """Told to a worker."""
        self.signals.append((worker.local_rank, sig))

    def kill(self) -> None:
        """The forkserver."""
        self.killed = True

    def spared(self) -> frozenset[int]:
        """No process of the test is a leftover."""
        return frozenset()


class FakeSaves:
    """Snapshots before the end: none, unless the test says that workers take them."""

    def __init__(self) -> None:
        self.takes_snapshots = False
        self.saves: list[dict[str, bool]] = []
        self.saved = asyncio.Event()
        self.unsaved_count = 0

    def can(self, _attempt: int) -> bool:
        """Whether workers take snapshots."""
        return self.takes_snapshots

    def unsaved(self, _attempt: int) -> bool:
        """Whether the last step is not in safety yet."""
        return bool(self.unsaved_count)

    async def until_saved(self, _attempt: int, _within_s: float = 0.0) -> None:
        """Until the test says so."""
        await self.saved.wait()

    async def save(self, _grace_s: float, **how: bool) -> None:
        """Until the test says so."""
        self.saves.append(how)
        await self.saved.wait()


class FakeTasks:
    """Tasks of the loop that the test can wait for."""

    def __init__(self) -> None:
        self.running: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it."""
        self.running.append(asyncio.get_running_loop().create_task(work))

    async def settle(self) -> None:
        """Wait for all of them."""
        while self.running:
            await self.running.pop(0)


def make_parts(count: int = 2) -> Any:
    """Parts of a node with so many workers; typed loosely, because most of them are played."""
    job = Job.model_validate({"name": "j", "script": "s.py"})
    controller: Any = FakeController()
    processes: Any = FakeProcesses(count)
    offer = StoreOffer("n", processes.stores, controller, instrumented=True, has_tiers=False)
    played: Any = {
        "saves": FakeSaves(),
        "tasks": FakeTasks(),
        "health": HealthWatch("n", (), controller.fact),
        "watch": SimpleNamespace(last_look=lambda _: None),
        "code": SimpleNamespace(),
        "versions": JobVersions(job, Path("nowhere"), instrumented=True),
        "ready": SimpleNamespace(begin=lambda _: None),
    }
    return NodeParts(
        node="n",
        job=job,
        controller=controller,
        processes=processes,
        offer=offer,
        warm_up=WarmUp(reports_steps=True),
        end=NodeEnd(0, 1),
        **played,
    )


def start(attempt: int = 1) -> Start:
    """An order to start on the node's own first store."""
    store = Store(host="h", port=1, hosted=True)
    return Start(
        attempt=attempt, node_rank=1, node_count=2, workers_per_node=2, store=store,
        redo_until=0, restarts=0,
    )  # fmt: skip


def stop(attempt: int = 1, grace_s: float = 0.0, **how: Any) -> Stop:
    """An order to stop."""
    return Stop(attempt=attempt, grace_s=grace_s, **how)


def die(attempts: Any, worker: Any, *, at: float = 1e9, code: int | None = None) -> None:
    """This worker has died: of SIGKILL, or with an exit status."""
    worker.death = ProcessExit(worker.pid, code, None if code is not None else signal.SIGKILL, at)
    attempts.died(worker, worker.death)
