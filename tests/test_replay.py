"""A journal of another version: read, sealed, and compared with what would be decided now."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import journal, lines
from holdfast.actions import EndJob, Outcome, StopAttempt
from holdfast.controller import Limits
from holdfast.errors import Error
from holdfast.events import AttemptStopped, ControllerResumed
from holdfast.replay import _apart, compare, read_state, replay, troubles, until_damage
from tests.test_journal import EVENTS, LIMITS, encoded, write

STARTED = EVENTS[:3]  # an attempt


def old_journal(path: Path) -> bytes:
    """What the version before checksums has written; the same as `write` writes, less them."""
    write(path, EVENTS)
    content = b""
    for line in path.read_bytes().splitlines():
        document = json.loads(line)
        del document["xxh"]
        document["journal"] = 1 if "journal" in document else None
        found = {key: value for key, value in document.items() if value is not None}
        content += json.dumps(found, separators=(",", ":")).encode() + b"\n"
    path.write_bytes(content)
    return content


def rewritten(path: Path, change: Any) -> None:
    """Each entry as `change` makes it of the old one, as another version would have sealed it."""
    first, *rest = path.read_bytes().splitlines(keepends=True)
    content, checksum = first, lines.stated(first)
    assert checksum is not None
    for line in rest:
        document = json.loads(line)
        del document["xxh"]
        change(document)
        sealed = bytearray(msgspec.json.encode(document))
        checksum = lines.seal(sealed, checksum)
        content += sealed
    path.write_bytes(content)


def test_a_journal_without_checksums_is_read_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    content = old_journal(path)
    assert [entry.event for entry in until_damage(path)] == EVENTS
    assert read_state(path, LIMITS).attempt == 1
    assert troubles(path, LIMITS) == []
    assert path.read_bytes() == content


def test_a_job_that_began_without_checksums_goes_on_with_them(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    content = old_journal(path)
    state = journal.state_path(path)
    state.write_bytes(b'{"journal":1,"seq":4,"offset":9,"state":{"limits":{}}}')
    told: list[str] = []
    controller, book = replay(path, LIMITS, told.append)
    book.close()
    before = read_state(path, LIMITS)
    assert encoded(controller) == msgspec.json.encode(before)
    assert path.with_suffix(".v1").read_bytes() == content
    assert lines.sound(path.read_bytes()) and [e.event for e in journal.entries(path)] == EVENTS
    assert told == [
        f"{path} had no checksums and was rewritten with them; the old file is journal.v1"
    ]


def test_an_old_journal_that_is_damaged_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    content = old_journal(path).replace(b'"seq":2', b'"seq":3')
    path.write_bytes(content)
    with pytest.raises(Error, match="entry 3, expected 2"):
        replay(path, LIMITS)
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["journal.jsonl"]


def test_other_words_for_the_same_orders_are_no_divergence(tmp_path: Path) -> None:
    def other_words(document: dict[str, Any]) -> None:
        for action in document["actions"]:
            action["reason"] = f"because: {action['reason']}"

    path = tmp_path / "journal.jsonl"
    write(path, EVENTS)
    rewritten(path, other_words)
    assert compare(path, LIMITS) is None


def test_another_decision_about_nodes_is_told_and_the_job_goes_on(tmp_path: Path) -> None:
    def asked_for_two(document: dict[str, Any]) -> None:
        for action in document["actions"]:
            if action["type"] == "AskNodes":
                action["count"] = 2

    path = tmp_path / "journal.jsonl"
    write(path, EVENTS)
    rewritten(path, asked_for_two)
    told: list[str] = []
    replay(path, LIMITS, told.append)[1].close()
    (note,) = told
    assert "at entry 1 this version decides AskNodes 1, the journal has AskNodes 2" in note
    (trouble,) = troubles(path, LIMITS)
    assert trouble.slug == "journal-diverges" and "Holdfast 0" in trouble.help


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"redo_until": 7}, "(StartAttempt.redo_until: 0, not 7)"),
        ({"skips": [[3, 4]]}, "(StartAttempt.skips: (), not ((3, 4),))"),
        ({"skips": [[n, n + 1] for n in range(99)]}, "(1, 2), (2, 3)"),
        ({"store": {"host": "h" * 999, "port": 1, "hosted": True}}, "(StartAttempt.store.host: "),
    ],
)
def test_orders_that_read_the_same_are_told_by_the_field_that_differs(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    """Found in a record: "decides StartAttempt 6, the journal has StartAttempt 6"."""

    def changed(document: dict[str, Any]) -> None:
        for action in document["actions"]:
            if action["type"] == "StartAttempt":
                action.update(changes)

    path = tmp_path / "journal.jsonl"
    write(path, STARTED)
    rewritten(path, changed)
    found = str(compare(path, LIMITS))
    assert "StartAttempt 1, the journal has AssignRank a; StartAttempt 1 (" in found
    assert told in found and len(found) < 300


def test_what_differs_is_told_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "abcdef-123456")
    here, there = ({"type": "T", "host": host} for host in ("m", "with abcdef-123456"))
    assert _apart([here], [there]) == "T.host: m, not with ***"
    assert _apart([{"type": "T", "api_key": "one"}], [{"type": "T", "api_key": "other"}]) == (
        "T.api_key: ***, not ***"
    )


def test_another_attempt_than_would_be_ordered_is_stopped_and_its_number_not_given_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, STARTED)
    controller, book = replay(path, Limits(node_count=2), lambda _: None)
    book.close()
    assert (controller.state.attempt, book.obeyed) == (0, 1)
    assert "AskNodes 2, the journal has AskNodes 1" in book.diverged
    nodes = tuple(controller.state.nodes)
    event = ControllerResumed(existing=nodes, obeyed=book.obeyed, diverged=book.diverged)
    actions = controller.handle(event, 9.0)
    assert [one.attempt for one in actions if isinstance(one, StopAttempt)] == [1]
    assert "after an upgrade of Holdfast" in controller.state.incidents[-1].summary
    controller.handle(AttemptStopped(attempt=1, store=None), 10.0)
    assert controller.state.attempt == 1, "the next one is 2"


@pytest.mark.parametrize("stops", [True, False])
def test_an_attempt_that_is_stopped_in_one_of_both_accounts_only_is_stopped(
    tmp_path: Path, stops: bool
) -> None:
    """A node that was told to stop an attempt would be told to start it again."""

    def other(document: dict[str, Any]) -> None:
        if stops and any(one["type"] == "StartAttempt" for one in document["actions"]):
            stop = StopAttempt(attempt=1, grace_s=1.0, reason="x")
            document["actions"] += [msgspec.to_builtins(stop)]
        elif not stops:
            document["actions"] = [
                one for one in document["actions"] if one["type"] != "StopAttempt"
            ]

    path = tmp_path / "journal.jsonl"
    write(path, STARTED if stops else EVENTS)
    rewritten(path, other)
    controller, book = replay(path, LIMITS, lambda _: None)
    book.close()
    assert book.obeyed == controller.state.attempt + 1 == 2
    event = ControllerResumed(existing=tuple(controller.state.nodes), obeyed=book.obeyed)
    stopped = [one for one in controller.handle(event, 99.0) if isinstance(one, StopAttempt)]
    assert [one.attempt for one in stopped] == [2], "and with it all that came before"


def test_a_job_that_has_ended_stays_ended_as_the_journal_says(tmp_path: Path) -> None:
    """This version would have waited."""

    def ended(document: dict[str, Any]) -> None:
        end = EndJob(outcome=Outcome.GAVE_UP, reason="no nodes")
        if document["seq"] == len(STARTED):
            document["actions"] = [msgspec.to_builtins(end)]

    path = tmp_path / "journal.jsonl"
    write(path, STARTED)
    rewritten(path, ended)
    state = read_state(path, LIMITS)
    assert (state.outcome, state.why, state.phase) == ("gave_up", "no nodes", "gave_up")
    controller, book = replay(path, LIMITS, lambda _: None)
    book.close()
    assert encoded(controller) == msgspec.json.encode(state) and book.obeyed == 0


def test_a_job_that_only_this_version_would_have_ended_is_not_driven_on(tmp_path: Path) -> None:
    """For its controller it would be over."""

    def goes_on(document: dict[str, Any]) -> None:
        document["actions"] = [one for one in document["actions"] if one["type"] != "EndJob"]

    path = tmp_path / "journal.jsonl"
    write(path, [EVENTS[0], EVENTS[-1]])
    rewritten(path, goes_on)
    content = path.read_bytes()
    with pytest.raises(Error, match="decides EndJob stopped, the journal has nothing") as raised:
        replay(path, LIMITS)
    assert raised.value.slug == "journal-diverges"
    assert path.read_bytes() == content


def test_an_entry_that_cannot_be_followed_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impossible(*_: object) -> None:
        raise KeyError("node-9")

    path = tmp_path / "journal.jsonl"
    write(path, EVENTS)
    monkeypatch.setattr("holdfast.controller.Controller.handle", impossible)
    with pytest.raises(Error, match="cannot replay entry 1: KeyError: 'node-9'"):
        replay(path, LIMITS)
    assert read_state(path, LIMITS).attempt == 0
