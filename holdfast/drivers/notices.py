"""What a receiver is to be told of a job, and when. Pure: state and time in, notices out.

An incident that is over in a second is told of once, with what it cost; one that lasts is told of
while somebody can still do something, and again when it is over. Floods are counted, not sent.
"""

from collections import deque
from typing import Literal

import msgspec

from holdfast.actions import Outcome
from holdfast.controller import IncidentRecord, State
from holdfast.controller.phases import Phase
from holdfast.counts import count
from holdfast.spec.notify import NoticeKind, Notify

HOUR_S = 3600.0
LASTS_S = 24 * HOUR_S
"""For so long an alert stands whose end is not told: without a time Alertmanager takes it for over
after five minutes."""
STANDS_S = 300.0
"""For so long an alert stands of what was over when it was told: Alertmanager passes nothing on of
what was never open, and gathers for a while before it passes on anything."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to be told; the JSON that is sent. Times are seconds since the epoch."""

    event: NoticeKind
    job: str
    at: float
    text: str  # one sentence for a person
    began_at: float
    over: bool  # it lasts no longer
    again: bool = False  # it was told of before, when it was not over
    attempt: int
    step: int | None = None
    incident: int | None = None
    cause: str | None = None
    node: str | None = None
    rank: int | None = None
    steps_lost: int | None = None
    outcome: str | None = None
    ettr: float | None = None


class ToldOf(msgspec.Struct, kw_only=True):
    """What a receiver knows already; kept in a file, so that no controller repeats another."""

    incidents: dict[int, Literal["open", "over"]] = {}
    waiting_since: float | None = None  # told of
    ended: bool = False


class Notices:
    """For one receiver of one job. `told` is changed as notices are given out."""

    def __init__(self, job: str, rule: Notify, told: ToldOf) -> None:
        self._job, self._rule, self.told = job, rule, told
        self._waits_since: float | None = None
        self._given: deque[float] = deque()
        self._held_count = 0

    def resume(self, state: State) -> None:
        """A controller begins: what was over before is told of already, or too old to be news."""
        for incident in state.incidents:
            known = self.told.incidents.get(incident.id)
            if incident.ended_at is not None and known != "open":
                self.told.incidents[incident.id] = "over"

    def look(self, state: State, ettr: float, now: float) -> list[Notice]:
        """What is to be told now; to be asked after each change and at `next_look`."""
        found: list[Notice] = []
        if "incident" in self._rule.on:
            for incident in state.incidents:
                found += self._incident(incident, state, now)
        if "waiting" in self._rule.on:
            found += self._waiting(state, now)
        if "ended" in self._rule.on and state.ended and not self.told.ended:
            self.told.ended = True
            found.append(self._ended(state, ettr, now))
        return found

    def next_look(self, state: State) -> float | None:
        """When something will have lasted long enough."""
        since = [
            i.started_at
            for i in state.incidents
            if i.ended_at is None and i.id not in self.told.incidents
        ]
        if self._waits_since is not None and self.told.waiting_since is None:
            since.append(self._waits_since)
        return min(since) + self._rule.after_s if since else None

    def _incident(self, incident: IncidentRecord, state: State, now: float) -> list[Notice]:
        known = self.told.incidents.get(incident.id)
        over = incident.ended_at is not None or state.ended
        lasted_s = max(0.0, (incident.ended_at or now) - incident.started_at)
        if known == "over" or (not over and (known or lasted_s < self._rule.after_s)):
            return []
        self.told.incidents[incident.id] = "over" if over else "open"
        if not self._may(now):
            return []
        where = f", rank {incident.rank}" if incident.rank is not None else ""
        step = f", step {incident.step}" if incident.step is not None else ""
        place = f"{incident.cause} on {incident.node}{where}, attempt {incident.attempt}{step}"
        then = f"training has been stopped for {lasted_s:.1f} s"
        if incident.overtaken:
            then = f"not over when the next incident began, {lasted_s:.1f} s later"
        elif incident.ended_at is not None:
            lost = f"{count(incident.steps_lost, 'step')} lost"
            then = f"training again after {lasted_s:.1f} s, {lost}"
        elif over:
            then = "the job has ended"
        what = f"incident {incident.id}: {incident.summary.rstrip('.')} ({place}); {then}"
        notice = Notice(
            event="incident", job=self._job, at=now, text=what + self._held(),
            began_at=incident.started_at, over=over, again=known == "open",
            attempt=incident.attempt, step=incident.step,
            incident=incident.id, cause=incident.cause, node=incident.node, rank=incident.rank,
            steps_lost=incident.steps_lost if over else None,
        )  # fmt: skip
        return [notice]

    def _may(self, now: float) -> bool:
        while self._given and now - self._given[0] >= HOUR_S:
            self._given.popleft()
        if len(self._given) >= self._rule.at_most_per_hour:
            self._held_count += 1
            return False
        self._given.append(now)
        return True

    def _held(self) -> str:
        held, self._held_count = self._held_count, 0
        return f". {held} more before it in the last hour: holdfast incidents" if held else ""

    def _waiting(self, state: State, now: float) -> list[Notice]:
        if state.phase is not Phase.WAITING:
            return self._waited(state, now)
        self._waits_since = self._waits_since or now
        if self.told.waiting_since is not None or now - self._waits_since < self._rule.after_s:
            return []
        self.told.waiting_since = self._waits_since
        why = state.why or "there are not enough nodes"
        text = f"has waited for {now - self._waits_since:.0f} s: {why}"
        notice = Notice(
            event="waiting", job=self._job, at=now, text=text, began_at=self._waits_since,
            over=False, attempt=state.attempt,
        )  # fmt: skip
        return [notice]

    def _waited(self, state: State, now: float) -> list[Notice]:
        """The end of waiting, of which somebody has been told."""
        since, self._waits_since, self.told.waiting_since = self.told.waiting_since, None, None
        if since is None:
            return []
        text = f"no longer waits, after {now - since:.0f} s: {state.why}"
        notice = Notice(
            event="waiting", job=self._job, at=now, text=text, began_at=since, over=True,
            again=True, attempt=state.attempt,
        )  # fmt: skip
        return [notice]

    def _ended(self, state: State, ettr: float, now: float) -> Notice:
        why = f": {state.why}" if state.why else ""
        held, found = self._held(), count(len(state.incidents), "incident")
        text = f"{state.outcome}{why}; ETTR {ettr * 100:.1f} %, {found}"
        return Notice(
            event="ended", job=self._job, at=now, text=text + held, began_at=now, over=True,
            attempt=state.attempt, outcome=str(state.outcome), ettr=ettr,
        )  # fmt: skip


def dated(notice: Notice, ahead_s: float) -> Notice:
    """By another clock, which is so far ahead."""
    at, began_at = notice.at + ahead_s, notice.began_at + ahead_s
    return msgspec.structs.replace(notice, at=at, began_at=began_at)


def text_of(notice: Notice, template: str) -> str:
    """By the template of the receiver; what is not known is empty."""
    fields = msgspec.structs.asdict(notice)
    return template.format_map({k: "" if v is None else v for k, v in fields.items()})


def body_of(notice: Notice, rule: Notify) -> bytes:
    """What is posted: JSON in the format of the receiver."""
    text = text_of(notice, rule.template)
    match rule.format:
        case "json":
            return msgspec.json.encode(msgspec.structs.asdict(notice) | {"text": text})
        case "slack":
            for sign, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
                text = text.replace(sign, written)
            return msgspec.json.encode({"text": text})
        case "alertmanager":
            return msgspec.json.encode([_alert(notice, text)])


def _alert(notice: Notice, text: str) -> dict[str, object]:
    """An alert; the same labels for the same incident, so that its end resolves it."""
    from datetime import UTC, datetime

    def when(at: float) -> str:
        return datetime.fromtimestamp(at, UTC).isoformat()

    grave = notice.event == "waiting" or notice.outcome in (Outcome.FAILED, Outcome.GAVE_UP)
    labels = {
        "alertname": f"Holdfast{notice.event.capitalize()}",
        "holdfast_job": notice.job,
        "severity": "critical" if grave else "warning" if notice.event == "incident" else "info",
    }
    if notice.incident is not None:
        labels["incident"] = str(notice.incident)
    facts = {"cause": notice.cause, "node": notice.node}  # no labels: they may be corrected
    alert: dict[str, object] = {
        "labels": labels,
        "annotations": {"summary": text, **{key: value for key, value in facts.items() if value}},
        "startsAt": when(notice.began_at),
    }
    if notice.event == "ended":
        return alert
    stands_s = LASTS_S if not notice.over else 0.0 if notice.again else STANDS_S
    return alert | {"endsAt": when(notice.at + stands_s)}
