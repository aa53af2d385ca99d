"""A fleet that answers the controller's orders with facts, as a thousand real nodes would; pure.

Nodes join and get ready, start and stop their workers, and one fault an hour strikes: in turn a
killed worker, after which some of its peers fail too, and a lost node. Between faults the reduced
telemetry of the whole job comes every five seconds. Everything follows from the orders and a few
counters, so a stream can be recorded once and handled again as often as a measurement needs.
"""

from collections import deque
from collections.abc import Iterable

from holdfast.actions import AnyAction, AskNodes, Diagnose, StartAttempt, StopAttempt
from holdfast.controller import Controller, Limits, State
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    Diagnosed,
    JobSubmitted,
    Milestone,
    MilestoneReached,
    NodeJoined,
    NodeLost,
    NodeLostReason,
    NodeReady,
    Progress,
    Progressed,
    Store,
    WorkerError,
    WorkerExited,
)

WORKERS = 8  # of each node
STEPS = 600  # an hour between faults, a step in six seconds
TELEMETRY = 720  # reports of the whole job in that hour
VICTIMS = 16  # peers whose own failure is heard of before they are stopped
BATCH = 1_000  # facts that wait together are handled together, as `drive` does

Handled = tuple[AnyEvent, float]


def record(nodes: int, faults: int) -> list[list[Handled]]:
    """The facts of a job of `nodes` nodes through `faults` faults, in the batches they came in."""
    fleet = Fleet()
    controller = Controller(Limits(node_count=nodes, spare_count=4, max_restarts=1_000_000))
    waiting: deque[AnyEvent] = deque([JobSubmitted()])
    batches: list[list[Handled]] = []
    now = 1_700_000_000.0
    while waiting and len(controller.state.incidents) <= faults:
        batch = [waiting.popleft() for _ in range(min(BATCH, len(waiting)))]
        now += 1.0
        batches.append([(event, now) for event in batch])
        decided = [action for event in batch for action in controller.handle(event, now)]
        for action in decided:
            waiting.extend(fleet.answer(action, controller.state))
    return batches


class Fleet:
    """All nodes of one job; it owns the counters that make names, ports and steps new."""

    def __init__(self) -> None:
        self._nodes = 0
        self._stores = 0
        self._step = 0

    def answer(self, action: AnyAction, state: State) -> Iterable[AnyEvent]:
        """The facts that carrying out this order leads to."""
        match action:
            case AskNodes():
                return [fact for _ in range(action.count) for fact in self._node()]
            case StartAttempt():
                return [*self._started(action), *self._trains(action), self._fault(state)]
            case StopAttempt():
                return [*_consequences(state), self._stopped(state)]
            case Diagnose():
                return [_verdict(action)]
            case _:
                return []

    def _node(self) -> list[AnyEvent]:
        self._nodes += 1
        node = f"7d3c2a10-0000-4000-8000-{self._nodes:012x}"
        name, address = f"node-{self._nodes}", f"10.0.{self._nodes >> 8}.{self._nodes & 255}"
        joined = NodeJoined(node=node, name=name, address=address, workers=WORKERS)
        return [joined, NodeReady(node=node, store=self._store(address), instrumented=True)]

    def _store(self, address: str) -> Store:
        self._stores += 1
        return Store(address, 20_000 + self._stores % 40_000, True)

    def _started(self, start: StartAttempt) -> list[AnyEvent]:
        first = (Milestone.STARTED, Milestone.ARRIVED, Milestone.JOINED, Milestone.RESTORED)
        last = (Milestone.FIRST_STEP, Milestone.CAUGHT_UP)
        return [
            *(_milestone(start.attempt, milestone, self._step) for milestone in first),
            *(_milestone(start.attempt, milestone, self._step + 1) for milestone in last),
        ]

    def _trains(self, start: StartAttempt) -> list[AnyEvent]:
        begin = self._step
        self._step += STEPS
        steps = (begin + STEPS * (i + 1) // TELEMETRY for i in range(TELEMETRY))
        return [Progressed(attempt=start.attempt, progress=_progress(step)) for step in steps]

    def _fault(self, state: State) -> AnyEvent:
        rank = state.attempt * 37 % state.world_size
        node = state.ranks[rank // WORKERS]
        if state.attempt % 2:
            return _exited(state, rank, signal=9, ago_s=0.01)
        return NodeLost(node=node, reason=NodeLostReason.SILENT, ago_s=5.0, detail="silent for 5 s")

    def _stopped(self, state: State) -> AnyEvent:
        first = state.nodes.get(state.ranks.get(0, ""))
        store = self._store(first.address) if first is not None else None
        return AttemptStopped(attempt=state.attempt, store=store, progress=_progress(self._step))


def _milestone(attempt: int, milestone: Milestone, step: int) -> MilestoneReached:
    return MilestoneReached(attempt=attempt, milestone=milestone, ago_s=0.02, step=step)


def _progress(step: int) -> Progress:
    return Progress(step=step, step_ago_s=1.25, data_wait_s=3.5, snapshot_s=12.75)


def _consequences(state: State) -> list[AnyEvent]:
    """Peers of the failed worker end with an error of the connection."""
    first = state.attempt * 53 % state.world_size
    ranks = [(first + i) % state.world_size for i in range(VICTIMS)]
    return [_exited(state, rank) for rank in ranks if rank // WORKERS in state.ranks]


def _exited(
    state: State, rank: int, signal: int | None = None, ago_s: float = 0.005
) -> WorkerExited:
    error = WorkerError(
        type="RuntimeError",
        message="[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer",
        file="/work/train.py",
        line=71,
        traceback="Traceback (most recent call last):\n" + "  File ...\n" * 12,
    )
    return WorkerExited(
        node=state.ranks[rank // WORKERS],
        attempt=state.attempt,
        rank=rank,
        exit_code=None if signal else 1,
        signal=signal,
        ago_s=ago_s,
        progress=_progress(state.max_step or 0),
        error=None if signal else error,
        log=f"logs/attempt-{state.attempt}/rank-{rank}.log",
    )


def _verdict(action: Diagnose) -> Diagnosed:
    return Diagnosed(
        attempt=action.attempt,
        cause="worker-killed",
        summary="a worker was killed by SIGKILL",
        confidence=0.9,
        rank=action.exits[0].rank if action.exits else None,
        also_failed=max(0, len(action.exits) - 1),
    )
