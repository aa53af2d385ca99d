"""An incident as a trace: its root span is the incident, the spans below are the buckets of its
bill, and what was found out and decided stands in the root as events. Pure.

Names and ids depend on journal and ledger alone. Attributes follow OpenTelemetry's conventions
where these have a name (`error.type`, `exception.*`), else they begin with `holdfast.`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.actions import Entry, Outcome
from holdfast.controller import IncidentRecord, State
from holdfast.drivers.otlp.ids import span_id, trace_id
from holdfast.events import AttemptStopped, Diagnosed, EvidenceTaken, MilestoneReached
from holdfast.goodput import Ledger
from holdfast.shell.clock import SET_S

Value = str | int | float | bool | Sequence[str]
Attributes = Mapping[str, Value]
HOUR_S = 3600.0
SETTLES_S = 3.0  # after the end of an incident
NAMES_MAX = 32  # of nodes, in one attribute
FAILED = (Outcome.FAILED, Outcome.GAVE_UP)


class SpanMoment(NamedTuple):
    """Something that happened; `at` in seconds since the epoch."""

    at: float
    name: str
    attributes: Attributes


class SpanFacts(NamedTuple):
    """One span; times in nanoseconds since the epoch."""

    id: int
    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    moments: tuple[SpanMoment, ...] = ()


class IncidentTrace(NamedTuple):
    """All spans of one incident. `error`: why the job ended with it; "" if it went on."""

    incident: int
    id: int
    root: SpanFacts
    buckets: tuple[SpanFacts, ...]
    error: str


class JobIdentity(NamedTuple):
    """What ids are made of, and what its time costs."""

    name: str
    started_ms: int  # when its journal was begun
    gpu_hour: float | None = None

    def trace(self, incident: int) -> int:
        """The id of an incident's trace."""
        return trace_id(self.name, self.started_ms, incident)


def root_of(trace: int) -> int:
    """The id of a trace's root span."""
    return span_id(trace, "incident")


class Moments:
    """What the journal says was found out during incidents, and when."""

    def __init__(self) -> None:
        self._found: list[SpanMoment] = []

    def hear(self, entry: Entry) -> None:
        """The next entry."""
        match entry.event:
            case Diagnosed() as event:
                said: Attributes = {
                    "holdfast.verdict": event.cause,
                    "holdfast.confidence": event.confidence,
                    "holdfast.summary": event.summary,
                }
                rank: Attributes = {} if event.rank is None else {"holdfast.rank": event.rank}
                self._add(entry.at, "verdict", {**said, **rank})
            case EvidenceTaken() as event:
                nodes = [one.node for one in event.found]
                told: Attributes = {
                    "holdfast.nodes": nodes[:NAMES_MAX],
                    "holdfast.nodes_count": len(nodes),
                    "holdfast.missing": event.missing[:NAMES_MAX],
                    "holdfast.missing_count": len(event.missing),
                }
                self._add(entry.at, "evidence", told)
            case AttemptStopped() as event:
                self._add(entry.at, "attempt stopped", {"holdfast.attempt": event.attempt})
            case MilestoneReached() as event:
                attempt: Attributes = {"holdfast.attempt": event.attempt}
                step: Attributes = {} if event.step is None else {"holdfast.step": event.step}
                name = str(event.milestone).replace("_", " ")
                self._add(entry.at - event.ago_s, name, {**attempt, **step})
            case _:
                pass

    def _add(self, at: float, name: str, attributes: Attributes) -> None:
        self._found.append(SpanMoment(at, name, attributes))

    def between(self, start_ns: int, end_ns: int) -> Iterable[SpanMoment]:
        """Those of an incident. Times are compared as they are told: the verdict that ends a job
        comes at its very end."""
        return (one for one in self._found if start_ns <= nanoseconds(one.at) <= end_ns)

    def forget(self) -> None:
        """All incidents so far are told."""
        self._found.clear()


def settled(state: State, now: float) -> list[IncidentRecord]:
    """Incidents whose account will not change. The fault of one that is open may still turn out to
    have been earlier, and so may the end of the one before. So may that of one that has only just
    ended: the next fault is told a moment after it was."""
    if state.ended or not state.incidents:
        return list(state.incidents)
    over = state.incidents[-1].ended_at
    if over is None:
        return state.incidents[:-2]
    return state.incidents[: None if now - over >= SETTLES_S else -1]


def trace_of(
    incident: IncidentRecord, state: State, ledger: Ledger, moments: Moments, job: JobIdentity
) -> IncidentTrace:
    """The trace of a settled incident."""
    trace = job.trace(incident.id)
    parts = [part for part in ledger.intervals if part.incident == incident.id]
    over = incident.ended_at if incident.ended_at is not None else state.now
    start_ns = min([nanoseconds(incident.started_at), *(_ms(part.start_ms) for part in parts)])
    end_ns = max([start_ns, nanoseconds(over), *(_ms(part.end_ms) for part in parts)])
    error = ""
    if incident is state.incidents[-1] and incident.ended_at is None and state.outcome in FAILED:
        error = f"{state.outcome}: {state.why or incident.summary}"
    common: Attributes = {"holdfast.job": job.name, "holdfast.incident": incident.id}
    root = SpanFacts(
        root_of(trace), f"incident {incident.cause}", start_ns, end_ns,
        {**common, **_what(incident), **_cost(incident, state, ledger, job)},
        tuple(sorted(_events(incident, start_ns, end_ns, moments), key=lambda one: one.at)),
    )  # fmt: skip
    buckets = tuple(
        SpanFacts(
            span_id(trace, f"{number} {part.bucket}"), str(part.bucket), _ms(part.start_ms),
            _ms(part.end_ms),
            {**common, "holdfast.bucket": str(part.bucket), "holdfast.attempt": part.attempt},
        )
        for number, part in enumerate(parts)
    )  # fmt: skip
    return IncidentTrace(incident.id, trace, root, buckets, error)


def on_the_wall(trace: IncidentTrace, ahead_s: float) -> IncidentTrace:
    """By the wall clock, which is so far ahead of the controller's: where that is more than they
    drift apart, it was set since, or the machine has slept, and all else there is told by it."""
    if abs(ahead_s) < SET_S:
        return trace

    def moved(span: SpanFacts) -> SpanFacts:
        by_ns = nanoseconds(ahead_s)
        moments = tuple(one._replace(at=one.at + ahead_s) for one in span.moments)
        return span._replace(
            start_ns=span.start_ns + by_ns, end_ns=span.end_ns + by_ns, moments=moments
        )

    return trace._replace(root=moved(trace.root), buckets=tuple(map(moved, trace.buckets)))


def _what(incident: IncidentRecord) -> Attributes:
    known: dict[str, Value | None] = {
        "error.type": incident.cause,
        "holdfast.verdict": incident.cause,
        "holdfast.confidence": incident.confidence,
        "holdfast.summary": incident.summary,
        "holdfast.blame": [*dict.fromkeys((incident.node, *incident.nodes))][:NAMES_MAX],
        "holdfast.node": incident.node,
        "holdfast.rank": incident.rank,
        "holdfast.attempt": incident.attempt,
        "holdfast.version": incident.version,
        "holdfast.step": incident.step,
        "holdfast.ladder.step": incident.choices[-1].step if incident.choices else None,
        "holdfast.also_failed": incident.also_failed,
        "holdfast.signal": incident.signal,
        "process.exit.code": incident.exit_code,
    }
    return {name: value for name, value in known.items() if value is not None}


def _cost(incident: IncidentRecord, state: State, ledger: Ledger, job: JobIdentity) -> Attributes:
    lost_s = sum(ledger.bill(incident.id).values())
    found: dict[str, Value] = {
        "holdfast.steps_lost": incident.steps_lost,
        "holdfast.lost_s": round(lost_s, 3),
    }
    if job.gpu_hour is not None:
        found["holdfast.cost"] = round(lost_s * state.world_size * job.gpu_hour / HOUR_S, 6)
    return found


def _events(
    incident: IncidentRecord, start_ns: int, end_ns: int, moments: Moments
) -> Iterable[SpanMoment]:
    yield SpanMoment(incident.detected_at, "detected", {"holdfast.summary": incident.summary})
    yield from moments.between(start_ns, end_ns)
    for action in incident.actions:
        said: Attributes = {"holdfast.action": action.action, "holdfast.reason": action.reason}
        yield SpanMoment(action.at, "action", said)
    for choice in incident.choices:
        cost: Attributes = {
            f"holdfast.ladder.cost_s.{one.step}": one.cost_s for one in choice.alternatives
        }
        taken: Attributes = {
            "holdfast.ladder.step": choice.step,
            "holdfast.ladder.about": choice.about,
            "holdfast.reason": choice.reason,
        }
        yield SpanMoment(choice.at, "decision", {**taken, **cost})
    if incident.error is not None:
        told: Attributes = {
            "exception.type": incident.error.type,
            "exception.message": incident.error.message,
            "exception.stacktrace": incident.error.traceback,
        }
        yield SpanMoment(incident.started_at, "exception", told)


def nanoseconds(seconds: float) -> int:
    """As OpenTelemetry counts time."""
    return round(seconds * 1e6) * 1000


def _ms(milliseconds: int) -> int:
    return milliseconds * 1_000_000
