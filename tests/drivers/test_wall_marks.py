"""People compare the times that they are told with those of other logs."""

import msgspec
import pytest

from holdfast.actions import Entry
from holdfast.cli import incidents, story
from holdfast.controller import IncidentRecord
from holdfast.controller.state import Limits, State
from holdfast.drivers import report
from holdfast.drivers.incident_facts import IncidentFacts
from holdfast.drivers.wall_marks import WallMarks
from holdfast.events import DeadlinePassed
from holdfast.goodput import ledger
from holdfast.status import Note

SLEPT_S = 28_800.0


def line(number: int, at: float, ahead_s: float | None = None) -> Entry:
    return Entry(number, at, DeadlinePassed(), (), (), ahead_s)


def record(number: int, at: float) -> IncidentRecord:
    return IncidentRecord(
        id=number, cause="hang", summary="it hangs", node="n", rank=0, attempt=number, step=3,
        started_at=at, detected_at=at + 1.0, ended_at=at + 2.0,
    )  # fmt: skip


def test_each_time_is_told_as_the_wall_clock_was_then() -> None:
    """The machine slept after 100 s, its clock was set back after 300, and the controller that
    begins after 400 goes by the wall clock again."""
    wall = WallMarks()
    seen: list[tuple[float, float | None]] = [
        (0.0, None),
        (100.0, SLEPT_S),
        (150.0, SLEPT_S + 0.2),
        (300.0, 60.0),
        (400.0, None),
    ]
    for number, (at, ahead_s) in enumerate(seen, start=1):
        wall.hear(line(number, at, ahead_s))
    assert [wall.ahead_s(at) for at in (-9.0, 99.0, 100.0, 299.0)] == [0.0, 0.0, SLEPT_S, SLEPT_S]
    assert [wall.moment(at) for at in (300.0, 400.0, 1e9)] == [360.0, 400.0, 1e9]


def test_an_incident_after_the_machine_slept_is_told_at_the_time_that_its_logs_have() -> None:
    """And it has not become longer, nor its parts."""
    facts, state = IncidentFacts(), State(limits=Limits(node_count=1))
    state.incidents = [record(1, 50.0), record(2, 200.0)]
    state.notes = [Note(at=210.0, attempt=2, step=4, rank=0, text="a spike")]
    for entry in (line(1, 10.0), line(2, 150.0, SLEPT_S), line(3, 220.0, SLEPT_S)):
        facts.hear(entry)
    accounts = ledger(0.0, [], 300.0)
    before, after = report.incidents("gpt", state, accounts, facts)
    assert story.began(before) == story.clock(50.0)
    assert story.began(after) == story.clock(200.0 + SLEPT_S) == incidents.row(after)[1]
    assert after.ended_at is not None and after.ended_at - after.started_at == 2.0
    assert "over   after 2.0 s: training is productive again" in story.course(after)
    status = report.job_status("gpt", state, accounts, controller="alive", wall=facts.wall)
    assert story.notes(status) == [f"{story.clock(210.0 + SLEPT_S)}, attempt 2: a spike"]


@pytest.mark.parametrize("ahead_s", [None, SLEPT_S])
def test_a_journal_says_so_only_where_they_differ(ahead_s: float | None) -> None:
    text = msgspec.json.encode(line(1, 10.0, ahead_s))
    assert (b"ahead_s" in text) is bool(ahead_s)
    assert msgspec.json.decode(text, type=Entry) == line(1, 10.0, ahead_s)
