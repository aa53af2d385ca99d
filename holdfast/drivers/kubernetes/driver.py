"""The Kubernetes driver: nodes are agents in pods; everything else is the shell's.

Pods are watched, and what exists is always compared with what should: a driver that was restarted,
or whose watch was cut, ends up at the same place. Effects on the cluster never hold up recovery:
they are tasks that try until they succeed, while the attempt is already on its way.
"""

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast import bundles, journal
from holdfast.actions import AskNodes, EndJob, Entry, Fence, Outcome
from holdfast.controller import Controller, State
from holdfast.drivers.job_books import JobBooks
from holdfast.drivers.job_history import JobHistory
from holdfast.drivers.job_metrics import JobMetrics, MetricsServer
from holdfast.drivers.kubernetes import ending
from holdfast.drivers.kubernetes.admitted_size import AdmittedSize
from holdfast.drivers.kubernetes.cluster import (
    PODS,
    ApiError,
    Change,
    Cluster,
)
from holdfast.drivers.kubernetes.doubt import Doubt
from holdfast.drivers.kubernetes.engine_size import EngineSize
from holdfast.drivers.kubernetes.images import why_not
from holdfast.drivers.kubernetes.job_token import keep_token
from holdfast.drivers.kubernetes.kept_logs import KeptLogs
from holdfast.drivers.kubernetes.left_machines import Machines
from holdfast.drivers.kubernetes.machine_conditions import MachineConditions
from holdfast.drivers.kubernetes.machine_notes import MachineNotes
from holdfast.drivers.kubernetes.machine_watch import MachineWatch
from holdfast.drivers.kubernetes.manifests.kueue import queue_of
from holdfast.drivers.kubernetes.manifests.names import JOB, ROLE
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.drivers.kubernetes.origin import JobOrigin
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.published_stacks import PublishedStacks, Respondents
from holdfast.drivers.kubernetes.record import Record, Recorded
from holdfast.drivers.kubernetes.removal import Removal
from holdfast.drivers.kubernetes.roster import TRAINS, Gone, Roster, life
from holdfast.drivers.kubernetes.shipped_code import ShippedCode
from holdfast.drivers.kubernetes.supply import RETRY_LAST_S, RETRY_S, Supply, whenever
from holdfast.drivers.kubernetes.talk import say
from holdfast.drivers.kubernetes.watch import follow, said_once
from holdfast.drivers.kubernetes.wishes import Wishes
from holdfast.drivers.notifier import Notifier
from holdfast.drivers.otlp.telemetry import Telemetry
from holdfast.events import AnyEvent, ControllerResumed, JobSubmitted, ScaleRequested, StopRequested
from holdfast.messages import ChecksReply, Leave, StacksReply, UpdateJob
from holdfast.profiles import ProfileReply, ProfileRequest, TracePart, TracePartRequest
from holdfast.shell.clock import Clock
from holdfast.shell.host import Host
from holdfast.shell.preparation import Tried
from holdfast.shell.replicas import FileLines
from holdfast.shell.shell import Settings, Shell

REGISTER_S = 60.0  # for an agent to connect once its container runs
RECONNECT_S = 5.0  # for an agent to find a controller that came back
CONNECTS_A_SECOND = 1_000  # in a large job they stand in line
LISTEN = ""  # every address, of IPv4 and of IPv6

Observer = Callable[[Entry, State], None]


class Identity(NamedTuple):
    """Which controller this is."""

    token: str
    belongs: JobOrigin
    term: int
    machine: str  # it runs on; "" if that is not known
    obeyed: int = 0  # newest attempt that an agent was told of before it
    diverged: str = ""  # where this version has decided otherwise than its journal says


class KubernetesDriver:
    """One job in one namespace. `run` drives it to its end."""

    def __init__(
        self,
        request: Request,
        journal_path: Path,
        controller: Controller,
        book: journal.Journal,
        cluster: Cluster,
        me: Identity,
    ) -> None:
        self._request, self._me, self._cluster = request, me, cluster
        self._state = controller.state
        self._resumed = book.seq > 0
        timeout_s = request.job.recovery.heartbeat_timeout_s
        reconnect_s = RECONNECT_S + request.pods / CONNECTS_A_SECOND
        settings = Settings(timeout_s, reconnect_s, me.term)
        self._clock = Clock(controller.state.now)
        self._shell = Shell(
            controller, book, self, settings, self._clock.now, FileLines(journal_path)
        )
        self.host = Host(self._shell, self._clock, me.token, timeout_s)
        self._roster = Roster(controller.state)
        self.doubt = Doubt(self.host, self._far)
        self._shell.decisions.explain = self._explained
        self._shell.on_api_seen = self.doubt.heard
        self._shell.doubt = self.doubt.standing
        self._shell.can_hand_over = lambda: self.doubt.is_sure()
        owner = me.belongs.owner
        respondents = Respondents(
            self._asked_for_stacks, self._asked_for_checks, self._shell.checks.repetitions.ask,
            self._asked_for_profile, self._asked_for_trace_part, self._asked_for_native,
        )  # fmt: skip
        self._stacks = PublishedStacks(cluster, request.name, owner, respondents)
        self._code = ShippedCode(
            cluster, request.name, journal_path.parent / bundles.FOLDER, self._asked_to_update
        )
        self._shell.code_part = self._code.part
        self._wishes = Wishes(
            cluster, request.name, self._asked_to_stop, self._stacks.wanted, self._asked_to_scale,
            self._code.hear,
        )  # fmt: skip
        progress = self._shell.nodes.bridge.progress
        self._books = JobBooks(
            request.name, journal_path, controller.state, self._clock.now, progress.newest,
            self._waits_for,
        )  # fmt: skip
        metrics = JobMetrics(request.job, self._state, self._books, progress, self._clock.now)
        self._scraped = MetricsServer(request.name, metrics.exposition, journal_path.parent)
        folder, late, now = journal_path.parent, self._shell.stragglers.lateness, self._clock.now
        self._history = JobHistory(folder, self._state, progress, late, now, curve=True)
        self._notifier = Notifier(request.job, self._state, folder, self._books.goodput, now)
        self._telemetry = Telemetry(request.job, self._state, self._books, journal_path, now)
        self._record = Record(cluster, request.name, journal_path, self._look, owner)
        self._output = KeptLogs(cluster, request.name, owner)
        avoided = self._avoided = Machines(cluster, request)
        self._removal = Removal(cluster, self._roster, avoided, self._output)
        self._supply = Supply(cluster, request, controller.state, self._roster, avoided)
        self._supply.images.put = self._shell.put
        self._shell.preparation.try_image = self._try_image
        self._notes = MachineNotes(cluster, request, controller.state, self._roster.machine)
        self._size = EngineSize(cluster, request, controller.state, self._roster)
        self._admitted = AdmittedSize(cluster, request, controller.state, self._shell.put)
        self._departures = ending.Departures(self._there)
        here = f"{cluster.namespace}/{request.name}"
        conditions = MachineConditions(controller.state, self._roster.machine, here)
        self._machines = MachineWatch(cluster, conditions, avoided, self._shell.put)

    def _explained(self, event: AnyEvent) -> AnyEvent:
        """A fact with what the API says of it."""
        return self._machines.explained(self._roster.explained(event))

    async def run(self, observe: Observer, *, port: int, metrics_port: int) -> Outcome | None:
        """From the first fact to the last agent's end; None: a newer controller has taken over."""

        def seen(entry: Entry, state: State) -> None:
            self._books.add(entry)
            self._machines.observe(entry.event)
            self._avoided.heard(entry.event, state, self._roster.machine)
            self._notes.hear(entry)
            self._size.look()
            if self._supply.images.ever:
                self._supply.look()
            self._notifier.heard()
            self._telemetry.heard(entry)
            observe(entry, state)

        self._shell.decisions.observe = seen
        self._telemetry.begin()
        await self.host.server.listen(LISTEN, port)
        await self._scraped.open(LISTEN, metrics_port, say)
        await self._output.load()
        await self._see_what_exists()
        if self._resumed:
            await self._stacks.load()
        existing = self._roster.existing()
        resumed = ControllerResumed(
            existing=tuple(existing), obeyed=self._me.obeyed, diverged=self._me.diverged
        )
        first = resumed if self._resumed else JobSubmitted()
        self._shell.begin(first, existing if self._resumed else ())
        duties = {
            "watching pods": self._watch,
            "watching machines": self._machines.run,
            "recording machine history": self._notes.run,
            "watching the lease": self.doubt.watch,
            "keeping the token": self._keep_token,
            "reading requests": self._wishes.hear,
            "publishing the record": self._record.run,
            "recording metrics": lambda: self._history.run(say),
            "publishing output": self._output.run,
            "publishing stacks": self._stacks.run,
            "fetching code": self._code.run,
        }
        if self._request.engine == "pods":  # a duty that has nothing to do would end, and fail
            duties["creating pods"] = self._supply.run
            duties["recording machines to avoid"] = lambda: whenever(
                self._avoided.changed, self._avoided.save, _not_recorded
            )
        if self._admitted.may_differ:
            duties["reading the admitted size"] = self._admitted.run
        self._notifier.begin(say)
        if self._size.can_change:
            duties["resizing the engine's object"] = self._size.run
        try:
            outcome = await self.host.run(duties, say, self._end)
            if self._shell.replaced_by:
                say(f"a newer controller runs (term {self._shell.replaced_by}): this one exits")
            elif self._shell.cut_off:
                say("no heartbeat from any node on another machine: another controller takes over")
            return outcome
        finally:
            await self._removal.close()
            if not self._shell.replaced_by:
                await self._output.publish()
                await self._record.publish()
            await self._notifier.close()
            await self._telemetry.close()
            self._scraped.close()
            await self.host.server.close()

    async def _see_what_exists(self) -> None:
        """Until the API answers: nothing can be decided without knowing who is there."""
        wait_s = RETRY_S
        while True:
            try:
                found = await self._cluster.listed(PODS, Pod, labels=self._label)
                await self._avoided.load()
            except ApiError as error:
                say(f"cannot read what there is of {self._request.name}: {error}")
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

    # ── what the shell orders ──

    def make(self, _order: AskNodes) -> None:
        """Pods, if they are ours to make."""
        self._supply.look()

    def remove(self, order: Fence, done: Callable[[Sequence[AnyEvent]], None]) -> None:
        """The pod of a node; nobody waits for its end."""
        self._removal.remove(order)
        done(())

    def _try_image(self, image: str, tried: Tried) -> None:
        async def attempt() -> None:
            why = await why_not(self._cluster, self._request, image)
            tried(why, self._shell.nodes.connected, self._clock.now())

        self._removal.keep(attempt())

    def leave(self, order: EndJob) -> Leave:
        """With the exit status that the engine understands."""
        return Leave(
            reason=order.reason, exit_code=ending.exit_code(self._request.engine, order.outcome)
        )

    def near(self, node: str) -> bool:
        """On the machine that this controller runs on."""
        return bool(self._me.machine) and self._roster.machine(node) == self._me.machine

    def _far(self) -> list[str]:
        """Nodes that can tell how it is elsewhere; where all share our machine, these."""
        connected = sorted(self._shell.nodes.connected)
        return [node for node in connected if not self.near(node)] or connected

    def _there(self) -> set[str]:
        return {*self._shell.nodes.connected, *self._roster.running()}

    def connections_changed(self) -> None:
        """Somebody may have left."""
        self._departures.changed()

    def disk_full(self, full: bool) -> None:
        """Say so; the job trains on, but nothing new is decided."""
        what = (
            "is full: nothing is decided, not even a stop, until there is space"
            if full
            else "has free space again"
        )
        say(f"the disk {what}")

    async def _end(self, outcome: Outcome) -> None:
        """Agents have been told to leave; then the engine ends."""
        await self._departures.wait(ending.leave_s(self._request, outcome))
        await self._output.settle(self._roster.by_rank())
        await ending.finish(
            self._cluster, self._request, outcome, self._roster, self._record.publish
        )

    # ── facts ──

    async def _keep_token(self) -> None:
        await keep_token(self._cluster, self._request.name, self._me.belongs.owner, self._me.token)

    async def _watch(self) -> None:
        await follow(
            self._cluster, PODS, Pod, self._label, self._listed, self._changed,
            on_trouble=said_once("pods"),
        )  # fmt: skip

    def _listed(self, pods: Sequence[Pod]) -> None:
        for pod in pods:
            self._save_output(pod)
        self._gone(self._roster.relist(pods))
        for pod in self._roster.pods.values():
            self._restarted(pod)
            self._expect(pod)
        self._supply.listed()

    def _changed(self, change: Change[Pod]) -> None:
        if change.type == "DELETED":
            self._gone(self._roster.lose(change.object))
        else:
            self._save_output(change.object)
            self._gone(self._roster.see(change.object))
            self._restarted(change.object)
            self._expect(change.object)
        self._supply.look()
        self._departures.changed()

    def _gone(self, nodes: list[Gone]) -> None:
        for node, how, planned in nodes:
            self._shell.nodes.died(node, how, planned=planned)

    def _restarted(self, pod: Pod) -> None:
        """Its kubelet may have started its container again."""
        self._gone(self._roster.restarts.ended(pod, lambda: self._shell.nodes.connected))

    def _save_output(self, pod: Pod) -> None:
        if pod.metadata.labels.get(ROLE, "node") in TRAINS and self._output.wants(pod):
            self._removal.keep(self._output.take(pod))

    def _expect(self, pod: Pod) -> None:
        """Its container runs, or did, so its agent should be heard of."""
        node = life(pod)
        self._machines.look(node)
        known = node in self._state.nodes or node in self._state.lost
        if pod.begun and not known and pod.uid in self._roster.pods:
            self._shell.nodes.expect_once(node, REGISTER_S)

    def _asked_to_stop(self, by: str, now: bool) -> None:
        self._shell.put(StopRequested(by=by, now=now))

    def _asked_to_scale(self, by: str, nodes: int) -> None:
        self._shell.put(ScaleRequested(by=by, nodes=nodes))

    def _asked_to_update(self, order: UpdateJob) -> None:
        self._shell.client(order, lambda _done: None)

    def _asked_for_stacks(self, reply: Callable[[StacksReply], None]) -> None:
        self._shell.hangs.ask(self._shell.nodes.connected, self._clock.now(), reply)

    def _asked_for_native(
        self, reply: Callable[[StacksReply], None], rank: int | None = None
    ) -> None:
        connected, now = self._shell.nodes.connected, self._clock.now()
        self._shell.hangs.ask(connected, now, reply, native=True, rank=rank)

    def _asked_for_checks(self, reply: Callable[[ChecksReply], None]) -> None:
        self._shell.checks.ask(self._shell.nodes.connected, self._clock.now(), reply)

    def _asked_for_profile(
        self, wish: ProfileRequest, reply: Callable[[ProfileReply], None]
    ) -> None:
        self._shell.profiles.ask(wish, self._shell.nodes.connected, self._clock.now(), reply)

    def _asked_for_trace_part(
        self, wish: TracePartRequest, reply: Callable[[TracePart], None]
    ) -> None:
        connected = self._shell.nodes.connected
        self._shell.profiles.parts.ask(wish, connected, self._clock.now(), reply)

    def status(self) -> bytes:
        """`JobStatus` as JSON."""
        return msgspec.json.encode(self._books.status())

    def _look(self) -> Recorded:
        return Recorded(*self._books.look())

    def _waits_for(self) -> str | None:
        queue = queue_of(self._request.job)
        trouble = self._supply.trouble or self._size.trouble
        return trouble or self._roster.waiting_for(self._state.wanted, queue)


def _not_recorded(error: ApiError) -> None:
    say(f"the machines that new pods avoid cannot be recorded: {error}")


def stop_by_signal(driver: KubernetesDriver, end: Callable[[], object]) -> None:
    """SIGTERM takes only the controller away, never the job: the next one goes on."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, end)
    loop.add_signal_handler(signal.SIGINT, driver.host.asked_to_stop, "Ctrl-C")
