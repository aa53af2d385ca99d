"""The controller: `handle(event, now)` changes the state and returns orders.

It owns no clock, no I/O, no thread and no randomness, so the same object runs a laptop, a cluster
and a simulation, and replaying the same facts gives the same decisions. Facts about a past attempt
or a node that was given up are ignored; "asked to stop" and "known to be stopped" are two facts.
"""

from typing import assert_never

from holdfast.actions import AnyAction, Dismiss, EndJob, Fence, Outcome, StopAttempt
from holdfast.controller import (
    arrivals,
    attempts,
    checkpoints,
    corruption,
    hangs,
    health,
    incidents,
    leaving,
    machines,
    nodes,
    numerics,
    profiles,
    recovery,
    repetitions,
    resizing,
    shift,
    sizes,
    skipping,
    stragglers,
    updates,
    versions,
    workers,
)
from holdfast.controller.phases import TRAINING, Phase
from holdfast.controller.state import Limits, Node, NodeState, State
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    CheckpointCommitted,
    CheckpointFailed,
    CollectivesShifted,
    ControllerResumed,
    DeadlinePassed,
    Diagnosed,
    EvidenceTaken,
    ExitGroup,
    HandedOver,
    HangJudged,
    HangSuspected,
    HealthChanged,
    JobSubmitted,
    LossPlateaued,
    Milestone,
    MilestoneReached,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeLostReason,
    NodePreparing,
    NodeReady,
    NodesChecked,
    NodesMet,
    NodeUnfit,
    NumbersBroke,
    NumbersSpiked,
    OrdersLost,
    Progress,
    Progressed,
    RepetitionRequested,
    ReplicasDiffer,
    ScaleRequested,
    StopRequested,
    StragglersFound,
    Surveyed,
    UpdatePrepared,
    UpdateRequested,
    WorkerExited,
    WorkersExited,
)
from holdfast.profiles import StepsProfiled, StepsSlowed
from holdfast.status import Choice

QUIET_S = 60.0  # a script that prints nothing for longer after its start is taken to train
SPOKEN_S = 2.0  # that it has to live for after its first words, which may be a traceback
STEP_WAIT_S = 600.0  # so is one that has done steps before and does none for longer


class Controller:
    """One job's decisions. `state` may be read by anybody and is changed only by `handle`;
    `choices` were made about the fact that was heard last."""

    def __init__(self, limits: Limits, state: State | None = None) -> None:
        self.state = state if state is not None else State(limits=limits)
        self.choices: tuple[Choice, ...] = ()

    def handle(self, event: AnyEvent, now: float) -> list[AnyAction]:
        """Hear one fact at time `now` (seconds; a clock that steps back is ignored)."""
        state = self.state
        state.now = max(state.now, now)
        actions = _after_the_end(state, event) if state.ended else _dispatch(state, event)
        self.choices, state.choices = tuple(state.choices), []
        return actions

    def next_deadline(self) -> float | None:
        """When `DeadlinePassed` is due, or None."""
        return min(self.state.deadlines, default=None)


def _dispatch(state: State, event: AnyEvent) -> list[AnyAction]:
    match event:
        case AttemptStopped():
            return _attempt_stopped(state, event)
        case WorkerExited():
            return _worker_exited(state, event)
        case WorkersExited():
            return _workers_exited(state, event)
        case Progressed():
            return _progressed(state, event)
        case MilestoneReached():
            return _milestone_reached(state, event)
        case NodeReady():
            return _node_ready(state, event)
        case NodeJoined():
            return arrivals.joined(state, event)
        case NodePreparing():
            return _node_preparing(state, event)
        case NodeUnfit() | NodesChecked():
            return _node_unfit(state, event)
        case OrdersLost():
            return _orders_lost(state, event)
        case NodeLost():
            return _node_lost(state, event)
        case NodeLeft():
            why = event.failed or (f"it left: {event.detail}" if event.detail else "it left")
            return _node_gone(state, event.node, why, 0.0, planned=not event.failed)
        case Diagnosed():
            return _diagnosed(state, event)
        case HangSuspected():
            return hangs.suspected(state, event)
        case CollectivesShifted():
            return shift.shifted(state, event)
        case StragglersFound():
            return stragglers.found(state, event)
        case HangJudged():
            return hangs.judged(state, event)
        case HealthChanged():
            return health.changed(state, event)
        case EvidenceTaken():
            incidents.keep_evidence(state, event)
            return []
        case CheckpointCommitted() | CheckpointFailed():
            return _checkpoint(state, event)
        case NumbersBroke():
            return numerics.broke(state, event)
        case NumbersSpiked():
            return numerics.spiked(state, event)
        case LossPlateaued():
            return numerics.plateaued(state, event)
        case StepsSlowed() | StepsProfiled():
            return profiles.heard(state, event)
        case ReplicasDiffer():
            return corruption.differ(state, event)
        case Surveyed():
            return leaving.surveyed(state, event)
        case DeadlinePassed():
            return _deadline_passed(state)
        case StopRequested():
            return _stop_requested(state, event)
        case ScaleRequested():
            return resizing.scaled(state, event)
        case UpdateRequested() | UpdatePrepared() | RepetitionRequested():
            return _requested(state, event)
        case JobSubmitted():
            return _submitted(state, event)
        case HandedOver() | NodesMet() | ControllerResumed():
            return _changes_hands(state, event)
        case _:
            assert_never(event)


def _submitted(state: State, event: JobSubmitted) -> list[AnyAction]:
    state.started_at = state.now
    versions.inherit(state, event.version)
    return attempts.try_start(state)


def _requested(
    state: State, event: UpdateRequested | UpdatePrepared | RepetitionRequested
) -> list[AnyAction]:
    """People want something of a job that trains, and it goes on."""
    match event:
        case UpdateRequested():
            return updates.requested(state, event)
        case UpdatePrepared():
            return updates.prepared(state, event)
        case RepetitionRequested():
            return repetitions.requested(state, event)


def _after_the_end(state: State, event: AnyEvent) -> list[AnyAction]:
    match event:
        case NodeJoined():
            return [Dismiss(node=event.node, reason="the job has ended")]
        case ControllerResumed():
            assert state.outcome is not None
            return [EndJob(outcome=state.outcome, reason=state.why)]
        case _:
            return []


# ── nodes ─────────────────────────────────────────────────────────────────────────────────────


def _node_ready(state: State, event: NodeReady) -> list[AnyAction]:
    node = state.nodes.get(event.node)
    if node is None:
        return []
    if state.start is None or event.store != state.start.store:  # old news, told again
        node.store = event.store
    state.instrumented = state.instrumented or event.instrumented
    state.known_attempt = max(state.known_attempt, event.attempt)
    node.warm = event.warm or node.state is NodeState.MEMBER
    nodes.ready(state, node)
    more = nodes.top_up(state, f"{node.name} is ready, and others may be")
    return [*more, *(attempts.try_start(state) or health.review(state) or _review(state))]


def _node_preparing(state: State, event: NodePreparing) -> list[AnyAction]:
    """The job waits for it for as long as it comes further."""
    node = state.nodes.get(event.node)
    if node is None or node.state is not NodeState.JOINING:
        return []
    state.preparing.pop(event.node, None)  # the newest comes last
    state.preparing[event.node] = event.what
    if state.phase is Phase.WAITING and event.moved and len(state.ranks) < state.size:
        state.wait_deadline = None  # it begins anew
    return attempts.try_start(state)


def _review(state: State) -> list[AnyAction]:
    """Whether to change what trains: first how many, then which version."""
    return (
        resizing.review(state)
        or updates.review(state)
        or repetitions.review(state)
        or machines.review(state)
    )


def _orders_lost(state: State, event: OrdersLost) -> list[AnyAction]:
    """Attempts may run, or have run, that are not known here: all up to the newest are stopped, and
    no number is given twice."""
    trains = event.attempt == state.attempt and state.phase in TRAINING
    if event.attempt < state.attempt or not (trains or event.attempt > state.attempt):
        return []
    return attempts.overtaken(state, event.attempt)


def _node_lost(state: State, event: NodeLost) -> list[AnyAction]:
    if event.reason is NodeLostReason.STUCK:  # it was given up before: only for the account
        incidents.note(state, "Fence", event.detail)
        return []
    why = event.detail or str(event.reason)
    return _node_gone(state, event.node, why, event.ago_s, planned=event.planned)


def _node_gone(
    state: State, node_id: str, why: str, ago_s: float, *, planned: bool = False
) -> list[AnyAction]:
    if node_id in state.lost:
        return []
    fence = Fence(node=node_id, reason=why)
    node = nodes.remove(state, node_id, why)
    if node is None:
        return [fence, *arrivals.stillborn(state, why)]
    actions: list[AnyAction] = [fence]
    if node.node_rank is not None:
        actions += _member_gone(state, node, why, ago_s, planned=planned)
    elif state.phase is not Phase.CLOSING:
        machines.tell(state, f"spare {node.name} {incidents.gone(planned)}: {why}")
    if not state.ended and state.phase is not Phase.CLOSING:
        actions += arrivals.gone(state, node, why, planned=planned)
        actions += attempts.try_start(state)
    return actions


def _member_gone(
    state: State, node: Node, why: str, ago_s: float, *, planned: bool
) -> list[AnyAction]:
    match state.phase:
        case Phase.STARTING | Phase.RUNNING if not attempts.all_finished(state, node):
            incidents.open_for_node(state, node, why, ago_s, planned=planned)
            lost, grace_s = f"{node.name} was lost", state.limits.restart_grace_s
            return attempts.stop(state, Phase.RECOVERING, lost, grace_s, parks=True)
        case Phase.RECOVERING | Phase.WAITING:
            incidents.node_lost_meanwhile(state, node, why, planned=planned)
            return []
        case _:
            return []


def _node_unfit(state: State, event: NodeUnfit | NodesChecked) -> list[AnyAction]:
    """A machine that failed its checks trains nothing; after a few in a row no other is asked."""
    if isinstance(event, NodesChecked):
        return _nodes_checked(state, event)
    node = state.nodes.get(event.node)
    if node is None or node.state is NodeState.MEMBER:
        return []
    machines.failed(state, node, event.why)
    return _failed(state, node, event.why, told=False)


def _failed(state: State, node: Node, found: str, *, told: bool) -> list[AnyAction]:
    """`told`: others have told meanwhile what they have found."""
    if not machines.shared(state, node):
        if actions := machines.compare_with_another(state, node, found):
            return actions
        if not told and state.limits.checks == "spares":
            machines.keep(
                state, node, found, "no other machine has reported the result of that check"
            )
            return []
    state.doubted.pop(node.node, None)
    why = f"{node.name} failed its checks: {found}"
    reason = machines.innocent(state, node)
    if reason and state.limits.checks == "spares":
        machines.keep(state, node, found, reason)
        return []
    nodes.remove(state, node.node, why)
    kept = f"its machine is not excluded: {reason}" if reason else "its machine is excluded"
    machines.tell(state, f"spare {node.name} is replaced: {why}; {kept}")
    fence = Fence(node=node.node, reason=why, blamed=not reason)
    many = len(state.failed_checks) >= arrivals.MAX_STILLBORN
    if many and arrivals.lacks_nodes(state):
        return [fence, *arrivals.without_more(state, why)]
    if many or state.phase is Phase.CLOSING:
        return [fence]
    return [fence, *nodes.top_up(state, why)]


def _nodes_checked(state: State, event: NodesChecked) -> list[AnyAction]:
    """Spares that fail are replaced; members go on, or what failed is decided now."""
    unclear = [node_id for node_id in event.found if machines.is_unclear(state, event, node_id)]
    actions = recovery.when_checked(state, event)
    for node_id, why in event.found.items():
        node = state.nodes.get(node_id)
        judged = state.limits.checks == "spares" or node_id in state.doubted
        if node is None or not why:
            continue
        if node.state is NodeState.MEMBER:
            actions += machines.compare_member(state, node, why, unclear=node_id in unclear)
        elif judged:
            actions += _failed(state, node, why, told=len(event.found) > 1)
    for node_id, why in machines.unanswered(state, event):
        actions += _failed(state, state.nodes[node_id], why, told=False)
    return actions or health.review(state) or resizing.review(state) or updates.review(state)


# ── workers ───────────────────────────────────────────────────────────────────────────────────


def _training(state: State) -> None:
    if state.phase is Phase.STARTING:
        state.move(Phase.RUNNING, f"attempt {state.attempt} trains")
        sizes.trains(state)


def _speaks(state: State, ago_s: float) -> None:
    """A script that reports no steps has said something: that may have been its last words."""
    _training(state)
    if state.open_incident is not None:
        state.spoke_at, state.quiet_deadline = state.now - ago_s, state.now + SPOKEN_S


def _trains(state: State, since: float) -> None:
    """A script that reports no steps was seen to do one or, where none have been seen so far, lives
    on after its first words; or it has been at work for long enough."""
    state.quiet_deadline = None
    _training(state)
    incidents.close(state, state.now - since)


def _worker_exited(state: State, event: WorkerExited) -> list[AnyAction]:
    if not workers.counts(state, event):
        return []
    _note_step(state, event.progress)
    return workers.exited(state, (ExitGroup(kind="", first=event),))


def _workers_exited(state: State, event: WorkersExited) -> list[AnyAction]:
    if event.attempt != state.attempt:
        return []
    _note_step(state, event.progress)
    return workers.exited(state, event.groups)


def _attempt_stopped(state: State, event: AttemptStopped) -> list[AnyAction]:
    awaited = state.phase in (Phase.RECOVERING, Phase.CLOSING) and not state.stopped
    if not awaited or event.attempt != state.attempt:
        return []
    state.stopped = True
    sizes.stopped(state)
    _note_step(state, event.progress)
    first = state.nodes.get(state.ranks.get(0, ""))
    if first is not None:
        first.store = event.store or first.store
    incidents.note_parked(state, event)
    state.times.kept = event.parked > 0
    nodes.step_back(state, event.unready)
    return recovery.when_stopped(state)


def _note_step(state: State, progress: Progress) -> None:
    if progress.step is not None:
        step = numerics.finite(state, progress.step)
        state.max_step = max(state.max_step or 0, step)
        state.reached = max(state.reached or 0, step)
        checkpoints.passed(state)


def _progressed(state: State, event: Progressed) -> list[AnyAction]:
    if event.attempt == state.attempt:
        _note_step(state, event.progress)
        sizes.paced(state, event.progress)
        state.standstill = ""
    return []


def _milestone_reached(state: State, event: MilestoneReached) -> list[AnyAction]:
    if event.attempt != state.attempt or event.milestone in state.milestones:
        return []
    if state.phase not in TRAINING:
        _restored_late(state, event)
        return []
    state.milestones.append(event.milestone)
    match event.milestone:
        case Milestone.STARTED if not state.instrumented:
            _training(state)
            if state.open_incident is not None and state.spoke_at is None:
                state.quiet_deadline = state.now + (STEP_WAIT_S if state.steps_seen else QUIET_S)
        case Milestone.OUTPUT if not (state.instrumented or state.steps_seen):
            _speaks(state, event.ago_s)
        case Milestone.STEPPED if not state.instrumented:
            state.steps_seen = True
            _trains(state, state.now - event.ago_s)
        case Milestone.ARRIVED:
            state.instrumented = True
            sizes.arrived(state, event.ago_s)
        case Milestone.RESTORED if event.step is not None:
            recovery.restored(state, event.step)
            incidents.resumed_after(state, event.step)
            skipping.restored(state, event.step, event.skipped)
        case Milestone.FIRST_STEP:
            _training(state)
        case Milestone.CAUGHT_UP | Milestone.FINISHED:
            _note_step(state, Progress(step=event.step))
            replaced = incidents.has(state, "AssignRank")
            incidents.close(state, event.ago_s)
            if replaced:  # not all that should be could be replaced at once
                return health.review(state) or _review(state)
        case _:
            pass
    return _review(state)


def _restored_late(state: State, event: MilestoneReached) -> None:
    """It is being stopped: one rank has told of its first step, which is worth nothing, before all
    have told what they go on from."""
    stopping = state.phase is Phase.RECOVERING and not state.stopped
    if stopping and event.milestone is Milestone.RESTORED and event.step is not None:
        state.milestones.append(event.milestone)
        recovery.restored(state, event.step)
        skipping.restored(state, event.step, event.skipped)


def _checkpoint(state: State, event: CheckpointCommitted | CheckpointFailed) -> list[AnyAction]:
    """Those of a past attempt count as well: what is committed can be gone on from. One of this
    attempt also says how far it has come, which is otherwise told every few seconds only."""
    if isinstance(event, CheckpointCommitted):
        checkpoints.committed(state, event)
        if event.attempt == state.attempt:
            _note_step(state, Progress(step=event.step))
    else:
        checkpoints.failed(state, event)
    return []


# ── the job ───────────────────────────────────────────────────────────────────────────────────


def _diagnosed(state: State, event: Diagnosed) -> list[AnyAction]:
    waiting = state.phase is Phase.RECOVERING and state.stopped
    if not waiting or event.attempt != state.attempt:
        return []
    return recovery.after_verdict(state, event)


def _stop_requested(state: State, event: StopRequested) -> list[AnyAction]:
    grace_s = 0.0 if event.now else state.limits.stop_grace_s
    why = f"{event.by} asked to stop"
    match state.phase:
        case Phase.WAITING:
            return attempts.end(state, Outcome.STOPPED, why)
        case Phase.CLOSING if event.now:
            state.stop = StopAttempt(attempt=state.attempt, grace_s=0.0, reason=why)
            return [state.stop]
        case Phase.CLOSING:
            return []
        case _:
            save = attempts.can_save(state) and not event.now
            return attempts.stop(state, Phase.CLOSING, why, grace_s, save=save)


def _deadline_passed(state: State) -> list[AnyAction]:
    at, shrink_at = state.now, state.sizing.shrink_deadline
    machines.recheck(state)
    if state.ask_at is not None and at >= state.ask_at:
        return nodes.top_up(state, state.held_back)
    if state.held_until is not None and at >= state.held_until and (left := health.review(state)):
        return left
    if shrink_at is not None and at >= shrink_at:
        return attempts.try_start(state)
    if state.wait_deadline is not None and at >= state.wait_deadline:
        return _waited_too_long(
            state, f"timed out after {state.limits.node_wait_s:g} s: {state.why}"
        )
    if state.start_deadline is not None and state.now >= state.start_deadline:
        return recovery.waited(state)
    if state.quiet_deadline is not None and state.now >= state.quiet_deadline:
        _trains(state, state.now if state.spoke_at is None else state.spoke_at)
    if state.leave_deadline is not None and state.now >= state.leave_deadline:
        return leaving.look(state)
    return _review(state)


def _waited_too_long(state: State, why: str) -> list[AnyAction]:
    """For a node; or for the store of one that has a rank: another can take that."""
    state.wait_deadline = None
    if len(state.ranks) < state.size:
        return arrivals.without_more(state, why)
    return _node_gone(state, state.ranks[0], why, 0.0)


def _changes_hands(
    state: State, event: HandedOver | NodesMet | ControllerResumed
) -> list[AnyAction]:
    if isinstance(event, ControllerResumed):
        return _resumed(state, event)
    state.handed_over = 0 if isinstance(event, NodesMet) else state.handed_over + 1
    return []


def _resumed(state: State, event: ControllerResumed) -> list[AnyAction]:
    """Repeat the orders that may not have been carried out, and strike off who is gone."""
    alive = set(event.existing)
    state.wait_deadline = None  # nobody waited while there was no controller
    state.sizing.short_since = state.sizing.shrink_deadline = None
    state.trouble_since = None  # and nobody tried
    machines.resumed(state)
    profiles.resumed(state)
    state.asked = len(alive - state.nodes.keys() - state.lost.keys())
    actions: list[AnyAction] = [
        Fence(node=node, reason=state.lost[node]) for node in sorted(alive & state.lost.keys())
    ]
    overtaken = event.obeyed > state.attempt and not state.ended
    actions += attempts.overtaken(state, event.obeyed, event.diverged) if overtaken else []
    phase = state.phase
    for node in sorted(state.nodes.keys() - alive):
        actions += _node_gone(state, node, "lost while the controller was down", 0.0)
    if not state.ended and state.phase is not Phase.CLOSING:
        actions += nodes.top_up(state, "nodes were lost while the controller was down")
    repeat = state.phase is phase and not overtaken
    actions += [*updates.again(state), *machines.compare_again(state)]
    return [*actions, *(_repeat_orders(state) if repeat else [])]


def _repeat_orders(state: State) -> list[AnyAction]:
    match state.phase:
        case Phase.STARTING | Phase.RUNNING:
            return [state.start] if state.start else []
        case Phase.RECOVERING | Phase.CLOSING if not state.stopped:
            return [attempts.stop_again(state)]
        case Phase.RECOVERING:
            return recovery.when_stopped(state)
        case _:
            return attempts.try_start(state)
