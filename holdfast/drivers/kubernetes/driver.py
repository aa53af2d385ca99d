"""The Kubernetes driver: nodes are agents in pods; everything else is the switchboard's.

Pods are watched, and what exists is always compared with what should: a driver that was restarted,
or whose watch was cut, ends up at the same place. Effects on the cluster never hold up recovery:
they are tasks that try until they succeed, while the attempt is already on its way.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import msgspec

from holdfast import journal
from holdfast.actions import AnyAction, AskNodes, EndJob, Entry, Fence, Outcome
from holdfast.controller import Controller, State
from holdfast.drivers import report
from holdfast.drivers.base import Observer, Receipt, drive
from holdfast.drivers.kubernetes import ending, machines
from holdfast.drivers.kubernetes.cluster import (
    CONFIG_MAPS,
    PODS,
    ApiError,
    Change,
    Cluster,
)
from holdfast.drivers.kubernetes.keepers import Keepers
from holdfast.drivers.kubernetes.kept_logs import KeptLogs
from holdfast.drivers.kubernetes.manifests.kueue import queue_of
from holdfast.drivers.kubernetes.manifests.names import JOB, STOP
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.metrics import Metrics
from holdfast.drivers.kubernetes.origin import Origin
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.record import Record, Recorded
from holdfast.drivers.kubernetes.roster import ROLE, TRAINS, Gone, Roster, life
from holdfast.drivers.kubernetes.supply import RETRY_LAST_S, RETRY_S, Supply
from holdfast.drivers.kubernetes.talk import say
from holdfast.drivers.kubernetes.watch import follow
from holdfast.drivers.links import wait_closed
from holdfast.drivers.switchboard import Switchboard
from holdfast.events import AnyEvent, ControllerResumed, JobSubmitted
from holdfast.goodput import Bookkeeper, Ledger, to_goodput
from holdfast.messages import Leave
from holdfast.status import JobStatus

REGISTER_S = 60.0  # for an agent to connect once its container runs
LEAVE_S = 15.0  # for agents to end by themselves when the job is over
FENCED_S = 5.0  # between two looks whether a machine is known to be dead
ASKED_S = 2.0  # between two looks at the wish to stop
LISTEN = "0.0.0.0"


class KubernetesDriver:
    """One job in one namespace. `run` drives it to its end."""

    def __init__(
        self,
        request: Request,
        journal_path: Path,
        controller: Controller,
        cluster: Cluster,
        token: str,
        belongs: Origin,
        term: int,
    ) -> None:
        self._request = request
        self._controller = controller
        self._state = controller.state
        self._cluster = cluster
        self._roster = Roster(controller.state)
        timeout_s = request.job.recovery.heartbeat_timeout_s
        self._board = Switchboard(controller.state, timeout_s, token, self.status, self)
        self._keepers = Keepers(self._board.links, journal_path, controller.state, term)
        self._metrics = Metrics()
        self._books = Bookkeeper(journal.read_header(journal_path).created_at)
        for entry in journal.entries(journal_path):
            self._books.add(entry)
        self._record = Record(cluster, request.name, journal_path, self._look, belongs.owner)
        self._output = KeptLogs(cluster, request.name, belongs.owner)
        self._machines = machines.Machines(cluster, request)
        self._tasks: set[asyncio.Task[None]] = set()
        self._supply = Supply(cluster, request, controller.state, self._roster, self._machines)
        self._all_gone = asyncio.Event()

    async def run(
        self, book: journal.Journal, observe: Observer, *, port: int, metrics_port: int
    ) -> Outcome:
        """From the first fact to the last agent's end."""
        board = self._board
        await board.links.listen(LISTEN, port)
        self._metrics.serve(metrics_port)

        def seen(entry: Entry, state: State) -> None:
            self._books.add(entry)
            observe(entry, state)

        await self._output.load()
        await self._see_what_exists()
        board.put(self._first(resumed=book.seq > 0))
        duties = [
            asyncio.create_task(duty)
            for duty in (board.tick(), self._watch(), self._supply.run(), self._hear_wishes(),
                         self._record.run(), self._output.run())
        ]  # fmt: skip
        try:
            return await drive(self._controller, book, self, board.queue, board.clock, seen)
        finally:
            await wait_closed(*duties, *self._tasks)
            await self._output.publish()
            await self._record.publish()
            await board.links.close()

    def ask_to_stop(self, by: str) -> None:
        """First cleanly, then at once."""
        self._board.asked_to_stop(by)

    def _first(self, *, resumed: bool) -> AnyEvent:
        if not resumed:
            return JobSubmitted()
        return ControllerResumed(existing=tuple(self._roster.existing()))

    async def _see_what_exists(self) -> None:
        """Until the API answers: nothing can be decided without knowing who is there."""
        wait_s = RETRY_S
        while True:
            try:
                found = await self._cluster.listed(PODS, Pod, labels=self._label)
            except ApiError as error:
                say(f"cannot list the pods of {self._request.name}: {error}")
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_LAST_S)
            else:
                self._gone(self._roster.relist(found.items))
                for pod in self._roster.pods.values():
                    self._expect(pod)
                return

    @property
    def _label(self) -> str:
        return f"{JOB}={self._request.name}"

    # ── orders ──

    async def perform(self, action: AnyAction) -> None:
        """Carry out one order."""
        if isinstance(action, EndJob):
            await self._end(action)
            return
        events = await self._board.send(action)
        match action:
            case AskNodes():
                self._supply.look()
            case Fence():
                self._fence(action)
            case _:
                pass
        self._board.put(*events)

    async def settled(self, receipts: Sequence[Receipt]) -> None:
        """What was decided is on the disk: copy it to the keepers, then tell the senders."""
        await self._keepers.copy()
        await self._board.settled(receipts)

    def disk_full(self, full: bool) -> None:
        """Say so; the job trains on, but nothing new is decided."""
        say("the disk is full: no decision can be written" if full else "there is room again")

    def _fence(self, order: Fence) -> None:
        """Nothing waits for the pod's end: whatever an old attempt still does is ignored, because
        each attempt has a number, a rendezvous store and connections of its own."""
        pod = self._roster.alone(order.node)
        if pod is None:
            return
        machine = pod.spec.node_name
        if order.blamed and machine:
            self._keep(self._machines.leave(machine, order.reason))
        self._keep(self._remove(pod))

    async def _remove(self, pod: Pod) -> None:
        """Evict, because some engines count a plain deletion as a failure; else delete."""
        await self._output.glance(pod)
        wait_s = RETRY_S
        while pod.uid in self._roster.pods:
            try:
                if not await self._cluster.evict(pod.metadata.name, uid=pod.uid, grace_s=1):
                    await self._cluster.delete(PODS, pod.metadata.name, uid=pod.uid, grace_s=1)
                await self._force(pod)
                return
            except ApiError as error:
                say(f"pod {pod.metadata.name} cannot be removed yet: {error}")
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_LAST_S)

    async def _force(self, pod: Pod) -> None:
        """A pod of a dead machine stays for ever, and some engines wait for it. It is dropped only
        once the cluster itself says that nothing runs there any more."""
        while pod.uid in self._roster.pods:
            if await self._machines.fenced(pod.spec.node_name):
                await self._cluster.delete(PODS, pod.metadata.name, uid=pod.uid, grace_s=0)
                return
            await asyncio.sleep(FENCED_S)

    def _keep(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            say(f"a task failed: {error!r}")

    # ── the end ──

    async def _end(self, order: EndJob) -> None:
        """Agents first, each with the exit status its engine understands; then the engine."""
        leave = Leave(
            reason=order.reason, exit_code=ending.exit_code(self._request.engine, order.outcome)
        )
        self._board.farewell = leave  # for those whose connection breaks just now
        for node in self._board.links.connected:
            await self._board.links.send(node, leave)
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._until_all_left()
        except TimeoutError:
            say("some agents have not left in time")
        await self._output.settle(self._roster.by_rank())
        await ending.finish(self._cluster, self._request, order.outcome, self._roster.pods.values())

    async def _until_all_left(self) -> None:
        """Until their pods have ended too: a launcher asks us for the end, and what is seen to have
        ended by itself is left for people to read its output. Some engines start what has ended
        again at once; nobody waits for those, which would go on until the engine is suspended."""
        waited = self._there()
        while waited & self._there():
            self._all_gone.clear()
            await self._all_gone.wait()

    def _there(self) -> set[str]:
        return {*self._board.links.connected, *self._roster.running()}

    # ── facts ──

    async def _watch(self) -> None:
        await follow(self._cluster, PODS, Pod, self._label, self._listed, self._changed)

    def _listed(self, pods: Sequence[Pod]) -> None:
        for pod in pods:
            self._save_output(pod)
        self._gone(self._roster.relist(pods))
        for pod in self._roster.pods.values():
            self._expect(pod)
        self._supply.listed()

    def _changed(self, change: Change[Pod]) -> None:
        if change.type == "DELETED":
            self._gone(self._roster.lose(change.object))
        else:
            self._save_output(change.object)
            self._gone(self._roster.see(change.object))
            self._expect(change.object)
        self._supply.look()
        self._all_gone.set()

    def _gone(self, nodes: list[Gone]) -> None:
        for node, how in nodes:
            self._board.died(node, how)

    def _save_output(self, pod: Pod) -> None:
        if pod.metadata.labels.get(ROLE, "node") in TRAINS and self._output.wants(pod):
            self._keep(self._output.take(pod))

    def _expect(self, pod: Pod) -> None:
        """Its container runs, so its agent should be heard of."""
        node = life(pod)
        known = node in self._state.nodes or node in self._state.lost
        if pod.running and not known and pod.uid in self._roster.pods:
            self._board.expect_once(node, REGISTER_S)

    def disconnected(self, node: str) -> None:
        """An agent's connection broke."""
        self._keepers.gone(node)
        self._all_gone.set()

    async def _hear_wishes(self) -> None:
        """People ask for a stop by an annotation: it waits there while no controller runs."""
        heard = ""
        while True:
            try:
                body = await self._cluster.get(CONFIG_MAPS, f"{self._request.name}-job")
                wish = str(_annotations(body).get(STOP, ""))
            except ApiError:
                wish = heard
            if wish != heard:
                heard = wish
                self._board.put_stop("holdfast stop", now=wish == "now")
            await asyncio.sleep(ASKED_S)

    def status(self) -> bytes:
        """`JobStatus` as JSON."""
        return msgspec.json.encode(self._status(self._ledger()))

    def _look(self) -> Recorded:
        """What people see from outside."""
        ledger = self._ledger()
        status = self._status(ledger)
        self._metrics.observe(status)
        incidents = tuple(report.incidents(self._state, ledger))
        return Recorded(status, incidents, to_goodput(self._request.name, ledger))

    def _ledger(self) -> Ledger:
        return self._books.at(None if self._state.ended else self._board.clock.now())

    def _status(self, ledger: Ledger) -> JobStatus:
        """While the job waits for nodes it says what these wait for."""
        status = report.job_status(
            self._request.name,
            self._state,
            ledger,
            controller="ended" if self._state.ended else "alive",
            telemetry=self._board.bridge.progress.newest(),
        )
        if status.phase != "waiting":
            return status
        request = self._request
        waits = self._supply.trouble or self._roster.waiting_for(
            request.pods, queue_of(request.job)
        )
        return msgspec.structs.replace(status, waiting_for=waits or status.waiting_for)


def _annotations(body: Body) -> dict[str, str]:
    return body.get("metadata", {}).get("annotations") or {}


def stop_by_signal(driver: KubernetesDriver, end: Callable[[], object]) -> None:
    """SIGTERM takes only the controller away, never the job: the next one goes on."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, end)
    loop.add_signal_handler(signal.SIGINT, driver.ask_to_stop, "Ctrl-C")
