"""The status of a TrainingJob: what people and other programs read of it.

Made anew each time from what is known; of what it said before only the times at which conditions
changed, the digest of the spec that runs and the runs before this one are kept. Conditions are
those that `kubectl wait` and queues look for; the phase is one word for people.
"""

from datetime import datetime
from typing import NamedTuple

from holdfast.drivers.kubernetes.cluster import timestamp
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.operator.decide import Decision, Step
from holdfast.operator.definition import CONDITIONS, HISTORY
from holdfast.status import JobStatus

WORDS = {"gave_up": "GaveUp"}
CHANGES = (  # of a spec
    *("ChangeWaits", "CodeMissing", "Updating", "Updated", "UpdateRefused", "UpdateReverted"),
)
ENDED = ("succeeded", "failed", "gave_up", "stopped")


class ConditionState(NamedTuple):
    """What a condition says."""

    holds: bool
    reason: str
    message: str = ""


def status_of(
    old: Body,
    decision: Decision,
    record: JobStatus | None,
    *,
    outcome: str | None,
    waiting_for: str | None,
    nodes: int,
    generation: int,
    now: float,
) -> Body:
    """The new status; `old` is what the object has now."""
    phase = decision.phase or _phase(record, outcome)
    facts = _facts(decision, phase, record, outcome)
    found: Body = {
        "phase": phase,
        "observedGeneration": generation,
        "startedSpec": old.get("startedSpec"),
        "waitingFor": (record.waiting_for if record and not outcome else None) or waiting_for,
        "outcome": outcome,
        "conditions": _conditions(old, facts, generation, now),
        "history": _history(old, decision, record),
        **_numbers(record, nodes, suspended=phase == "Suspended"),
    }
    if outcome is not None:
        found["completionTime"] = old.get("completionTime") or timestamp(now)
    return {key: value for key, value in found.items() if value is not None}


def _phase(record: JobStatus | None, outcome: str | None) -> str:
    word = outcome or (record.phase if record is not None else "waiting")
    return WORDS.get(word, word.capitalize())


def _numbers(record: JobStatus | None, nodes: int, *, suspended: bool) -> Body:
    """The record outlives the pods of a job that is suspended."""
    if record is None:
        return {"nodes": f"0/{nodes}"}
    training = record.training_count
    if training is None:
        training = sum(node.rank is not None for node in record.nodes)
    return {
        "nodes": f"{0 if suspended else training}/{nodes}",
        "step": record.step,
        "ettr": round(record.ettr, 4),
        "restarts": record.restarts_count,
        "incidents": record.incidents_count,
        "attempt": record.attempt,
        "why": record.why,
        "startTime": timestamp(record.started_at),
    }


def _history(old: Body, decision: Decision, record: JobStatus | None) -> list[Body] | None:
    """Runs before this one, the newest last. A record is about to be removed when the next begins:
    then it becomes an entry, once however often that is tried."""
    runs: list[Body] = old.get("history") or []
    if decision.step is Step.RENEW and record is not None:
        entry = _run(record)
        others = [run for run in runs if run["startTime"] != entry["startTime"]]
        runs = [*others, entry][-HISTORY:]
    return runs or None


def _run(record: JobStatus) -> Body:
    said = {
        "startTime": timestamp(record.started_at),
        "endTime": timestamp(record.started_at + record.wall_s),
        "outcome": record.outcome,
        "step": record.step,
        "ettr": round(record.ettr, 4),
        "restarts": record.restarts_count,
        "incidents": record.incidents_count,
        "why": record.why,
    }
    return {key: value for key, value in said.items() if value is not None}


def _facts(
    decision: Decision, phase: str, record: JobStatus | None, outcome: str | None
) -> dict[str, ConditionState]:
    why = (record.why if record is not None else None) or ""
    refused = phase in ("Rejected", "Blocked")
    now = phase.replace(" ", "")
    ended = outcome is not None
    return {
        "Accepted": ConditionState(not refused, decision.reason or "Accepted", decision.message)
        if refused or decision.reason in CHANGES
        else ConditionState(True, "Accepted"),
        "Running": ConditionState(phase == "Running", now, why),
        "Recovering": ConditionState(phase == "Recovering", now, why),
        "Suspended": ConditionState(phase == "Suspended", decision.reason or now, decision.message)
        if phase in ("Suspended", "Suspending")
        else ConditionState(False, "NotSuspended"),
        "Complete": ConditionState(outcome == "succeeded", now if ended else "NotEnded", why),
        "Failed": ConditionState(
            ended and outcome != "succeeded", now if ended else "NotEnded", why
        ),
    }


def _conditions(
    old: Body, facts: dict[str, ConditionState], generation: int, now: float
) -> list[Body]:
    before = {c["type"]: c for c in old.get("conditions") or []}
    found = []
    for kind in CONDITIONS:
        fact, last = facts[kind], before.get(kind, {})
        told = "True" if fact.holds else "False"
        kept = last.get("status") == told and _marks(last) == _marks({"reason": fact.reason})
        found.append(
            {
                "type": kind,
                "status": told,
                "reason": fact.reason,
                "message": fact.message[:1024],
                "observedGeneration": generation,
                "lastTransitionTime": last["lastTransitionTime"] if kept else timestamp(now),
            }
        )
    return found


def _marks(condition: Body) -> bool:
    """Since when a stop is under way has to be known, though the condition is false before too."""
    return bool(condition.get("reason") == "Stopping")


def seconds(text: str | None) -> float | None:
    """A time as Kubernetes and others write it, in seconds since the epoch; None for none."""
    try:
        return None if text is None else datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
