"""The agent of one node: orders in, facts out.

Everything that happens is a callback of one event loop: orders from the controller, news from the
supply of processes, signals, and a tick that looks at the progress pages. Carrying out an order
never waits; only the end of an attempt and the end of the agent are tasks, because they wait for
processes to die.
"""

import asyncio
import itertools
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import assert_never

import msgspec

from holdfast import bundles, compiled_code, learned_imports, meeting
from holdfast.agent import environment, gpu_use, looks, machine_check
from holdfast.agent.attempts import Attempts
from holdfast.agent.child import listen
from holdfast.agent.cloud_notices import provider as cloud_notices
from holdfast.agent.code_delivery import CodeDelivery
from holdfast.agent.compiled_code import CompiledHandle
from holdfast.agent.controller_connection import ControllerConnection, Order, RejectedError
from holdfast.agent.datasets import handle as datasets
from holdfast.agent.evidence import evidence_of
from holdfast.agent.health.find import find, root_of
from holdfast.agent.health.ports import TakenPorts
from holdfast.agent.health.traffic import TrafficMeter
from holdfast.agent.health.watch import HealthWatch
from holdfast.agent.job_versions import JobVersions
from holdfast.agent.journal_replica import JournalReplica
from holdfast.agent.leaving import Leaving
from holdfast.agent.metrics_file import MetricsFile
from holdfast.agent.node import ON_A_LAPTOP, AgentOptions, NodeIdentity
from holdfast.agent.node_end import NodeEnd
from holdfast.agent.node_processes import NodeProcesses, ProcessListener
from holdfast.agent.notes import note
from holdfast.agent.parts import NodeParts
from holdfast.agent.probes import Health
from holdfast.agent.processes import ProcessExit
from holdfast.agent.profile_taking import ProfileTaking
from holdfast.agent.progress_watch import ProgressWatch
from holdfast.agent.reach import reach
from holdfast.agent.ready_versions import ReadyVersions
from holdfast.agent.rendezvous_stores import RendezvousStores
from holdfast.agent.script_source import is_instrumented
from holdfast.agent.shutdown import CLOSE_S, end_processes, end_workers, say_goodbye, until
from holdfast.agent.standing_by import StandingBy
from holdfast.agent.step_repetition import StepRepetition
from holdfast.agent.stop import AttemptStop
from holdfast.agent.storage import facts, places, protocol
from holdfast.agent.storage.handle import StorageHandle
from holdfast.agent.storage.peer_connection import key_of, owner_of
from holdfast.agent.store_offer import StoreOffer
from holdfast.agent.tasks import AgentTasks
from holdfast.agent.tracker_handle import TrackerHandle
from holdfast.agent.urgent_saves import UrgentSaves
from holdfast.agent.version_trial import VersionTrial
from holdfast.agent.warm_up import WarmUp
from holdfast.agent.witness import api_answers
from holdfast.agent.workers import Worker, Workers
from holdfast.checkpoint.arena import Arena
from holdfast.checkpoint.storage_page import StoragePage
from holdfast.compiled_code import TakeCompiled
from holdfast.events import NodeUnfit, Progress
from holdfast.messages import (
    PROTOCOL,
    ApiSeen,
    CheckMachine,
    CodePart,
    EvidenceReply,
    Hello,
    Keep,
    Leave,
    LookForApi,
    MachineChecked,
    PrepareVersion,
    RepeatStep,
    Start,
    Stop,
    TakeEntryTimes,
    TakeEvidence,
    TakeStacks,
    UseVersion,
)
from holdfast.profiles import TakeProfile, TakeTracePart
from holdfast.spec import Job
from holdfast.versions import FIRST

FOUND_S = 15.0  # for durable tiers to say which attempts they know


class Agent:
    """One node from its start to its end."""

    def __init__(
        self,
        me: NodeIdentity,
        job: Job,
        environ: Mapping[str, str],
        options: AgentOptions = ON_A_LAPTOP,
    ) -> None:
        self._me = me
        self._job = job
        self._pod_log = options.pod_log
        self._places = places.places_of(job, environ)
        self._replica = JournalReplica()
        self._controller = ControllerConnection(
            me.folder, self._hello, self._on_order, self._replica.copy
        )
        instrumented = is_instrumented(environment.program_of(job))
        versions = JobVersions(job, me.folder / bundles.FOLDER, instrumented=instrumented)
        taken = TakenPorts()
        processes = self._make_processes(environ, options, versions, taken)
        arenas = [Arena(fd) for fd in processes.workers.arenas]
        storage_pages = [StoragePage(fd) for fd in processes.workers.storage_pages]
        end, tiers = NodeEnd(options.let_go, options.broken), bool(self._places)
        offer = StoreOffer(
            me.node, processes.stores, self._controller, instrumented=instrumented, has_tiers=tiers
        )
        metrics = MetricsFile(me.folder / "metrics.jsonl", draws=options.draws)
        announced = cloud_notices.of_node(job.recovery.cloud_notices, me.name, me.address, environ)
        self._parts = NodeParts(
            node=me.node,
            job=job,
            versions=versions,
            code=CodeDelivery(me.folder / bundles.FOLDER, self._controller.answer),
            controller=self._controller,
            watch=ProgressWatch(me.node, metrics, self._controller, processes.workers.arenas),
            health=self._make_health(environ, taken, announced),
            processes=processes,
            ready=ReadyVersions(processes),
            offer=offer,
            saves=UrgentSaves(arenas, storage_pages, processes.storage),
            warm_up=WarmUp(reports_steps=instrumented),
            tasks=AgentTasks(end.fail),
            end=end,
        )
        self._attempts = Attempts(self._parts)
        self._standing = StandingBy(self._parts)
        self._stop = AttemptStop(self._parts, self._attempts, self._standing, has_tiers=tiers)
        self.leaving = Leaving(self._parts, self._attempts, has_tiers=tiers, announced=announced)
        self._trial = VersionTrial(self._parts)
        self._repetition = StepRepetition(self._parts)
        self._profiles = ProfileTaking(self._parts, self._attempts, me.name, me.folder)

    def _make_health(
        self,
        environ: Mapping[str, str],
        taken: TakenPorts,
        announced: cloud_notices.MetadataWatch | None,
    ) -> HealthWatch:
        own = [place.where for place in self._places if place.own]
        shared = [place.where for place in self._places if not place.own]
        found = find(root_of(environ, self._me.name), [str(self._me.folder), *own], shared)
        far = () if announced is None else (announced,)
        return HealthWatch(self._me.node, [*found.present, taken], self._controller.fact, far=far)

    def _make_processes(
        self,
        environ: Mapping[str, str],
        options: AgentOptions,
        versions: JobVersions,
        taken: TakenPorts,
    ) -> NodeProcesses:
        me, job, ids = self._me, self._job, itertools.count(1)
        count = environment.worker_count(job, environ)
        workers = self._make_workers(count, options, ids, versions.instrumented)
        listener = listen(me.address, (options.storage_port, 0))
        address, wanted = _address_of(me.address, listener), (options.storage_port,)
        taken.used(me.address, wanted, listener.getsockname()[1], "storage")
        owner = owner_of(key_of((me.folder / "token").read_text().strip()))
        told = places.variables(job, self._places, address, owner)
        compiled = None
        if job.trains_with in ("pytorch", "jax"):
            compiled = me.folder.parents[1] / compiled_code.FOLDER
            environ = {**environment.compile_caches(compiled), **environ}
        own = me.folder / "nodes" / me.name
        told |= datasets.variables(job, own)
        if not job.uses_torch:
            told[meeting.KEY] = meeting.key_from((me.folder / "token").read_text())
        if job.warm.preload_imports:
            told[learned_imports.FILE] = str(me.folder / "imports.json")
        env = environment.node_environment(job, me.node, count, environ, told)
        setup = protocol.Setup(
            node=me.node,
            job=job.name,
            token_file=str(me.folder / "token"),
            arenas=tuple(workers.arenas),
            storage_pages=tuple(workers.storage_pages),
            listener=listener.detach(),
            places=self._places,
            copies=job.snapshots.copies,
            compiled=str(compiled or ""),
        )
        storage = StorageHandle(setup, env, self._on_storage_news, address)
        self._compiled = CompiledHandle(compiled, address, storage, self._controller)
        ports = options.store_ports
        stores = RendezvousStores(me.address, job.uses_torch, ids.__next__, taken, ports)
        program, preload = versions.program(FIRST), environment.preload_of(job)
        found = NodeProcesses(workers, env, program, preload, storage, stores)
        cache = me.folder.parents[1] / "datasets"
        found.datasets = datasets.DatasetsHandle(job, cache, own, env, self._controller.fact)
        if job.track:
            found.tracker = TrackerHandle(job, me.folder, self._places, env)
        return found

    def _make_workers(
        self, count: int, options: AgentOptions, ids: "itertools.count[int]", instrumented: bool
    ) -> Workers:
        cold, warm = environment.kinds_of(self._job, instrumented)
        return Workers(
            folder=self._me.folder,
            name=self._me.name,
            log_bytes=self._job.logs.max_bytes,
            warm_kind=warm,
            cold_kind=cold,
            new_id=ids.__next__,
            arenas=[Arena.create() for _ in range(count)],
            storage_pages=[StoragePage.create() for _ in range(count)],
            tell_output=not instrumented,
            progress=self._job.progress,
            pod_log=options.pod_log,
            attempts_kept=options.attempts_kept,
        )

    # ── life ──

    async def live(self) -> int:
        """Until dismissed, rejected, abandoned or asked by a signal; the exit status."""
        loop, processes, tasks = (
            asyncio.get_running_loop(),
            self._parts.processes,
            self._parts.tasks,
        )
        tasks.watch_callbacks()
        loop.add_signal_handler(signal.SIGCHLD, processes.reap)
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, self.leaving.ask, self._job.recovery.stop_grace_s)
        self._parts.health.look()  # a node that is sick says so before it says that it is ready
        await self._parts.health.settled()
        processes.open(self._listener())
        if self._places:
            processes.storage.open()
            loop.call_later(FOUND_S, self._parts.offer.attempts_found, 0)
        if self._job.recovery.check == "quick":
            self._parts.offer.hold()
            tasks.start(self._check_machine())
        if not processes.datasets.whole:
            tasks.start(processes.datasets.fetch(self._on_ready))
        tasks.start(self._ticks())
        tasks.start(self._talk())
        tasks.start(self._parts.health.run())
        tasks.start(self._parts.watch.idleness.run(self._attempts.alive))
        grace_s = await self._parts.end.asked()
        await end_workers(self._attempts.newest, processes, grace_s)
        if processes.tracker is not None:
            await processes.tracker.finish()
        await end_processes(processes, self._me.node)
        await say_goodbye(self._controller, self._me.node, self._parts.end)
        await tasks.cancel()
        if (pod_log := self._pod_log) is not None:
            await until(lambda: pod_log.idle, CLOSE_S)
        return self._parts.end.status

    def health(self) -> Health:
        """How the node is now."""
        run = self._attempts.newest
        progress = run.progress() if run is not None else Progress()
        return Health(
            name=self._me.name,
            machine=os.environ.get("HOLDFAST_MACHINE") or os.uname().nodename,
            counters=self._parts.watch.counters,
            readings=self._parts.health.readings,
            xids=self._parts.health.xids,
            registered=self._controller.welcomes > 0,
            connected=self._controller.connected,
            attempt=run.order.attempt if run is not None else 0,
            workers=len(run.alive) if run is not None else 0,
            step=progress.step,
            step_ago_s=progress.step_ago_s,
        )

    async def _check_machine(self) -> None:
        why = (await machine_check.look(self._me.node, self._places, self._controller.fact)).why
        if not why:
            self._parts.offer.release()
            return
        note(f"agent: this machine failed its checks: {why}")
        self._controller.fact(NodeUnfit(node=self._me.node, why=why))

    async def _talk(self) -> None:
        try:
            await self._controller.run()
        except RejectedError as why:
            note(f"agent: {why}")
            self._parts.end.ask(0.0)

    async def _ticks(self) -> None:
        while True:
            self._tick(time.monotonic())
            await asyncio.sleep(self._parts.watch.pause_s)

    def _tick(self, now: float) -> None:
        processes = self._parts.processes
        self._parts.watch.look(self._attempts.shown, now)
        if processes.tracker is not None:
            processes.tracker.look(self._attempts.shown, self._parts.watch.records_count)
        self._attempts.look_for_ends()
        self.leaving.look(time.time())
        processes.look(now)
        processes.storage.open_if_wanted()
        self._compiled.look(now)
        if self._controller.absent_s > self._job.recovery.controller_absence_s:
            note("agent: no controller for longer than recovery.controller_absence_s")
            self._parts.end.ask(0.0)
        can_warm = processes.ready and not self._parts.end.begun
        if can_warm and self._parts.warm_up.take_due(self._attempts.newest, now):
            processes.warm_up()
            processes.stores.open()

    # ── news from below ──

    def _listener(self) -> ProcessListener:
        return ProcessListener(
            on_ready=self._on_ready,
            on_forked=self._attempts.announce,
            on_death=self._on_death,
            on_store_lost=self._parts.offer.lost,
            on_store_failed=self._attempts.store_failed,
            on_broken=self._parts.end.fail,
        )

    def _on_ready(self) -> None:
        """There is a forkserver, and the data sets are here."""
        if not (self._parts.processes.ready and self._parts.processes.datasets.whole):
            return
        self._standing.hold_back()
        if self._attempts.shown is None:
            self._standing.tell_when_warm(lambda: self._attempts.shown is not None)
        self._parts.processes.stores.open()
        if self._attempts.shown is None:
            self._parts.processes.warm_up()
        self._attempts.start_waiting()

    def _on_death(self, worker: Worker, death: ProcessExit) -> None:
        """What broke under it, if anything did, is to be known before the verdict."""
        self._parts.health.look()
        self._attempts.died(worker, death)

    def _on_storage_news(self, news: protocol.AnyNews) -> None:
        """What has become of snapshots."""
        match news:
            case protocol.NewestAttempt():
                self._parts.offer.attempts_found(news.attempt)
            case protocol.UrgentSaved() | protocol.Settled():
                self._parts.saves.hear(news)
            case protocol.CompiledSeen():
                self._compiled.seen(news)
            case protocol.CompiledFetched():
                self._compiled.fetched(news)
            case protocol.PeerMeasured():
                self._controller.answer(MachineChecked(number=news.number, link=news.found))
            case protocol.Committed() | protocol.SaveFailed():
                if (fact := facts.of(news, self._me.node)) is not None:
                    self._controller.fact(fact)

    # ── orders ──

    def _hello(self) -> Hello:
        run = self._attempts.newest
        return Hello(
            protocol=PROTOCOL,
            node=self._me.node,
            name=self._me.name,
            address=self._me.address,
            workers=self._parts.processes.workers.count,
            pid=os.getpid(),
            attempt=run.order.attempt if run is not None else 0,
            running=run is not None and bool(run.alive),
            ordered=self._attempts.ordered,
            fenced=self._attempts.fenced,
            ready=self._parts.offer.told,
            kept=self._replica.seq,
            term=self._replica.term,
        )

    def _on_order(self, order: Order) -> None:
        """While the node ends nothing is started or stopped any more."""
        match order:
            case Keep():
                self._controller.answer(self._replica.keep(order))
            case LookForApi():
                self._parts.tasks.start(self._look_for_api())
            case TakeStacks() | TakeEntryTimes():
                self._parts.tasks.start(self._look(order))
            case TakeEvidence():
                self._parts.tasks.start(self._take_evidence(order))
            case PrepareVersion():
                self._parts.tasks.start(self._trial.prepare(order))
            case CodePart():
                self._parts.code.take(order)
            case CheckMachine():
                self._parts.tasks.start(self._check_again(order))
            case TakeProfile():
                self._parts.tasks.start(self._profiles.obey(order))
            case TakeTracePart():
                self._parts.tasks.start(self._profiles.hand_out(order))
            case TakeCompiled():
                self._compiled.take(order)
            case RepeatStep():
                self._parts.tasks.start(self._repetition.obey(order))
            case Leave():
                self._repetition.end()
                self._parts.end.obey(order)
            case Start():
                self._repetition.end()
                if not self._parts.end.begun:
                    repeats, gone = self._repetition.running, self._repetition.gone
                    self._attempts.start(order, gone if repeats else None)
            case UseVersion():
                self._parts.tasks.start(self._trial.use(order, self._attempts.shown))
            case Stop():
                self._repetition.end()
                if not self._parts.end.begun:
                    self._stop.obey(order)
            case _:
                assert_never(order)

    async def _look_for_api(self) -> None:
        self._controller.answer(ApiSeen(answers=await api_answers(os.environ)))

    async def _check_again(self, order: CheckMachine) -> None:
        run, storage = self._attempts.newest, self._parts.processes.storage
        if order.peer and run is not None and run.alive:  # it would be in the way of training
            self._controller.answer(MachineChecked(number=order.number))
            return
        if order.peer:
            storage.measure(protocol.MeasurePeer(number=order.number, address=order.peer))
            return
        if not order.only:
            storage.open_once()  # others may measure their links with this node then
        found = await machine_check.look(
            self._me.node, self._places, self._controller.fact, order.only
        )
        if not found.why and not order.only:
            self._parts.offer.release()  # it may have failed before it was ready
        address = "" if order.only else storage.address
        told = MachineChecked(number=order.number, address=address, **found._asdict())
        self._controller.answer(told)

    async def _look(self, order: TakeStacks | TakeEntryTimes) -> None:
        workers, count = self._attempts.alive(), self._parts.processes.workers.count
        environ = {**os.environ, **self._job.env}
        gpu_busy = gpu_use.during(order, self._parts.health, environ, count)
        if not isinstance(order, TakeStacks):
            self._controller.answer(await looks.obey(order, workers, gpu_busy))
            return
        root = root_of(os.environ, self._me.name)
        trying = asyncio.gather(*map(reach, order.peers))
        meter = await asyncio.to_thread(TrafficMeter, root) if order.peers else None
        with self._parts.watch.idleness.disturbed():
            seen = await looks.obey(order, workers, gpu_busy)
        if meter is None:
            self._controller.answer(seen)
            return
        reached, traffic = tuple(await trying), await asyncio.to_thread(meter.read)
        told = msgspec.structs.replace(seen, reached=reached, traffic=traffic)
        self._controller.answer(told)

    async def _take_evidence(self, order: TakeEvidence) -> None:
        run = self._attempts.newest
        asked_for = run if run is not None and run.order.attempt == order.attempt else None
        places = [Path(place.where) for place in self._places if place.where.startswith("/")]
        trying = asyncio.gather(*map(reach, order.peers))
        found = await evidence_of(
            self._me.name,
            asked_for,
            order.since_s,
            [self._me.folder, Path("/dev/shm"), *places],
            self._attempts.mask,
            self._parts.health.readings,
        )
        reached = tuple(await trying)
        self._controller.answer(EvidenceReply(number=order.number, found=found, reached=reached))


def _address_of(host: str, listener: socket.socket) -> str:
    """HOST:PORT."""
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{listener.getsockname()[1]}"
