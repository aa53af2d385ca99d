"""The controller's state and the ledger, put into the shapes people get. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypedDict

import msgspec

from holdfast.checkpoint.copy_placement import survival
from holdfast.checkpoint.tiers import Tier
from holdfast.controller import IncidentRecord, State, stragglers
from holdfast.controller.conditions import standing
from holdfast.controller.phases import Phase
from holdfast.controller.state import Node, TierRecord
from holdfast.drivers.incident_facts import IncidentFacts
from holdfast.drivers.otlp import ids
from holdfast.drivers.wall_marks import WallMarks
from holdfast.goodput.ledger import Ledger
from holdfast.masking import MASK, SECRET_NAME, masker
from holdfast.messages import SAVES, WorkerReport
from holdfast.page import spelled
from holdfast.status import (
    Copies,
    Incident,
    JobStatus,
    NodeCondition,
    NodeStatus,
    TierStatus,
    UpdateStatus,
)
from holdfast.versions import ENV

SLOW_SHOWN = 4
Moment = Callable[[float], float]  # what the wall clock showed at a time of the controller's
PREPARING = "preparing"  # a spare whose workers are on their way to `join()`


def job_status(
    job: str,
    state: State,
    ledger: Ledger,
    *,
    controller: str,
    telemetry: Mapping[int, WorkerReport] | None = None,
    wall: WallMarks | None = None,
) -> JobStatus:
    """`JobStatus` from what is journaled and, where there is a live controller, telemetry."""
    moment = (wall or WallMarks()).moment
    workers = telemetry or {}
    first = workers.get(0)
    step = _lowest_step(workers, state)
    loss = _loss(first) if first else None
    finite = loss is not None and math.isfinite(loss)
    return JobStatus(
        job=job,
        phase=str(state.phase),
        attempt=state.attempt,
        step=step,
        ettr=ledger.ettr,
        nodes=tuple(
            NodeStatus(
                name=n.name,
                state=str(n.state) if n.warm else PREPARING,
                rank=n.node_rank,
                node=n.node,
                pids=_pids(n, state, workers),
                conditions=_conditions(n, state, moment),
            )
            for n in sorted(state.nodes.values(), key=lambda n: (n.node_rank is None, n.node_rank))
        ),
        incidents_count=len(state.incidents),
        restarts_count=state.restarts_count,
        waiting_for=_waiting_for(state),
        started_at=state.started_at,
        wall_s=ledger.wall_s,
        loss=loss if finite else None,
        loss_is=None if finite or loss is None else spelled(loss),
        notes=tuple(msgspec.structs.replace(one, at=moment(one.at)) for one in state.notes),
        step_time_s=first.step_time_s if first else None,
        steps_total=(first.steps_total or None) if first else None,
        snapshot_step=min((w.snapshot_step for w in workers.values()), default=None),
        snapshot_every=first.snapshot_every if first else None,
        **_snapshots(workers),
        controller=controller,
        outcome=str(state.outcome) if state.outcome else None,
        why=_saves(state, workers) or state.standstill or _slow(state) or state.why,
        checkpoints=_checkpoints(state, first.tier_every_s if first else ()),
        copies=_copies(state),
        size=state.size if state.limits.elastic else None,
        target=state.target if state.limits.elastic else None,
        size_why=state.sizing.why or None,
        spares_why=state.limits.spares_why or None,
        version=state.version.number,
        updates=_updates(state, moment),
        **_seen(workers),
    )


class _Snapshots(TypedDict, total=False):
    """What is known of snapshots in memory."""

    snapshot_age_s: float
    snapshot_took_s: float
    snapshot_bytes: int


def _snapshots(workers: Mapping[int, WorkerReport]) -> _Snapshots:
    """As old as the oldest that a rank has for its newest; nothing while a rank has none."""
    ages = [w.snapshot_ago_s for w in workers.values() if w.snapshot_ago_s is not None]
    if not ages or len(ages) < len(workers):
        return {}
    return {
        "snapshot_age_s": round(max(ages), 3),
        "snapshot_took_s": max(w.snapshot_took_s or 0.0 for w in workers.values()),
        "snapshot_bytes": sum(w.snapshot_bytes for w in workers.values()),
    }


def _updates(state: State, moment: Moment) -> tuple[UpdateStatus, ...]:
    return tuple(
        UpdateStatus(
            version=one.version.number,
            id=one.id,
            by=one.by,
            at=moment(one.at),
            when=one.when,
            stage=str(one.stage),
            why=one.why or None,
            code=one.version.code or None,
            sets=_shown(one.version.sets),
            image=one.version.image or None,
            args=_shown_args(one.version.given),
            back=one.back,
            attempt=one.attempt,
            incidents=tuple(i.id for i in state.incidents if i.version == one.version.number),
        )
        for one in state.updating.records
    )


def _shown(sets: Mapping[str, str]) -> dict[str, str]:
    """Whoever may see the status may not see what is secret."""
    secret = {k for k in sets if k.startswith(ENV) and SECRET_NAME.search(k.removeprefix(ENV))}
    return {k: MASK if k in secret else v for k, v in sets.items()}


def _shown_args(args: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Likewise; the value of an option may be a word of its own."""
    if args is None:
        return None
    hidden = masker({})

    def shown(before: str, word: str) -> str:
        pair = f"{before}={word}"
        of_option = before.startswith("--") and "=" not in before
        return MASK if of_option and hidden(pair) != pair else hidden(word)

    return tuple(shown(*two) for two in pairwise(("", *args)))


def _saves(state: State, workers: Mapping[int, WorkerReport]) -> str:
    """What a job waits for that has nothing left to train."""
    runs = state.phase is Phase.RUNNING and bool(workers)
    all_do = runs and all(worker.phase == SAVES for worker in workers.values())
    return "all workers have ended; their last checkpoint is being saved" if all_do else ""


def _slow(state: State) -> str:
    """Whom all others wait for in each step."""
    slow = state.stragglers if state.phase is Phase.RUNNING else ()
    return "; ".join(stragglers.text_of(state, one) for one in slow[:SLOW_SHOWN])


def _conditions(node: Node, state: State, moment: Moment) -> tuple[NodeCondition, ...]:
    return tuple(
        NodeCondition(
            condition=one.condition,
            severity=str(one.severity),
            device=one.device,
            detail=one.detail,
            advice=one.advice,
            since=moment(one.at),
            fault=one.fault,
        )
        for one in standing(state, node.node)
    )


class _Seen(TypedDict, total=False):
    """What is seen of steps that the script does not report."""

    optimizer_steps: int
    optimizer_step_ago_s: float
    optimizer_step_time_s: float | None
    printed_step: int
    printed_step_ago_s: float


def _seen(workers: Mapping[int, WorkerReport]) -> _Seen:
    """Of the rank that has done the fewest. Ranks without an optimizer, or that print nothing, are
    none of them, nor is anybody where steps are reported."""
    found = _Seen()
    if any(worker.progress.step is not None for worker in workers.values()):
        return found
    if steps := [worker for worker in workers.values() if worker.optimizer_steps]:
        last = min(steps, key=lambda worker: worker.optimizer_steps)
        found["optimizer_steps"] = last.optimizer_steps
        found["optimizer_step_ago_s"] = round(last.optimizer_step_ago_s, 3)
        found["optimizer_step_time_s"] = last.optimizer_step_time_s
    printed = [(w.printed_step, w) for w in workers.values() if w.printed_step is not None]
    if printed:
        step, behind = min(printed, key=lambda pair: pair[0])
        found["printed_step"] = step
        found["printed_step_ago_s"] = round(behind.printed_step_ago_s, 3)
    return found


def _loss(worker: WorkerReport) -> float | None:
    return worker.printed_loss if worker.loss is None else worker.loss


def _checkpoints(state: State, planned: Sequence[float]) -> tuple[TierStatus, ...]:
    """The tiers in use or ever used, the quickest first."""
    names = [tier.name.lower() for tier in Tier]
    every = {name: seconds for name, seconds in zip(names, planned, strict=False) if seconds}
    known = [*names, *sorted(state.tiers.keys() - set(names))]
    used = [name for name in known if name in state.tiers or name in every]
    return tuple(
        _tier(name, state.tiers.get(name, TierRecord()), state, every.get(name)) for name in used
    )


def _tier(name: str, record: TierRecord, state: State, planned: float | None) -> TierStatus:
    return TierStatus(
        tier=name,
        step=record.step,
        attempt=record.attempt,
        age_s=None if record.step is None else round(max(0.0, state.now - record.at), 3),
        every_s=record.every_s if planned is None else round(planned, 3),
        seconds=record.seconds,
        bytes=record.bytes,
        commits_count=record.commits_count,
        failures=record.failures,
        failures_count=record.failures_count,
        why=record.why or None,
        name=record.name or None,
    )


def _copies(state: State) -> Copies | None:
    """By what the job asks for; a script without snapshots has none."""
    nodes = state.size
    kept = min(state.limits.copies, nodes - 1)
    if kept <= 0 or not state.instrumented:
        return None
    more = survival(nodes, kept, kept + 1) if nodes > kept + 1 else None
    return Copies(holders=kept + 1, survives=kept, next_loss=more)


def _pids(node: Node, state: State, workers: Mapping[int, WorkerReport]) -> tuple[int, ...]:
    if node.node_rank is None:
        return ()
    first = node.node_rank * state.workers_per_node
    ranks = range(first, first + state.workers_per_node)
    return tuple(workers[rank].pid for rank in ranks if rank in workers)


def _lowest_step(workers: Mapping[int, WorkerReport], state: State) -> int | None:
    steps = [w.progress.step for w in workers.values() if w.progress.step is not None]
    return min(steps) if steps else state.max_step


def _waiting_for(state: State) -> str | None:
    """What has to happen before training goes on; None when it trains or has ended."""
    match str(state.phase):
        case "waiting":
            return state.why
        case "starting":
            done = state.milestones[-1] if state.milestones else "ordered"
            return f"the workers of attempt {state.attempt} ({done} so far)"
        case "recovering" | "closing":
            return "the verdict" if state.stopped else f"attempt {state.attempt} to stop"
        case _:
            return None


def incidents(job: str, state: State, ledger: Ledger, facts: IncidentFacts) -> list[Incident]:
    """Every incident with its bill, and what became known in it."""
    return [_incident(job, record, ledger, facts) for record in state.incidents]


def _incident(job: str, record: IncidentRecord, ledger: Ledger, facts: IncidentFacts) -> Incident:
    bill = ledger.bill(record.id)
    error = record.error
    return Incident(
        id=record.id,
        cause=record.cause,
        summary=record.summary,
        node=record.node,
        rank=record.rank,
        attempt=record.attempt,
        step=record.step,
        started_at=record.started_at,
        ahead_s=facts.wall.ahead_s(record.started_at),
        ended_at=record.ended_at,
        overtaken=record.overtaken,
        lost_s=round(sum(bill.values()), 3),
        steps_lost=record.steps_lost,
        bill=bill,
        actions=tuple(record.actions),
        also_failed=record.also_failed,
        exit_code=record.exit_code,
        signal=record.signal,
        error_type=error.type if error else None,
        traceback=error.traceback if error else None,
        log=record.log,
        nodes=tuple(dict.fromkeys((record.node, *record.nodes))),
        evidence=tuple(record.evidence),
        health=tuple(record.health),
        collected=tuple(record.collected),
        missing=tuple(record.missing),
        network=tuple(record.network),
        detected_at=record.detected_at,
        confidence=record.confidence,
        version=record.version,
        choices=tuple(record.choices),
        trace_id=ids.written(ids.trace_id(job, ledger.start_ms, record.id)),
        facts=facts.of(record),
    )
