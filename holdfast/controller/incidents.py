"""Incidents: opened by the first evidence of a fault, closed when training is productive again."""

import math
from collections.abc import Sequence

from holdfast.controller import conditions, keeping
from holdfast.controller.phases import Phase
from holdfast.controller.policies.ladder import RESIZED, SURE
from holdfast.controller.state import HealthRecord, IncidentRecord, Node, State
from holdfast.counts import count
from holdfast.events import (
    AttemptStopped,
    CollectivesShifted,
    Diagnosed,
    EvidenceTaken,
    HangJudged,
    NumbersBroke,
    ReplicasDiffer,
    WorkerExited,
    each_of,
)
from holdfast.status import ActionTaken

OF_NO_WORKER = (
    "node-lost",
    "node-left",
    "orders-lost",
    "nan",
    "hardware-fault",
    "corruption",
    RESIZED,
    "updated",
    "repeated",
    "diverged",
)  # causes that explain whatever workers said
UPDATED = "updated"
REPEATED = "repeated"
GUESS = "worker-failed"  # of an exit, until its verdict comes
EXPLAINED = (
    ("nan", "nan"),
    ("nan", conditions.CAUSE),
    ("corruption", conditions.CAUSE),
)  # causes that were seen, and what is found behind them: by groups that repeat a step, a machine
LOST, LEFT = "node-lost", "node-left"
CERTAIN = 0.9  # a verdict that no other exit, and no lost connection, can explain
SEEN, DOUBTED = 0.95, 0.6  # of what was seen itself; where something else came before
EVIDENCE_KEPT = 8  # newest incidents that keep what nodes told
EVERYBODY = "all nodes"
LISTED_MAX = 8  # nodes that a summary names; the incident has all of them


def open_for_exit(state: State, exited: WorkerExited) -> None:
    """A worker failed. Its cause is a first guess until the verdict comes."""
    node = _name_of(state, exited.node)
    how = f"signal {exited.signal}" if exited.signal else f"exit status {exited.exit_code}"
    why = f"rank {exited.rank} on {node} ended with {how}"
    record = _record(state, GUESS, why, node, exited.ago_s)
    _open(state, record)
    _blame(record, exited)


def open_for_node(
    state: State, node: Node, why: str, ago_s: float, *, planned: bool = False
) -> None:
    """A member was lost, or was removed as planned."""
    told = f"{node.name} {gone(planned)}: {why}"
    record = _record(state, LEFT if planned else LOST, told, node.name, ago_s)
    record.nodes = [node.name]
    _open(state, record)


def gone(planned: bool) -> str:
    """How a node was lost."""
    return "was removed (planned)" if planned else "was lost"


def open_for_hang(state: State, judged: HangJudged, rank: int | None) -> None:
    """Workers hang; the rank is that of the first the others wait for, if one stands out."""
    record = _record(state, "hang", judged.summary, EVERYBODY, judged.ago_s)
    record.evidence = list(judged.evidence)
    record.hung_after = state.stood_after
    if rank is not None:
        _blame_without_exit(state, record, rank)
    _open(state, record)


def open_for_rank(state: State, cause: str, why: str, rank: int) -> None:
    """A rank is to be gone on without, which has not failed."""
    record = _record(state, cause, why, node_of(state, rank))
    _blame_without_exit(state, record, rank)
    _open(state, record)


def open_for_shift(state: State, event: CollectivesShifted, cause: str, why: str) -> None:
    """Collectives of different steps have met for a while."""
    record = _record(state, cause, why, EVERYBODY, event.ago_s)
    rank = next(each_of(event.ranks), None)
    if rank is not None:
        _blame_without_exit(state, record, rank)
    _open(state, record)


def open_for_health(state: State, node: Node, fault: HealthRecord, cause: str) -> None:
    """A fault of a member that will not pass by itself. Until now it has trained all the same."""
    _open(state, _record(state, cause, f"{node.name}: {fault.detail}", node.name))


def open_for_departure(state: State, names: list[str], why: str) -> None:
    """Members are to hand over their ranks before they are taken away."""
    record = _record(state, LEFT, why, names[0])
    record.nodes = names
    _open(state, record)


def open_for_size(state: State, why: str) -> None:
    """The attempt is stopped to go on with more or fewer nodes, which has its price."""
    _open(state, _record(state, RESIZED, why, EVERYBODY))


def open_for_update(state: State, why: str) -> None:
    """Likewise, to go on with another version."""
    _open(state, _record(state, UPDATED, why, EVERYBODY))


def open_for_repetition(state: State, why: str) -> None:
    """Likewise, because somebody wants a step to be repeated."""
    _open(state, _record(state, REPEATED, why, EVERYBODY))


def open_for_lost_orders(state: State, why: str) -> None:
    """A controller was lost, and with it the newest lines of the journal."""
    _open(state, _record(state, "orders-lost", why, "controller"))


def open_for_numbers(state: State, event: NumbersBroke, cause: str, why: str) -> None:
    """The loss was not finite. Whose, and from which step on, the verdict may know better."""
    broke = event.broke
    record = _record(state, cause, why, node_of(state, event.rank), broke.ago_s)
    record.step = broke.step
    _open(state, record)


def open_for_replicas(state: State, event: ReplicasDiffer, why: str, evidence: list[str]) -> None:
    """Parameters differ between ranks; `why` says between which. A worker that has failed because
    of it, and whose attempt is being stopped, is explained by it."""
    rank = next(each_of(event.ranks), None)
    record = _record(state, "corruption", why, EVERYBODY)
    record.step, record.evidence = event.step, evidence
    if rank is not None:
        _blame_without_exit(state, record, rank)
    known = state.open_incident
    if state.phase is not Phase.RECOVERING or known is None:
        _open(state, record)
    elif known.cause not in OF_NO_WORKER:
        _replace(known, record)


def _record(
    state: State, cause: str, summary: str, node: str, ago_s: float = 0.0
) -> IncidentRecord:
    """Of a fault of this attempt that began so long ago and is seen now."""
    return IncidentRecord(
        id=len(state.incidents) + 1,
        cause=cause,
        summary=summary,
        node=node,
        rank=None,
        attempt=state.attempt,
        step=state.max_step,
        started_at=state.now - ago_s,
        detected_at=state.now,
        version=state.start.version.number if state.start is not None else 1,
    )


def node_of(state: State, rank: int) -> str:
    """The name of its node."""
    return _name_of(state, state.ranks.get(rank // state.workers_per_node, ""))


def _replace(known: IncidentRecord, by: IncidentRecord) -> None:
    """The same incident, seen for what it is; when it began and what was done stays."""
    known.cause, known.summary, known.evidence = by.cause, by.summary, by.evidence
    known.node, known.rank, known.log, known.step = by.node, by.rank, by.log, by.step
    known.exit_code = known.signal = known.error = None


def node_lost_meanwhile(state: State, node: Node, why: str, *, planned: bool = False) -> None:
    """A member was lost while its attempt was being stopped, or before the next one.

    It explains workers that had failed, unless their verdict is known already, and is named beside
    those lost before it.
    """
    incident = state.open_incident
    if incident is None or incident.attempt != state.attempt:
        return
    known = node.name in incident.nodes
    incident.nodes += [] if known else [node.name]
    if state.phase is Phase.WAITING and incident.cause not in (LOST, LEFT):
        return
    if planned and incident.cause != GUESS:
        return  # what is known already is so, whoever leaves besides
    if len(incident.nodes) == 1:
        incident.node, incident.summary = node.name, f"{node.name} {gone(planned)}: {why}"
    else:
        incident.summary = f"{len(incident.nodes)} nodes were lost: {_listed(incident.nodes)}"
    incident.cause, incident.rank = LEFT if planned else LOST, None
    incident.exit_code = incident.signal = incident.error = incident.log = None


def apply_verdict(state: State, verdict: Diagnosed) -> None:
    """Put the verdict and the evidence of the rank it blames into the incident."""
    incident = state.open_incident
    if incident is None:
        return
    incident.also_failed = verdict.also_failed
    first = _failed_before(state, incident, verdict)
    explains = (incident.cause, verdict.cause) in EXPLAINED
    if not first and incident.cause in OF_NO_WORKER and not explains:
        failed = [death for death in state.deaths if death.exited.exit_code != 0]
        incident.also_failed = sum(len(death.ranks) for death in failed)
        incident.confidence = _confidence(state, incident, verdict)
        return
    incident.cause, incident.summary = verdict.cause, verdict.summary
    incident.confidence = verdict.confidence
    if first:
        incident.summary += f" {_listed(incident.nodes)} was lost while the attempt was stopped."
    if verdict.rank is None:
        return
    blamed = next((e for e in state.exits if e.rank == verdict.rank), None)
    if blamed is not None:
        _blame(incident, blamed)
        incident.started_at = min(incident.started_at, state.now - blamed.ago_s)
        if blamed.node in state.nodes:
            incident.node = state.nodes[blamed.node].name
    else:
        _blame_without_exit(state, incident, verdict.rank)


def _confidence(state: State, incident: IncidentRecord, verdict: Diagnosed) -> float | None:
    """Of a cause that was seen itself, and not concluded from how workers exited. A judgement, not
    a measurement; None: somebody wanted it, and there is nothing to be sure of."""
    match incident.cause:
        case "node-lost":  # a worker of another node may have failed for a reason of its own
            alive = {
                death.exited.rank for death in state.deaths if death.exited.node in state.nodes
            }
            other = verdict.rank in alive and verdict.confidence >= SURE
            return DOUBTED if other and _died_first(state, incident, verdict) else SEEN
        case "corruption":  # parameters differ for certain; of two nobody knows whose are wrong
            return SEEN if incident.rank is not None else CERTAIN
        case conditions.CAUSE:
            return conditions.CONFIDENCE
        case "nan":
            return SEEN
        case _:
            return None


def _failed_before(state: State, incident: IncidentRecord, verdict: Diagnosed) -> bool:
    """Whether a node was lost only after a worker had failed for a reason of its own: agents of a
    busy machine may be too slow to stop what has failed."""
    own = verdict.confidence >= CERTAIN and (verdict.user_error or verdict.environment)
    return incident.cause in (LOST, LEFT) and own and _died_first(state, incident, verdict)


def _died_first(state: State, incident: IncidentRecord, verdict: Diagnosed) -> bool:
    """Whether the incident began with the death of the worker that is blamed."""
    died = [death.at for death in state.deaths if death.exited.rank == verdict.rank]
    return min(died, default=math.inf) <= incident.started_at


def keep_evidence(state: State, event: EvidenceTaken) -> None:
    """How nodes were when it began. State stays small: older incidents lose theirs, which is still
    in the journal."""
    for incident in state.incidents:
        if incident.id == event.incident:
            incident.collected = [*incident.collected, *event.found]
            incident.missing = [*incident.missing, *event.missing]
            incident.network = [*incident.network, *event.network]
    for incident in state.incidents[:-EVIDENCE_KEPT]:
        incident.collected = []


def note(state: State, action: str, reason: str) -> None:
    """Write down what was done about the open incident."""
    incident = state.open_incident
    if incident is not None:
        incident.actions.append(ActionTaken(at=state.now, action=action, reason=reason))


def has(state: State, action: str) -> bool:
    """Whether that was done about the open incident."""
    incident = state.open_incident
    return incident is not None and any(done.action == action for done in incident.actions)


def note_parked(state: State, stopped: AttemptStopped) -> None:
    """Which processes are kept for the next attempt, and why not more."""
    if stopped.parked:
        words = "worker keeps its process", "workers keep their processes"
        note(state, "KeepProcesses", count(stopped.parked, *words))
    if late := keeping.replaced(state, stopped):
        note(state, "ReplaceProcesses", late)
    if stopped.refusal:
        note(state, "ReplaceProcesses", f"a worker cannot be kept: {stopped.refusal}")


def resumed_after(state: State, step: int) -> None:
    """Training goes on after `step`: what earlier attempts had done beyond it is lost. This one may
    already have been heard of with a later step, from a node that told it sooner."""
    incident, before = state.open_incident, state.progress_mark
    if incident is not None and before is not None:
        incident.steps_lost = max(incident.steps_lost, before - step)


def close(state: State, ago_s: float = 0.0) -> None:
    """Training is productive again."""
    incident = state.open_incident
    if incident is not None:
        incident.ended_at = max(incident.detected_at, state.now - ago_s)
        state.tell(f"incident {incident.id} closed")


def _open(state: State, incident: IncidentRecord) -> None:
    """A fault before the last incident was over ends that one: each second is billed once."""
    if (last := state.open_incident) is not None:
        last.overtaken = True
        close(state)
    state.incidents.append(incident)
    state.tell(f"incident {incident.id}: {incident.summary}")


def _blame_without_exit(state: State, incident: IncidentRecord, rank: int) -> None:
    """It did not exit, so what is known of an exit is another's."""
    node = state.ranks.get(rank // state.workers_per_node)
    incident.rank = rank
    incident.node = _name_of(state, node) if node is not None else incident.node
    incident.log = f"logs/attempt-{state.attempt}/rank-{rank}.log"
    incident.exit_code = incident.signal = incident.error = None


def _name_of(state: State, node_id: str) -> str:
    node = state.nodes.get(node_id)
    return node.name if node is not None else node_id


def _listed(names: Sequence[str]) -> str:
    more = len(names) - LISTED_MAX
    return ", ".join(names[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


def _blame(incident: IncidentRecord, exited: WorkerExited) -> None:
    incident.rank, incident.log = exited.rank, exited.log or None
    incident.exit_code, incident.signal = exited.exit_code, exited.signal
    incident.error = exited.error
    if exited.progress.step is not None:
        incident.step = exited.progress.step
