"""What receivers are told, and when: pure."""

from datetime import datetime

import msgspec
import pytest

from holdfast.actions import Outcome
from holdfast.controller import IncidentRecord, Limits, State
from holdfast.controller.phases import Phase
from holdfast.drivers.notices import STANDS_S, Notice, Notices, ToldOf, body_of
from holdfast.errors import Error
from holdfast.spec.load import job_from_dict
from holdfast.spec.notify import WORDS, Notify

URL = "https://chat.example.com/hook"


class Story:
    """A job whose state the test sets, and one receiver."""

    def __init__(self, **rule: object) -> None:
        self.rule = Notify.model_validate({"url": URL, **rule})
        self.state = State(limits=Limits(node_count=1), phase=Phase.RUNNING, attempt=1)
        self.notices = Notices("gpt", self.rule, ToldOf())
        self.now = 1000.0

    def fault(self, number: int = 1) -> IncidentRecord:
        """An incident opens."""
        incident = IncidentRecord(
            id=number, cause="worker-killed", summary="Rank 3 was killed.", node="n1", rank=3,
            attempt=1, step=7, started_at=self.now, detected_at=self.now,
        )  # fmt: skip
        self.state.incidents.append(incident)
        return incident

    def look(self, after_s: float = 0.0) -> list[Notice]:
        """What is told so much later."""
        self.now += after_s
        return self.notices.look(self.state, 0.9, self.now)


def test_an_incident_that_is_soon_over_is_told_of_once_with_what_it_cost() -> None:
    it = Story()
    incident = it.fault()
    assert it.look(1.0) == []
    incident.ended_at, incident.steps_lost = it.now, 2
    (notice,) = it.look(0.5)
    assert (notice.event, notice.incident, notice.over, notice.steps_lost) == (
        "incident", 1, True, 2,
    )  # fmt: skip
    assert notice.text == (
        "incident 1: Rank 3 was killed (worker-killed on n1, rank 3, attempt 1, step 7); "
        "training again after 1.0 s, 2 steps lost"
    )
    assert it.look(100) == []


def test_one_that_lasts_is_told_of_while_it_lasts_and_when_it_is_over() -> None:
    it = Story(after_s=30)
    incident = it.fault()
    assert it.look(29) == [] and it.notices.next_look(it.state) == 1030.0
    (first,) = it.look(1)
    assert not first.over and "has been stopped for 30.0 s" in first.text
    assert it.look(600) == [] and it.notices.next_look(it.state) is None
    incident.ended_at = it.now
    (last,) = it.look()
    assert last.over and "training again after 630.0 s" in last.text


def test_a_job_that_ends_within_an_incident_says_both() -> None:
    it = Story()
    it.fault()
    it.state.phase, it.state.outcome = Phase.GAVE_UP, Outcome.GAVE_UP
    it.state.why = "no node is left"
    told = it.look(1)
    assert [n.event for n in told] == ["incident", "ended"]
    assert told[0].text.endswith("; the job has ended")
    assert told[1].text == "gave_up: no node is left; ETTR 90.0 %, 1 incident"
    assert it.look(1) == []


def test_waiting_is_told_once_each_time() -> None:
    it = Story(after_s=10)
    for _ in range(2):
        it.state.phase, it.state.why = Phase.WAITING, "2 nodes are missing"
        assert it.look() == [] and it.look(9) == []
        (notice,) = it.look(1)
        assert (notice.event, notice.text) == (
            "waiting",
            "has waited for 10 s: 2 nodes are missing",
        )
        assert it.look(60) == []
        it.state.phase, it.state.why = Phase.RUNNING, "attempt 2 trains"
        (over,) = it.look(1)
        assert over.over and over.began_at == notice.began_at
        assert over.text == "no longer waits, after 71 s: attempt 2 trains"
        assert it.look(1) == []


def test_only_what_was_asked_for_is_told() -> None:
    it = Story(on=["ended"])
    it.fault().ended_at = it.now
    it.state.phase = Phase.WAITING
    assert it.look() == [] and it.look(100) == []
    it.state.phase, it.state.outcome = Phase.SUCCEEDED, Outcome.SUCCEEDED
    assert [n.event for n in it.look()] == ["ended"]


def test_a_flood_is_counted_and_the_end_is_told_all_the_same() -> None:
    it = Story(at_most_per_hour=3)
    for number in range(1, 11):
        it.fault(number).ended_at = it.now
    assert len(it.look(1)) == 3
    it.fault(11).ended_at = it.now
    (later,) = it.look(3600)
    assert later.text.endswith("7 more before it in the last hour: holdfast incidents")
    it.state.phase, it.state.outcome = Phase.STOPPED, Outcome.STOPPED
    assert [n.event for n in it.look()] == ["ended"]


def test_the_next_controller_repeats_nothing() -> None:
    it = Story()
    it.fault(1).ended_at = it.now
    it.fault(2)
    assert len(it.look(60)) == 2
    told = msgspec.json.decode(msgspec.json.encode(it.notices.told), type=ToldOf)
    it.notices = Notices("gpt", it.rule, told)
    it.notices.resume(it.state)
    assert it.look(60) == []
    it.state.incidents[1].ended_at = it.now
    assert [n.incident for n in it.look()] == [2]


def test_an_end_that_the_controller_before_did_not_tell_is_told() -> None:
    it = Story()
    incident = it.fault()
    assert len(it.look(60)) == 1
    incident.ended_at = it.now
    it.notices = Notices("gpt", it.rule, it.notices.told)
    it.notices.resume(it.state)
    (notice,) = it.look()
    assert notice.over


def test_without_a_file_old_incidents_are_no_news_and_open_ones_are() -> None:
    it = Story()
    it.fault(1).ended_at = it.now
    it.fault(2)
    it.notices.resume(it.state)
    assert [n.incident for n in it.look(60)] == [2]


@pytest.mark.parametrize("how", ["json", "slack", "alertmanager"])
def test_text_is_that_of_the_template_and_escaped_for_its_receiver(how: str) -> None:
    it = Story(format=how, template="<{job}> {rank} & {outcome}|{text}")
    it.fault().ended_at = it.now
    (notice,) = it.look()
    body = msgspec.json.decode(body_of(notice, it.rule))
    if how == "json":
        assert body["text"] == f"<gpt> 3 & |{notice.text}" and body["cause"] == "worker-killed"
    elif how == "slack":
        assert body == {"text": f"&lt;gpt&gt; 3 &amp; |{notice.text}"}
    else:
        assert body[0]["annotations"]["summary"].startswith("<gpt> 3 & |")


def test_the_end_of_an_incident_resolves_its_alert() -> None:
    it = Story(format="alertmanager", after_s=1)
    incident = it.fault()
    (first,) = it.look(2)
    incident.ended_at, incident.cause, incident.node = it.now, "gpu-lost", "n2"  # known better
    (last,) = it.look(1)
    [begun], [over] = (msgspec.json.decode(body_of(n, it.rule)) for n in (first, last))
    assert begun["labels"] == over["labels"] and begun["startsAt"] == over["startsAt"]
    assert begun["endsAt"] > over["endsAt"] > over["startsAt"], "it stands until its end is told"


def test_the_alert_of_an_incident_that_was_over_at_once_stands_for_a_while() -> None:
    it = Story(format="alertmanager", after_s=5)
    it.fault().ended_at = it.now + 1
    (notice,) = it.look(1)
    (alert,) = msgspec.json.decode(body_of(notice, it.rule))
    assert not notice.again
    assert datetime.fromisoformat(alert["endsAt"]).timestamp() == it.now + STANDS_S


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"url": URL, "url_env": "X"},
        {"url": "ftp://x/y"},
        {"url": URL, "template": "{job.__class__}"},
        {"url": URL, "template": "{nobody}"},
        {"url": URL, "template": "{job!r}"},
        {"url": URL, "template": "{job"},
        {"url": URL, "on": []},
        {"url": URL, "on": ["everything"]},
        {"url": URL, "at_most_per_hour": 0},
    ],
)
def test_a_receiver_that_cannot_be_told_is_refused(rule: dict[str, object]) -> None:
    with pytest.raises(Error) as refused:
        job_from_dict({"name": "a", "script": "t.py", "notify": [rule]}, where="test")
    assert refused.value.slug == "job-invalid" and "notify" in str(refused.value)


def test_every_word_of_a_template_is_a_field() -> None:
    assert set(WORDS) <= {field.name for field in msgspec.structs.fields(Notice)}
