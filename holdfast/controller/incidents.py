"""Incidents: opened by the first evidence of a fault, closed when training is productive again."""

from collections.abc import Sequence

from holdfast.controller.phases import Phase
from holdfast.controller.state import IncidentRecord, Node, State
from holdfast.events import Diagnosed, HangJudged, NumbersBroke, WorkerExited
from holdfast.status import ActionTaken

OF_NO_WORKER = ("node-lost", "orders-lost", "nan")  # causes that explain whatever workers said
LISTED_MAX = 8  # nodes that a summary names; the incident has all of them


def open_for_exit(state: State, exited: WorkerExited) -> None:
    """A worker failed. Its cause is a first guess until the verdict comes."""
    node = _name_of(state, exited.node)
    how = f"signal {exited.signal}" if exited.signal else f"exit status {exited.exit_code}"
    _open(
        state,
        IncidentRecord(
            id=len(state.incidents) + 1,
            cause="worker-failed",
            summary=f"rank {exited.rank} on {node} ended with {how}",
            node=node,
            rank=exited.rank,
            attempt=state.attempt,
            step=state.max_step,
            started_at=state.now - exited.ago_s,
            detected_at=state.now,
        ),
    )
    _blame(state.incidents[-1], exited)


def open_for_node(state: State, node: Node, why: str, ago_s: float) -> None:
    """A member was lost."""
    _open(
        state,
        IncidentRecord(
            id=len(state.incidents) + 1,
            cause="node-lost",
            summary=f"{node.name} was lost: {why}",
            node=node.name,
            nodes=[node.name],
            rank=None,
            attempt=state.attempt,
            step=state.max_step,
            started_at=state.now - ago_s,
            detected_at=state.now,
        ),
    )


def open_for_hang(state: State, judged: HangJudged, rank: int | None) -> None:
    """Workers hang; the rank is that of the first the others wait for, if one stands out."""
    record = IncidentRecord(
        id=len(state.incidents) + 1,
        cause="hang",
        summary=judged.summary,
        node="all nodes",
        rank=None,
        attempt=state.attempt,
        step=state.max_step,
        started_at=state.now - judged.ago_s,
        detected_at=state.now,
        evidence=list(judged.evidence),
    )
    if rank is not None:
        _blame_for_standing_still(state, record, rank)
    _open(state, record)


def open_for_lost_orders(state: State, why: str) -> None:
    """A controller was lost, and with it the newest lines of the journal."""
    _open(
        state,
        IncidentRecord(
            id=len(state.incidents) + 1,
            cause="orders-lost",
            summary=why,
            node="controller",
            rank=None,
            attempt=state.attempt,
            step=state.max_step,
            started_at=state.now,
            detected_at=state.now,
        ),
    )


def open_for_numbers(state: State, event: NumbersBroke, cause: str, why: str) -> None:
    """The loss was not finite. Whose, and from which step on, the verdict may know better."""
    node = state.ranks.get(event.rank // state.workers_per_node, "")
    _open(
        state,
        IncidentRecord(
            id=len(state.incidents) + 1,
            cause=cause,
            summary=why,
            node=_name_of(state, node),
            rank=None,
            attempt=state.attempt,
            step=event.broke.step,
            started_at=state.now - event.broke.ago_s,
            detected_at=state.now,
        ),
    )


def node_lost_meanwhile(state: State, node: Node, why: str) -> None:
    """A member was lost while its attempt was being stopped, or before the next one.

    It explains workers that had failed, unless their verdict is known already, and is named beside
    those lost before it.
    """
    incident = state.open_incident
    if incident is None or incident.attempt != state.attempt:
        return
    incident.nodes.append(node.name)
    if state.phase is Phase.WAITING and incident.cause != "node-lost":
        return
    if len(incident.nodes) == 1:
        incident.node, incident.summary = node.name, f"{node.name} was lost: {why}"
    else:
        incident.summary = f"{len(incident.nodes)} nodes were lost: {_listed(incident.nodes)}"
    incident.cause, incident.rank = "node-lost", None
    incident.exit_code = incident.signal = incident.error = incident.log = None


def apply_verdict(state: State, verdict: Diagnosed) -> None:
    """Put the verdict and the evidence of the rank it blames into the incident."""
    incident = state.open_incident
    if incident is None:
        return
    incident.also_failed = verdict.also_failed
    if incident.cause in OF_NO_WORKER and (incident.cause, verdict.cause) != ("nan", "nan"):
        failed = [death for death in state.deaths if death.exited.exit_code != 0]
        incident.also_failed = sum(len(death.ranks) for death in failed)
        return
    incident.cause, incident.summary = verdict.cause, verdict.summary
    if verdict.rank is None:
        return
    blamed = next((e for e in state.exits if e.rank == verdict.rank), None)
    if blamed is not None:
        _blame(incident, blamed)
        incident.started_at = min(incident.started_at, state.now - blamed.ago_s)
        incident.node = _name_of(state, blamed.node)
    else:
        _blame_for_standing_still(state, incident, verdict.rank)


def note(state: State, action: str, reason: str) -> None:
    """Write down what was done about the open incident."""
    incident = state.open_incident
    if incident is not None:
        incident.actions.append(ActionTaken(at=state.now, action=action, reason=reason))


def resumed_after(state: State, step: int) -> None:
    """Training goes on after `step`: what was done beyond it is lost."""
    incident = state.open_incident
    if incident is not None and state.max_step is not None:
        incident.steps_lost = max(incident.steps_lost, state.max_step - step)


def close(state: State, ago_s: float = 0.0) -> None:
    """Training is productive again."""
    incident = state.open_incident
    if incident is not None:
        incident.ended_at = max(incident.detected_at, state.now - ago_s)
        state.tell(f"incident {incident.id} closed")


def _open(state: State, incident: IncidentRecord) -> None:
    """A fault before the last incident was over ends that one: each second is billed once."""
    close(state)
    state.incidents.append(incident)
    state.tell(f"incident {incident.id}: {incident.summary}")


def _blame_for_standing_still(state: State, incident: IncidentRecord, rank: int) -> None:
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
