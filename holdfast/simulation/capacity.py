"""One world of a scenario: the production controller, told the facts that a cluster would tell it.

A heap of what happens next drives a clock. Faults strike nodes, recoveries take the times of the
scenario, training is arithmetic (`training.py`), and the controller, its journal, its ledger and
the diagnosis are those of production. Facts about the whole attempt are one event each, so an
incident costs about a dozen events however many nodes there are; telemetry between faults, which
changes no decision, is left out.

Replicas (`replicas.nodes_each`) are the controller's `recovery.mode: replicas`: it decides who goes
on without whom, and when the others come back. Between two attempts all ranks that take part meet
anew, so every change of membership costs all of them the rendezvous. Kept workers do not start;
what is new stands at `join()` already, and costs the others only its copy of the state and its
first step. A step without some replicas takes as long as ever and is worth that much less.

Not modelled: slow nodes, faults of the network between two healthy nodes, the controller's own
death (the swarm does that), and nodes that break before they have joined.
"""

import gc
import heapq
import random
from collections.abc import Callable
from typing import Any, assert_never

import msgspec

from holdfast.actions import (
    AnyAction,
    AskNodes,
    AssignRank,
    CheckNodes,
    CollectEvidence,
    Diagnose,
    Dismiss,
    EndJob,
    Entry,
    Fence,
    KeepVersion,
    PrepareUpdate,
    ProfileSteps,
    StartAttempt,
    StopAttempt,
    Survey,
)
from holdfast.controller import Controller, Phase
from holdfast.controller.invariants import Watch
from holdfast.controller.policies.ladder import RESIZED
from holdfast.controller.policies.situation import Prices
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    DeadlinePassed,
    Diagnosed,
    JobSubmitted,
    Milestone,
    MilestoneReached,
    NodeJoined,
    NodeLost,
    NodeLostReason,
    NodeReady,
    NodesChecked,
    Progress,
    Progressed,
    Store,
    WorkerError,
    WorkerExited,
)
from holdfast.goodput import Bookkeeper, Bucket, Ledger
from holdfast.shell.bridge import Bridge
from holdfast.simulation.cluster import MachinePool
from holdfast.simulation.copies import NewestCopies, Restore
from holdfast.simulation.failures import Fault, Scope, faults
from holdfast.simulation.plan import Plan
from holdfast.simulation.result import CauseTally, Result
from holdfast.simulation.training import Reached, Training

HEARTBEAT_S = 5.0
FLUSH_BYTES = 1 << 20
SIGKILL = 9
SOON_S = 1e-6  # so that sums of seconds do not end before what they are of
DEVICE_ERROR = WorkerError(
    type="torch.AcceleratorError", message="CUDA error: unspecified launch failure"
)
Sink = Callable[[bytes], object]


def run(plan: Plan, seed: int, sink: Sink | None = None) -> Result:
    """Live through one world; `sink` gets the lines of the journal, without a header.

    Meanwhile Python's collector of cycles is off: a world makes no garbage in cycles, and looking
    for it takes a sixth of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return CapacityWorld(plan, seed, sink).run()
    finally:
        if collects:
            gc.enable()


class CapacityWorld:
    """One job on one cluster. Only what is on the heap changes it, in the order of time."""

    def __init__(self, plan: Plan, seed: int, sink: Sink | None = None) -> None:
        self.seed, self.now = seed, 0.0
        self._plan, self._times = plan, plan.scenario.times
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._pushed = 0
        self._rng = random.Random(f"{seed}/world")
        self._faults = faults(plan, seed)
        self._machines = MachinePool(plan.machines, plan.scenario.cluster)
        self._unserved = 0  # nodes asked for while none was free

        self.controller = Controller(plan.limits())
        self._state = self.controller.state
        self._bridge = Bridge(self._state, HEARTBEAT_S, 0.0)
        self._books = Bookkeeper(0.0)
        self._watch = Watch()
        self._lines = bytearray()
        self._encoder = msgspec.json.Encoder()
        self._sink = sink
        self._seq = self._journal_bytes = 0

        self._epoch = 0  # news of an attempt that was halted since is dropped
        self._alive = False  # workers run, and nothing has gone wrong yet
        self._training: Training | None = None
        self._reached: Reached | None = None  # where the halted attempt stood
        self._halted_at = 0.0
        self._done = 0  # steps that any attempt has done
        self._copies = NewestCopies(plan)
        self._rank_of: dict[str, int] = {}  # the last that a node had
        self._sizes: dict[int, int] = {}  # nodes of each attempt
        self._parked = self._killed = False  # workers are kept; some had failed
        self._broken: dict[str, Fault] = {}  # nodes whose device fails again

        self._struck: dict[str, int] = {}
        self._causes: list[str] = []  # of each incident, in their order
        self._replaced = self._waits = 0
        self._fewest = plan.spares

    def run(self) -> Result:
        """From the submission to the horizon, or to the end of the job."""
        self._tell(JobSubmitted())
        self._draw()
        while self._heap and self._heap[0][0] <= self._plan.horizon_s and not self._state.ended:
            deadline = self.controller.next_deadline()
            if deadline is not None and deadline < self._heap[0][0]:
                self.now = max(self.now, deadline)
                self._tell(DeadlinePassed())
                continue
            self.now, _, happen, about = heapq.heappop(self._heap)
            happen(*about)
        return self._close()

    def _after(self, delay_s: float, happen: Callable[..., None], *about: Any) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._pushed, happen, about))

    # ── the controller ──

    def _tell(self, event: AnyEvent, cause: str = RESIZED) -> None:
        """What a driver does with a fact: decide, write down, then carry out. `cause` is that of an
        incident which the fact opens."""
        actions = self.controller.handle(event, self.now)
        self._seq += 1
        entry = Entry(self._seq, self.now, event, tuple(actions), self.controller.choices)
        self._write(entry)
        self._books.add(entry)
        self._watch.check(self._state)
        self._causes += [cause] * (len(self._state.incidents) - len(self._causes))
        for action in actions:
            self._obey(action)

    def _write(self, entry: Entry) -> None:
        self._encoder.encode_into(entry, self._lines, -1)
        self._lines += b"\n"
        if len(self._lines) >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._journal_bytes += len(self._lines)
        if self._sink is not None:
            self._sink(bytes(self._lines))
        self._lines.clear()

    def _obey(self, action: AnyAction) -> None:
        match action:
            case AskNodes():
                for _ in range(action.count):
                    self._supply()
            case AssignRank():
                self._rank_of[action.node] = action.node_rank
                if self._state.attempt > 1:
                    self._replaced += 1
                    self._fewest = min(self._fewest, len(self._state.spares))
            case StartAttempt():
                self._start()
            case StopAttempt():
                self._stop(action)
            case Diagnose():
                self._after(0.0, self._diagnose, action)
            case Fence() | Dismiss():
                if self._machines.runs(action.node):
                    self._bury(action.node, self._plan.scenario.cluster.repair_s)
            case CheckNodes():
                self._after(Prices().check_s, self._checked, action)
            case EndJob() | Survey() | CollectEvidence():  # nobody leaves early or hangs here
                pass
            case PrepareUpdate() | KeepVersion() | ProfileSteps():  # nor asks for any of these
                pass
            case _:
                assert_never(action)

    def _checked(self, order: CheckNodes) -> None:
        """Every machine that is really broken is found."""
        found = {n: self._broken[n].name if n in self._broken else "" for n in order.nodes}
        self._tell(NodesChecked(found=found, attempt=order.attempt))

    def _diagnose(self, order: Diagnose) -> None:
        for event in self._bridge.carry_out(order, self.now)[1]:
            self._tell(event)
            if isinstance(event, Diagnosed) and self._state.phase is Phase.WAITING:
                self._waits += self._state.wait_deadline is not None

    # ── nodes ──

    def _supply(self) -> None:
        node = self._machines.take()
        if node is None:
            self._unserved += 1
        else:
            self._after(self._times.schedule_s + self._times.image_s, self._joined, node)

    def _joined(self, node: str) -> None:
        workers = self._plan.scenario.cluster.gpus_per_node
        self._tell(NodeJoined(node=node, name=node, address=node, workers=workers))
        self._after(self._times.warm_s, self._ready, node)

    def _ready(self, node: str) -> None:
        if self._machines.runs(node):
            self._tell(NodeReady(node=node, store=Store(node, 29500, True), instrumented=True))

    def _rank(self, node: str) -> int | None:
        """That it has, if it lives."""
        known = self._state.nodes.get(node)
        return known.node_rank if known is not None and self._machines.runs(node) else None

    def _bury(self, node: str, mean_s: float) -> None:
        """The node's life is over; its machine is repaired, or offered again, some time later."""
        machine = self._machines.end(node)
        self._broken.pop(node, None)
        rank = self._rank_of.pop(node, None)
        if rank is not None:
            self._copies.lost.add(rank)
        self._after(self._rng.expovariate(1 / mean_s), self._repaired, machine)

    def _repaired(self, machine: int) -> None:
        self._machines.repaired(machine)
        if self._unserved:
            self._unserved -= 1
            self._supply()

    # ── faults ──

    def _draw(self) -> None:
        fault = next(self._faults, None)
        if fault is not None:
            self._after(fault.at - self.now, self._strike, fault)

    def _strike(self, fault: Fault) -> None:
        self._draw()
        if fault.shows == "node" or fault.scope is Scope.SPARE:
            self._lose(fault)
            return
        node = self._state.ranks.get(fault.where)
        if self._alive and node is not None and self._machines.runs(node):
            self._fail(node, fault)

    def _victims(self, fault: Fault) -> list[str]:
        state = self._state
        match fault.scope:
            case Scope.MEMBER:
                found = [state.ranks.get(fault.where, "")]
            case Scope.SPARE:
                broken = fault.shows in ("node", "device")
                found = state.spares[fault.where : fault.where + 1] if broken else []
            case Scope.DRILL:
                found = [state.ranks.get(rank, "") for rank in range(fault.where)]
            case Scope.STORM:
                found = [n for n in self._machines.nodes() if self._rng.random() < fault.share]
            case _:
                found = self._machines.beside(fault.scope, fault.where)
        return [node for node in found if node in state.nodes and self._machines.runs(node)]

    def _lose(self, fault: Fault) -> None:
        """Nodes are gone at once, and the controller hears of it later."""
        victims = self._victims(fault)
        if not victims:
            return
        if any(self._rank(node) is not None for node in victims):
            self._halt()
        away = fault.scope is Scope.STORM
        mean_s = self._plan.mix.storms.away_s if away else self._plan.scenario.cluster.repair_s
        for node in victims:
            self._bury(node, mean_s)
        self._after(fault.detection_s, self._tell_lost, tuple(victims), fault)

    def _tell_lost(self, victims: tuple[str, ...], fault: Fault) -> None:
        for node in victims:
            lost = NodeLost(
                node=node,
                reason=NodeLostReason.SILENT,
                ago_s=fault.detection_s,
                detail=fault.name,
            )
            self._tell_fault(lost, fault if node is victims[0] else None)

    def _fail(self, node: str, fault: Fault) -> None:
        """Training stands still from now on; the controller hears of it later."""
        self._halt()
        if fault.stays:
            self._broken[node] = fault
        self._after(fault.detection_s, self._tell_exit, node, self._state.attempt, fault)

    def _tell_exit(self, node: str, attempt: int, fault: Fault) -> None:
        rank = self._rank(node)
        if rank is None:  # the node was lost meanwhile, and that is told
            return
        device = fault.shows == "device"
        exited = WorkerExited(
            node=node,
            attempt=attempt,
            rank=rank * self._plan.scenario.cluster.gpus_per_node,
            exit_code=1 if device else None,
            signal=None if device else SIGKILL,
            ago_s=fault.detection_s,
            progress=self._progress(),
            error=DEVICE_ERROR if device else None,
        )
        self._tell_fault(exited, fault)

    def _tell_fault(self, event: AnyEvent, fault: Fault | None) -> None:
        if fault is not None:
            self._struck[fault.name] = self._struck.get(fault.name, 0) + 1
        self._tell(event, fault.name if fault is not None else "node-lost")

    # ── the attempt ──

    def _start(self) -> None:
        self._epoch += 1
        self._alive, self._training, self._reached = True, None, None
        state, copies = self._state, self._copies
        self._sizes[state.attempt] = state.size
        replicas = self._plan.scenario.replicas.nodes_each
        restore = copies.among(state.ranks) if replicas else copies.choose()
        start_s = 0.0 if self._parked else self._times.start_s
        self._after(start_s / 2, self._milestone, self._epoch, Milestone.STARTED)
        self._after(start_s, self._milestone, self._epoch, Milestone.ARRIVED)
        joined_s = start_s + self._plan.rendezvous_s
        self._after(joined_s, self._milestone, self._epoch, Milestone.JOINED)
        self._after(joined_s + restore.seconds, self._restored, self._epoch, restore)

    def _restored(self, epoch: int, restore: Restore) -> None:
        if epoch != self._epoch:
            return
        plan, step = self._plan, restore.step
        self._copies.restored(restore, self._state.ranks)
        warmed = self._parked and not self._killed and restore.tier == "memory"  # nobody is new
        self._training = training = Training(
            begin=self.now,
            after=step,
            step_s=plan.scenario.step_s,
            first_s=0.0 if warmed else self._times.first_step_s,
            often=plan.memory,
            seldom=plan.remote,
        )
        self._milestone(epoch, Milestone.RESTORED, step)
        members = (node for node in self._broken if self._rank(node) is not None)
        again = min(members, default=None)
        if again is not None:
            self._after(training.end_of(1) - self.now, self._relapse, epoch, again)
            return
        self._after(training.end_of(1) - self.now, self._milestone, epoch, Milestone.FIRST_STEP)
        redone = training.end_of(self._done - step + 1)
        self._after(redone - self.now, self._caught_up, epoch, self._done + 1)

    def _relapse(self, epoch: int, node: str) -> None:
        """A device that a restart did not cure fails again in the first step."""
        if epoch == self._epoch:
            self._fail(node, self._broken[node])

    def _milestone(self, epoch: int, milestone: Milestone, step: int | None = None) -> None:
        if epoch == self._epoch:
            attempt = self._state.attempt
            self._tell(MilestoneReached(attempt=attempt, milestone=milestone, step=step))

    def _caught_up(self, epoch: int, step: int) -> None:
        if epoch == self._epoch:
            self._report()
            self._milestone(epoch, Milestone.CAUGHT_UP, step)

    def _report(self) -> None:
        if self._training is not None:
            self._reached, self._halted_at = self._training.reached(self.now), self.now
            self._tell(Progressed(attempt=self._state.attempt, progress=self._progress()))

    def _stop(self, order: StopAttempt) -> None:
        """At once; or, where that is wanted and nothing has failed, with a copy of a last step."""
        self._parked, self._killed = bool(order.park_s), bool(self._state.deaths)
        training = self._training
        if order.keeps and training is not None:
            last_s = training.end_of(training.steps_by(self.now) + 1) - self.now
            block_s = self._plan.memory.block_s
            self._after(last_s + block_s + SOON_S, self._leave, order, self._epoch)
            return
        self._halt()
        times, replicas = self._times, self._plan.scenario.replicas
        stop_s = replicas.park_steps * self._plan.scenario.step_s if order.park_s else 0.0
        if self._killed or not order.park_s:
            stop_s = max(stop_s, times.teardown_s)
        self._after(stop_s, self._stopped, order.attempt)

    def _leave(self, order: StopAttempt, epoch: int) -> None:
        state = self._state
        if epoch != self._epoch:  # something failed meanwhile: they are waited for, then ended
            if state.attempt == order.attempt and not state.stopped:
                self._parked = False
                self._after(order.grace_s + self._times.teardown_s, self._stopped, order.attempt)
            return
        self._halt()
        assert self._reached is not None, "it has trained"
        self._copies.own = self._copies.peer = self._reached.step
        stop_s = 0.0 if order.park_s else self._times.teardown_s
        self._after(stop_s, self._stopped, order.attempt)

    def _halt(self) -> None:
        """No step is completed any more, and no copy."""
        self._epoch += 1
        self._alive = False
        if self._training is None:
            return
        self._reached, self._halted_at = self._training.reached(self.now), self.now
        self._done = max(self._done, self._reached.step)
        self._copies.note(self._training, self.now)
        self._training = None

    def _progress(self) -> Progress:
        reached = self._reached
        if reached is None:
            return Progress()
        age_s = reached.step_ago_s + self.now - self._halted_at
        return Progress(step=reached.step, step_ago_s=age_s, snapshot_s=reached.save_s)

    def _stopped(self, attempt: int) -> None:
        first = self._state.ranks.get(0)
        store = None if first is None else Store(first, 29500, True)
        self._tell(AttemptStopped(attempt=attempt, store=store, progress=self._progress()))

    # ── the account ──

    def _close(self) -> Result:
        if not self._state.ended:
            self.now = self._plan.horizon_s
            self._report()
        ledger = self._books.at(None if self._state.ended else self._plan.horizon_s)
        self._flush()
        buckets = {name: s for name, s in self._weighed(ledger).items() if s}
        if self._state.ended:
            buckets["after_the_end"] = self._plan.horizon_s - ledger.wall_s
        return Result(
            seed=self.seed,
            ettr=buckets.get(Bucket.PRODUCTIVE, 0.0) / self._plan.horizon_s,
            buckets=buckets,
            causes=self._by_cause(ledger),
            incidents=len(self._state.incidents),
            replaced=self._replaced,
            waits=self._waits,
            spares_fewest=self._fewest,
            restores=self._copies.restores,
            events=self._seq,
            journal_bytes=self._journal_bytes,
            outcome=self._state.outcome,
        )

    def _weighed(self, ledger: Ledger) -> dict[str, float]:
        """Its buckets: the share of training that lacks for replicas that are away is degraded."""
        buckets, nodes = ledger.seconds(), self._plan.scenario.nodes
        for it in ledger.intervals:
            share = 1 - self._sizes.get(it.attempt, nodes) / nodes
            if share and it.bucket is Bucket.PRODUCTIVE:
                lacks_s = share * (it.end_ms - it.start_ms - sum(it.stalls)) / 1000
                buckets[Bucket.PRODUCTIVE] -= lacks_s
                buckets[Bucket.DEGRADED] += lacks_s
        return buckets

    def _by_cause(self, ledger: Ledger) -> dict[str, CauseTally]:
        lost: dict[str, float] = {}
        opened: dict[str, int] = {}
        for number, name in enumerate(self._causes, 1):
            bill = ledger.bills.get(number)
            lost[name] = lost.get(name, 0.0) + (bill.lost_ms / 1000 if bill else 0.0)
            opened[name] = opened.get(name, 0) + 1
        names = sorted(self._struck.keys() | opened.keys(), key=lambda n: (-lost.get(n, 0.0), n))
        return {
            name: CauseTally(self._struck.get(name, 0), opened.get(name, 0), lost.get(name, 0.0))
            for name in names
        }
