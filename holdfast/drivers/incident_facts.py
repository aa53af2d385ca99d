"""What became known in an incident, and when: the facts that `holdfast why` tells in order.

Heard from the journal, entry by entry, as the ledger is, so that the state of the controller need
not keep them. What is told of an attempt waits until it is stopped for an incident, and belongs to
that one from then on; so does what the next attempt reaches until it trains. There are few of each
kind, and only those of the newest incidents, however long a job runs. Pure.
"""

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence

from holdfast.actions import CollectEvidence, Entry, StartAttempt, StopAttempt
from holdfast.controller import IncidentRecord
from holdfast.detection.liveness import SILENT
from holdfast.drivers.wall_marks import WallMarks
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    CollectivesShifted,
    Diagnosed,
    EvidenceTaken,
    ExitGroup,
    HangJudged,
    HangSuspected,
    HealthChanged,
    Judgement,
    Milestone,
    MilestoneReached,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeLostReason,
    NodesChecked,
    NumbersBroke,
    Ranks,
    ReplicasDiffer,
    Severity,
    StopRequested,
    WorkerExited,
    WorkersExited,
)
from holdfast.shell.reachability import SENDS_NOTHING
from holdfast.stacks import in_words
from holdfast.status import TimedFact

EACH_MAX = 8  # of one kind
KEPT = 64  # newest incidents that keep theirs; the journal has all
NAMED_MAX = 8
PORTS_TAKEN = "ports-taken"
OF_SILENCE = (SILENT, SENDS_NOTHING)  # conditions that only warn
MET = (Milestone.JOINED, Milestone.RESTORED, Milestone.STEPPED, Milestone.FIRST_STEP)
ROUNDING_S = 0.001  # of times that are told as ages


class IncidentFacts:
    """Those of one job, as far as its journal was heard."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by node
        self._attempt = self._stopped = 0  # the newest that was started, and was to be stopped
        self._redo_until = 0  # steps up to this one have been done before the newest attempt
        self._waiting: list[TimedFact] = []  # of an attempt that is not stopped
        self._last: list[TimedFact] | None = None  # of the incident that is not over, or was last
        self._found: dict[int, list[TimedFact]] = {}  # by number of the incident
        self._count = 0  # incidents so far
        self._taken: dict[tuple[str, str], str] = {}  # ports of nodes that others have, told
        self._met = 0  # the newest attempt whose ranks have met
        self.wall = WallMarks()

    def passing(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """These entries, heard on the way."""
        for entry in entries:
            self.hear(entry)
            yield entry

    def hear(self, entry: Entry) -> None:
        """The next line of the journal."""
        self.wall.hear(entry)
        self._hear(entry.event, entry.at)
        for action in entry.actions:
            if isinstance(action, CollectEvidence):
                self._add(entry.at, "looked", "look at all workers", action.suspicion.attempt)
            elif isinstance(action, StartAttempt) and action.attempt > self._attempt:
                self._attempt, self._redo_until = action.attempt, action.redo_until
                self._waiting = []
            elif isinstance(action, StopAttempt) and action.attempt > self._stopped:
                self._stop(action.attempt, asked=isinstance(entry.event, StopRequested))
                self._tell_of_ports(entry.at)

    def of(self, incident: IncidentRecord) -> tuple[TimedFact, ...]:
        """In order. What came before it began and was over then is none of its."""
        began = incident.started_at - ROUNDING_S
        found = (f for f in self._found.get(incident.id, ()) if f.at >= began or f.kind == "exited")
        return tuple(sorted(found, key=lambda fact: fact.at))

    def _stop(self, attempt: int, *, asked: bool) -> None:
        """`asked`: by somebody, so that it is no incident."""
        self._attempt, self._stopped = max(self._attempt, attempt), attempt
        if asked:
            self._last = None
            return
        self._count += 1
        self._last = self._found[self._count] = self._waiting
        self._found.pop(self._count - KEPT, None)

    def _tell_of_ports(self, at: float) -> None:
        """Ranks that have not met may not have reached the port that is used instead of those."""
        for (node, _), detail in self._taken.items() if self._met < self._stopped else ():
            text = f"{self._names.get(node, node)}: {detail}; other nodes must be able to reach it"
            _put(self._last, TimedFact(at=at, kind="port", text=text))

    def _add(self, at: float, kind: str, text: str, attempt: int | None = None) -> None:
        """Of this attempt, or of whatever there is now."""
        if attempt is not None and attempt != self._attempt:
            return
        known = self._waiting if self._attempt > self._stopped else self._last
        _put(known, TimedFact(at=at, kind=kind, text=text))

    def _hear(self, event: AnyEvent, at: float) -> None:
        match event:
            case NodeJoined():
                self._names[event.node] = event.name
            case WorkerExited():
                self._exits((ExitGroup(kind="", first=event),), at)
            case WorkersExited():
                self._exits(event.groups, at)
            case NodeLost() if event.reason is not NodeLostReason.STUCK:
                gone = "was removed (planned)" if event.planned else "was lost"
                name = self._names.pop(event.node, event.node)
                self._add(at, "lost", f"{name} {gone}: {event.detail or event.reason}")
            case NodeLeft():
                self._names.pop(event.node, None)
            case NodesChecked() if event.attempt:
                self._add(at, "checked", _checks(event, self._names), event.attempt)
            case HealthChanged() if event.condition == PORTS_TAKEN:
                self._taken.pop((event.node, event.device), None)
                if event.severity is not Severity.OK:
                    self._taken[event.node, event.device] = event.detail
            case HealthChanged() if _is_told(event):
                name = self._names.get(event.node, event.node)
                self._add(at, "health", f"{name}: {event.detail}")
            case HangSuspected():
                self._add(at, "suspected", _suspicion(event), event.attempt)
            case HangJudged():
                self._add(at, "judged", _judgement(event), event.attempt)
            case NumbersBroke():
                broke = event.broke
                text = f"{broke.what.words} of rank {event.rank} was {broke.value}"
                self._add(at, "numbers", f"the {text} after step {broke.step}", event.attempt)
            case ReplicasDiffer():
                text = f"parameters differ after step {event.step}"
                agreed = f"all were the same after step {event.agreed}"
                self._add(at, "replicas", f"{text}; {agreed}", event.attempt)
            case CollectivesShifted():
                text = "ranks have entered different numbers of collectives since optimizer step"
                self._add(at, "shifted", f"{text} {event.agreed + 1}", event.attempt)
            case AttemptStopped() | Diagnosed():
                self._end(event, at)
            case MilestoneReached():
                self._reached(event, at - event.ago_s)
            case EvidenceTaken():
                _put(self._found.get(event.incident), _evidence(event, at))
            case _:
                pass

    def _exits(self, groups: Sequence[ExitGroup], at: float) -> None:
        for group in groups:
            first = group.first
            if first.exit_code == 0 and first.progress.finished:
                continue
            kind = "left" if first.exit_code == 0 else "exited"
            who = f"rank {first.rank} on {self._names.get(first.node, first.node)}"
            others = f"; likewise {_named(group.others)}" if group.others else ""
            text = f"{who} {_how(first)}{others}"
            self._add(at - first.ago_s, kind, text, first.attempt)

    def _end(self, event: AttemptStopped | Diagnosed, at: float) -> None:
        if isinstance(event, AttemptStopped):
            text = f"no process of attempt {event.attempt} runs any more"
            self._add(at, "stopped", text, event.attempt)
        elif event.rank is None and event.cause == "node-lost":
            self._add(
                at, "verdict", "verdict on the workers: none failed on its own", event.attempt
            )
        else:
            text = (
                f"verdict on the workers: {event.cause} (confidence {event.confidence * 100:.0f} %)"
            )
            self._add(at, "verdict", f"{text}: {event.summary}", event.attempt)

    def _reached(self, event: MilestoneReached, at: float) -> None:
        """By the attempt after the one that was stopped."""
        if event.milestone in MET:
            self._met = max(self._met, event.attempt)
        if event.attempt != self._attempt or self._attempt <= self._stopped:
            return
        who = f"attempt {event.attempt}"
        match event.milestone:
            case Milestone.RESTORED if event.step is not None:
                text = f"{who} {_from(event.step, self._redo_until)}"
                _put(self._last, TimedFact(at=at, kind="restored", text=text))
            case Milestone.FIRST_STEP | Milestone.STEPPED:
                text = f"{who} has done its first step"
                _put(self._last, TimedFact(at=at, kind="first_step", text=text))
            case _:
                pass


def _is_told(event: HealthChanged) -> bool:
    """Whether a condition may have to do with what failed."""
    silent = event.condition in OF_SILENCE and event.severity is not Severity.OK
    return silent or event.severity in (Severity.ALERT, Severity.FATAL)


def _put(known: list[TimedFact] | None, fact: TimedFact) -> None:
    """Few of each kind: the first exits, each once however often it is told; else the newest."""
    alike = [one for one in known or () if one.kind == fact.kind]
    told = fact.kind == "exited" and fact.text in (one.text for one in alike)
    full = len(alike) >= EACH_MAX
    if known is None or told or (full and fact.kind == "exited"):
        return
    if full:
        known.remove(alike[0])
    known.append(fact)


def _suspicion(event: HangSuspected) -> str:
    limit = f"the limit is {event.budget_s:.1f} s"
    return f"suspected: no progress of {_named(event.ranks)} for {event.ago_s:.1f} s, {limit}"


def _named(ranks: Ranks) -> str:
    told = in_words(ranks)
    return f"rank {told}" if told.isdecimal() else f"ranks {told}"


def _judgement(event: HangJudged) -> str:
    if event.judgement is Judgement.HANG:
        return f"judged: a hang (confidence {event.confidence * 100:.0f} %): {event.summary}"
    return f"judged: {event.summary}"


def _how(exited: WorkerExited) -> str:
    if exited.error is not None:
        file = exited.error.file.rpartition("/")[2]
        return f"raised {exited.error.type}" + (f" ({file}:{exited.error.line})" if file else "")
    if exited.signal is None:
        return f"ended with exit status {exited.exit_code}"
    try:
        return f"was killed by {signal.Signals(exited.signal).name}"
    except ValueError:
        return f"was killed by signal {exited.signal}"


def _checks(event: NodesChecked, names: Mapping[str, str]) -> str:
    failed = [f"{names.get(node, node)}: {why}" for node, why in event.found.items() if why]
    if event.missing:
        failed.append(f"{len(event.missing)} did not answer")
    return event.told or "; ".join(failed) or "all machine checks passed"


def _evidence(event: EvidenceTaken, at: float) -> TimedFact:
    if not event.found and event.network:  # links were measured
        return TimedFact(at=at, kind="evidence", text="; ".join(event.network))
    names = [one.node for one in event.found]
    shown = ", ".join(names[:NAMED_MAX]) + (", ..." if len(names) > NAMED_MAX else "")
    missing = f"; {len(event.missing)} did not answer" if event.missing else ""
    return TimedFact(at=at, kind="evidence", text=f"evidence taken on {shown}{missing}")


def _from(step: int, redo_until: int) -> str:
    if not step:
        return "begins with the first step: nothing was restored"
    again = f"; steps up to {redo_until} are done again" if redo_until > step else ""
    return f"goes on after step {step}, which was restored{again}"
