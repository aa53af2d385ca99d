"""Incidents: opened by the first evidence of a fault, closed when training is productive again."""

from holdfast.controller.state import IncidentRecord, Node, State
from holdfast.events import Diagnosed, WorkerExited
from holdfast.status import ActionTaken


def open_for_exit(state: State, exited: WorkerExited, node: Node) -> None:
    """A worker failed. Its cause is a first guess until the verdict comes."""
    how = f"signal {exited.signal}" if exited.signal else f"exit status {exited.exit_code}"
    _open(
        state,
        IncidentRecord(
            id=len(state.incidents) + 1,
            cause="worker-failed",
            summary=f"rank {exited.rank} on {node.name} ended with {how}",
            node=node.name,
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
            rank=None,
            attempt=state.attempt,
            step=state.max_step,
            started_at=state.now - ago_s,
            detected_at=state.now,
        ),
    )


def node_lost_meanwhile(state: State, node: Node, why: str) -> None:
    """A member was lost while its attempt was being stopped: it explains the failed workers."""
    incident = state.open_incident
    if incident is None or incident.attempt != state.attempt:
        return
    incident.cause, incident.node, incident.rank = "node-lost", node.name, None
    incident.summary = f"{node.name} was lost: {why}"
    incident.exit_code = incident.signal = incident.error = incident.log = None


def apply_verdict(state: State, verdict: Diagnosed) -> None:
    """Put the verdict and the evidence of the rank it blames into the incident."""
    incident = state.open_incident
    if incident is None:
        return
    incident.also_failed = verdict.also_failed
    if incident.cause == "node-lost":
        incident.also_failed = sum(e.exit_code != 0 for e in state.exits)
        return
    incident.cause, incident.summary = verdict.cause, verdict.summary
    blamed = [e for e in state.exits if e.rank == verdict.rank]
    if blamed:
        _blame(incident, blamed[0])
        node = state.nodes.get(blamed[0].node)
        incident.node = node.name if node else incident.node


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


def _blame(incident: IncidentRecord, exited: WorkerExited) -> None:
    incident.rank, incident.log = exited.rank, exited.log or None
    incident.exit_code, incident.signal = exited.exit_code, exited.signal
    incident.error = exited.error
    if exited.progress.step is not None:
        incident.step = exited.progress.step
