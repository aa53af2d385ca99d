"""The agent of one node: orders in, facts out.

Everything that happens is a callback of one event loop: orders from the controller, news from the
supply of processes, signals, and a tick that looks at the progress pages. Carrying out an order
never waits; only the end of an attempt and the end of the agent are tasks, because they wait for
processes to die.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

import msgspec

from holdfast.agent import environment
from holdfast.agent.attempt import Attempt, exited
from holdfast.agent.child import listen
from holdfast.agent.console import Console
from holdfast.agent.farewell import Farewell
from holdfast.agent.keeper import Keeper
from holdfast.agent.leftovers import end_strays, kill_carriers
from holdfast.agent.link import Link, Order, RejectedError
from holdfast.agent.metrics import Metrics
from holdfast.agent.notes import note
from holdfast.agent.parsed import is_instrumented
from holdfast.agent.probes import Health
from holdfast.agent.processes import Death
from holdfast.agent.storage import facts, places, words
from holdfast.agent.storage.handle import StorageHandle
from holdfast.agent.supply import Listener, Supply
from holdfast.agent.watch import Watch
from holdfast.agent.witness import api_answers
from holdfast.agent.workers import Worker, Workers
from holdfast.checkpoint.arena import Arena
from holdfast.checkpoint.board import Board
from holdfast.events import NodeLeft, NodeReady, Progress, Store
from holdfast.messages import (
    PROTOCOL,
    ApiSeen,
    Assignment,
    GiveJournal,
    Hello,
    Keep,
    Leave,
    LookForApi,
    Start,
    Stop,
    WorkersStarted,
    WorkersStopped,
)
from holdfast.spec import Job

WARM_AFTER_START_S = 2.0  # for scripts that report no steps
WARM_AFTER_STOP_S = 1.0  # no new attempt so far: be warm when it comes
STORE_TIMEOUT_S = 10.0
FOUND_S = 15.0  # for durable tiers to say which attempts they know
GOODBYE_S = 1.0
CLOSE_S = 2.0
FORCE_AFTER_S = 3.0  # a forkserver that does not carry out SIGKILL in this time is killed itself


@dataclass(frozen=True)
class Identity:
    """Which node this is."""

    node: str
    name: str
    address: str
    folder: Path  # of the job


@dataclass(frozen=True)
class Surroundings:
    """What depends on where the agent runs; as it stands, for a process of a laptop."""

    let_go: int = 0  # exit status when the controller named none
    broken: int = 1  # and after a fault of ours
    console: Console | None = None  # where output of workers is shown besides the files
    store_ports: tuple[int, ...] = ()  # none: any
    storage_port: int = 0  # 0: any
    attempts_kept: int | None = None  # of which there are logs; None: all


class Agent:
    """One node from its start to its end.

    `_newest` and `_fenced` only grow: an attempt is started at most once, and never after it was
    ordered to stop. `_run` is the newest attempt that was started here.
    """

    def __init__(
        self,
        me: Identity,
        job: Job,
        environ: Mapping[str, str],
        around: Surroundings = Surroundings(),
    ) -> None:
        self._me = me
        self._job = job
        self._around = around
        self._count = environment.worker_count(job, environment.gpu_count({**environ, **job.env}))
        program = environment.program_of(job)
        self._instrumented = is_instrumented(program)
        self._ids = itertools.count(1)
        workers = self._make_workers()
        self._places = places.places_of(job, environ)
        listener = listen(me.address, (around.storage_port, 0))
        self._address = _address_of(me.address, listener)
        told = places.variables(job, self._places, self._address)
        env = environment.node_environment(job, me.node, self._count, environ, told)
        setup = words.Setup(
            node=me.node,
            job=job.name,
            token_file=str(me.folder / "token"),
            arenas=tuple(workers.arenas),
            boards=tuple(workers.boards),
            listener=listener.detach(),
            places=self._places,
            copies=job.snapshots.copies,
        )
        self._boards = [Board(fd) for fd in workers.boards]
        storage = StorageHandle(setup, env, self._on_storage_news)
        arenas = [Arena(fd) for fd in workers.arenas]
        self._farewell = Farewell(arenas, self._boards, storage)
        self._attempt_found: int | None = None if self._places else 0
        self._supply = Supply(
            workers,
            env,
            program,
            environment.preload_of(job),
            self._listener(),
            storage,
        )
        self._link = Link(me.folder, self._hello, self._on_order)
        self._keeper = Keeper()
        self._watch = Watch(me.node, Metrics(me.folder / "metrics.jsonl"), self._link)
        self._newest = 0
        self._fenced = 0
        self._run: Attempt | None = None
        self._waiting: Start | None = None  # came while there was no forkserver
        self._told_store: Store | None = None  # the last one the controller was told of
        self._leaving = False  # a signal has asked for it
        self._dismissed = False  # the controller has
        self._store_opened = asyncio.Event()
        self._warm_at: float | None = None  # when to warm up for the next attempt, at the latest
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._status = around.let_go

    def _make_workers(self) -> Workers:
        cold, warm = environment.kinds_of(self._job, self._instrumented)
        return Workers(
            folder=self._me.folder,
            name=self._me.name,
            log_bytes=self._job.logs.max_bytes,
            warm_kind=warm,
            cold_kind=cold,
            new_id=self._ids.__next__,
            arenas=[Arena.create() for _ in range(self._count)],
            boards=[Board.create() for _ in range(self._count)],
            tell_output=not self._instrumented,
            console=self._around.console,
        )

    def _listener(self) -> Listener:
        return Listener(
            on_ready=self._on_ready,
            on_forked=self._announce_start,
            on_death=self._on_death,
            on_store=self._on_store,
            on_store_lost=self._on_store_lost,
            on_broken=self._on_broken,
        )

    # ── life ──

    async def live(self) -> int:
        """Until dismissed, rejected, abandoned or asked by a signal; the exit status."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_exception)
        loop.add_signal_handler(signal.SIGCHLD, self._supply.reap)
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, self._on_signal, self._job.recovery.stop_grace_s)
        ports = self._around.store_ports
        self._supply.open(self._me.address, self._job.uses_torch, self._ids, ports)
        if self._places:
            self._supply.storage.open()
            loop.call_later(FOUND_S, self._on_found, 0)
        self._keep(self._ticks())
        self._keep(self._talk())
        grace_s = await self._end
        await self._end_workers(grace_s)
        await self._end_supply()
        await self._say_goodbye()
        if (console := self._around.console) is not None:
            await self._until(lambda: console.idle, CLOSE_S)
        return self._status

    def health(self) -> Health:
        """How the node is now."""
        run = self._run
        progress = run.progress() if run is not None else Progress()
        return Health(
            registered=self._link.welcomes > 0,
            connected=self._link.connected,
            attempt=run.order.attempt if run is not None else 0,
            workers=len(run.alive) if run is not None else 0,
            step=progress.step,
            step_ago_s=progress.step_ago_s,
        )

    def _keep(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        """A task of ours must not fail unseen: the node ends, loudly."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "agent: a task failed", "exception": error, "task": task}
            )
            self._on_broken(f"{type(error).__name__}: {error}")

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback of ours must not fail unseen either: half a node is worse than none."""
        loop.default_exception_handler(context)
        if "handle" in context:
            self._on_broken(f"internal error: {context.get('exception')!r}")

    def _ask_end(self, grace_s: float) -> None:
        if not self._end.done():
            self._end.set_result(grace_s)

    def _on_signal(self, grace_s: float) -> None:
        """Somebody wants this node. What it alone has goes elsewhere first; asked again, at once.

        The rest of the job goes on, so its memory counts as elsewhere.
        """
        run, hurried = self._shown_run(), self._leaving
        self._leaving = True
        worth = bool(self._places) or (run is not None and run.order.node_count > 1)
        can = run is not None and run.stop_at is None and self._farewell.can(run.order.attempt)
        if hurried or not (can and worth) or self._end.done():
            self._ask_end(grace_s)
        else:
            self._keep(self._leave(grace_s))

    async def _leave(self, grace_s: float) -> None:
        began = time.monotonic()
        await self._farewell.save(grace_s, node_goes=True, job_ends=False)
        self._ask_end(max(0.0, grace_s - (time.monotonic() - began)))

    async def _talk(self) -> None:
        try:
            await self._link.run()
        except RejectedError as why:
            note(f"agent: {why}")
            self._ask_end(0.0)

    async def _ticks(self) -> None:
        while True:
            self._tick(time.monotonic())
            await asyncio.sleep(self._watch.pause_s)

    def _tick(self, now: float) -> None:
        self._watch.look(self._shown_run(), now)
        self._supply.bury_lost_orphans()
        self._start_storage()
        if self._link.absent_s > self._job.recovery.controller_absence_s:
            note("agent: no controller for longer than recovery.controller_absence_s")
            self._ask_end(0.0)
        ending = self._end.done()
        if self._warm_at is not None and not ending and self._supply.ready and self._may_warm(now):
            self._warm_at = None
            self._supply.warm_up()
            self._supply.open_store()

    def _start_storage(self) -> None:
        """Once a worker has something to be kept; scripts that track nothing do not pay for it."""
        storage = self._supply.storage
        if not storage.started and any(board.roster_count for board in self._boards):
            storage.open()

    def _may_warm(self, now: float) -> bool:
        """Never while an attempt is coming up: recovery comes first."""
        run = self._run
        if run is not None and run.stop_at is not None and not run.stopped:
            return False
        trains = run is not None and run.trains and not run.stopped
        return trains or (self._warm_at is not None and now >= self._warm_at)

    # ── news from below ──

    def _on_ready(self) -> None:
        self._supply.open_store()
        if self._run is None or self._run.stopped:
            self._supply.warm_up()
        if self._waiting is not None:
            order, self._waiting = self._waiting, None
            self._launch(order)

    def _on_store(self, store: Store) -> None:
        self._store_opened.set()
        if self._told_store is None and self._attempt_found is not None:
            self._told_store = store
            found, known = self._attempt_found, self._instrumented
            self._link.fact(
                NodeReady(node=self._me.node, store=store, attempt=found, instrumented=known)
            )

    def _on_found(self, attempt: int) -> None:
        """Durable tiers know attempts up to this one; 0 if they have not answered yet."""
        if self._attempt_found is None or attempt > self._attempt_found:
            self._attempt_found, self._told_store = attempt, None
            if (store := self._supply.fresh_store) is not None:
                self._on_store(store)

    def _on_store_lost(self) -> None:
        """The fresh store has died: the controller must not count on it."""
        self._told_store = None
        self._store_opened.set()  # whoever waits for it need not wait any longer
        self._supply.open_store()

    def _on_storage_news(self, news: words.AnyNews) -> None:
        """What has become of snapshots."""
        match news:
            case words.Found():
                self._on_found(news.attempt)
            case words.Safe() | words.Settled():
                self._farewell.hear(news)
            case words.Committed() | words.Failed():
                if (fact := facts.of(news, self._me.node)) is not None:
                    self._link.fact(fact)

    def _on_broken(self, why: str) -> None:
        note(f"agent: {why}")
        if not self._end.done():
            self._status = self._around.broken
        self._ask_end(0.0)

    def _announce_start(self) -> None:
        run = self._run
        if run is None or run.announced or run.stop_at is not None or not run.all_forked:
            return
        run.announced = True
        pids = tuple(worker.pid for _, worker in sorted(run.workers.items()))
        number = run.order.attempt
        self._link.fact(WorkersStarted(node=self._me.node, attempt=number, pids=pids))

    def _on_death(self, worker: Worker, death: Death) -> None:
        if worker.assignment is None:
            if not self._end.done():
                note(f"agent: warm worker {worker.local_rank} ended without a rank: {death.words}")
            return
        run = self._run
        if run is None or run.workers.get(worker.local_rank) is not worker:
            return
        if self._died_before_its_rank(worker, death) and run.stop_at is None and self._supply.ready:
            run.workers[worker.local_rank] = self._supply.start(worker.assignment)
            return
        self._watch.last_look(run)
        self._announce_start()
        if death.exit_code == 0 and self._farewell.unsaved(run.order.attempt):
            self._keep(self._tell_when_saved(run, worker, death))
        elif run.is_news(death):
            self._link.fact(exited(self._me.node, worker, death))
        if not run.alive:
            run.gone.set()

    async def _tell_when_saved(self, run: Attempt, worker: Worker, death: Death) -> None:
        """A worker has finished once its last step is in safety: with the news the job may end."""
        await self._farewell.until_saved(run.order.attempt)
        if run.is_news(death):
            self._link.fact(exited(self._me.node, worker, death))

    def _died_before_its_rank(self, worker: Worker, death: Death) -> bool:
        return bool(worker.pid) and death.at < worker.assigned_at

    def _shown_run(self) -> Attempt | None:
        return None if self._run is None or self._run.stopped else self._run

    # ── orders ──

    def _hello(self) -> Hello:
        run = self._run
        return Hello(
            protocol=PROTOCOL,
            node=self._me.node,
            name=self._me.name,
            address=self._me.address,
            workers=self._count,
            pid=os.getpid(),
            attempt=run.order.attempt if run is not None else 0,
            running=run is not None and bool(run.alive),
            kept=self._keeper.seq,
            term=self._keeper.term,
        )

    def _on_order(self, order: Order) -> None:
        """While the node ends nothing is started or stopped any more."""
        match order:
            case Keep():
                self._link.answer(self._keeper.keep(order))
            case GiveJournal():
                for part in self._keeper.copy():
                    self._link.answer(part)
            case LookForApi():
                self._keep(self._look_for_api())
            case Leave():
                self._on_leave(order)
            case Start():
                if not self._end.done():
                    self._on_start(order)
            case Stop():
                if not self._end.done():
                    self._on_stop(order)
            case _:
                assert_never(order)

    async def _look_for_api(self) -> None:
        self._link.answer(ApiSeen(answers=await api_answers(os.environ)))

    def _on_leave(self, order: Leave) -> None:
        """The job's end decides the exit status, even if something else ends the node already."""
        note(f"agent: dismissed: {order.reason}")
        self._dismissed = True
        if order.exit_code is not None:
            self._status = order.exit_code
        self._ask_end(0.0)

    def _on_start(self, order: Start) -> None:
        if order.attempt <= max(self._newest, self._fenced):
            return
        self._newest = order.attempt
        if self._supply.ready:
            self._launch(order)
        else:
            self._waiting = order

    def _launch(self, order: Start) -> None:
        now = time.monotonic()
        if self._run is not None:  # never both: the controller should have stopped it
            self._begin_stop(self._run, now)
            self._kill(self._run)
        if self._around.attempts_kept is not None:
            self._supply.workers.drop_logs(order.attempt - self._around.attempts_kept)
        self._supply.use_store(order.store)
        run = self._run = Attempt(order)
        for local_rank in range(self._count):
            run.workers[local_rank] = self._supply.start(self._assignment(order, local_rank))
        self._warm_at = float("inf") if self._instrumented else now + WARM_AFTER_START_S
        self._announce_start()

    def _assignment(self, order: Start, local_rank: int) -> Assignment:
        return Assignment(
            attempt=order.attempt,
            rank=order.node_rank * order.workers_per_node + local_rank,
            local_rank=local_rank,
            world_size=order.node_count * order.workers_per_node,
            redo_until=order.redo_until,
            env=environment.rank_environment(self._job, order, local_rank),
        )

    def _on_stop(self, order: Stop) -> None:
        if order.attempt > max(self._newest, self._fenced):
            self._drop_fresh_store()
        self._fenced = max(self._fenced, order.attempt)
        if self._waiting is not None and self._waiting.attempt <= self._fenced:
            self._waiting = None
        run = self._run
        if run is None or run.stopped or run.order.attempt > order.attempt:
            self._keep(self._answer_stop(run, order.attempt))
            return
        if order.save and run.stop_at is None and self._farewell.can(run.order.attempt):
            self._keep(self._save_and_stop(order))
            return
        first = run.stop_at is None
        self._begin_stop(run, time.monotonic())
        if order.grace_s > 0:  # a later order may shorten the grace time of an earlier one
            asyncio.get_running_loop().call_later(order.grace_s, self._kill, run)
        else:
            self._kill(run)
        if first:
            self._keep(self._finish_stop(run, order.attempt))

    async def _save_and_stop(self, order: Stop) -> None:
        """The whole job ends, but its machines stay."""
        began = time.monotonic()
        if self._places:
            await self._farewell.save(order.grace_s, node_goes=False, job_ends=True)
        left = max(0.1, order.grace_s - (time.monotonic() - began))
        if not self._end.done():
            self._on_stop(msgspec.structs.replace(order, grace_s=left, save=False))

    def _drop_fresh_store(self) -> None:
        """An attempt that never started here may have started elsewhere, and left words in it."""
        store = self._supply.fresh_store
        if store is not None:
            self._supply.use_store(store)
            self._supply.retire_store()

    def _begin_stop(self, run: Attempt, now: float) -> None:
        if run.stop_at is None:
            run.stop_at = now
            for worker in run.alive:
                self._supply.signal(worker, signal.SIGTERM)

    def _kill(self, run: Attempt) -> None:
        if run.alive:
            run.kill_at = time.monotonic()
            asyncio.get_running_loop().call_later(FORCE_AFTER_S, self._force, run)
        for worker in run.alive:
            self._supply.signal(worker, signal.SIGKILL)

    def _force(self, run: Attempt) -> None:
        """Its workers are still there: the forkserver itself must hang."""
        if run.alive and self._supply.ready:
            note("agent: workers outlive SIGKILL; killing their forkserver")
            self._supply.kill()

    async def _finish_stop(self, run: Attempt, number: int) -> None:
        await run.gone.wait()
        await end_strays(self._supply.spared)
        self._supply.retire_store()
        await self._answer_stop(run, number)
        run.stopped = True
        self._warm_at = time.monotonic() + WARM_AFTER_STOP_S

    async def _answer_stop(self, run: Attempt | None, number: int) -> None:
        store = await self._fresh_store()
        self._told_store = store
        progress = run.progress() if run is not None and run.order.attempt <= number else Progress()
        self._link.fact(
            WorkersStopped(node=self._me.node, attempt=number, store=store, progress=progress)
        )

    async def _fresh_store(self) -> Store | None:
        """The next store; None if there is none in time, or no forkserver yet: `NodeReady` will
        bring it later, and nobody waits for it who does not need it."""
        self._store_opened.clear()
        self._supply.open_store()
        if self._supply.fresh_store is None and self._supply.ready:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    await self._store_opened.wait()
        return self._supply.fresh_store

    # ── the end ──

    async def _end_workers(self, grace_s: float) -> None:
        """SIGTERM to every worker, SIGKILL after the grace time."""
        run = self._run
        if run is not None:
            self._begin_stop(run, time.monotonic())
        sig = signal.SIGTERM if grace_s > 0 else signal.SIGKILL
        for worker in self._supply.workers.warm.values():
            self._supply.signal(worker, sig)
        await self._until(lambda: not self._supply.workers.table, grace_s)
        if run is not None:
            self._kill(run)
        for worker in self._supply.workers.table.values():
            self._supply.signal(worker, signal.SIGKILL)
        await self._until(lambda: not self._supply.workers.table, CLOSE_S)

    async def _end_supply(self) -> None:
        self._supply.close()
        if not await self._until(lambda: self._supply.closed, CLOSE_S):
            self._supply.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await end_strays(frozenset)
        kill_carriers(self._me.node)

    async def _until(self, condition: Callable[[], bool], deadline_s: float) -> bool:
        end = time.monotonic() + deadline_s
        while not condition() and time.monotonic() < end:
            await asyncio.sleep(0.005)
        return condition()

    async def _say_goodbye(self) -> None:
        self._link.fact(NodeLeft(node=self._me.node))
        if self._dismissed:  # who said so knows already, and may not listen any more
            await self._until(lambda: self._link.all_sent or not self._link.connected, GOODBYE_S)
        elif self._link.connected:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    await self._link.flush()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _address_of(host: str, listener: socket.socket) -> str:
    """HOST:PORT."""
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{listener.getsockname()[1]}"
