"""A journal of another version: read, sealed, and compared with what would be decided now."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import journal, lines
from holdfast.controller import Limits
from holdfast.errors import Error
from holdfast.replay import compare, read_state, replay, troubles, until_damage
from tests.test_journal import EVENTS, LIMITS, encoded, write


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


def test_a_journal_of_another_attempt_than_would_be_ordered_is_not_driven_on(
    tmp_path: Path,
) -> None:
    """Its number would be given twice."""
    path = tmp_path / "journal.jsonl"
    write(path, EVENTS)
    content = path.read_bytes()
    with pytest.raises(Error, match=r"entry 1 .* AskNodes 2, the journal has AskNodes 1") as raised:
        replay(path, Limits(node_count=2))
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
