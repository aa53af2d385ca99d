"""Whatever happens to the bytes of a journal: it is refused, or leads to the very same state."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import journal, lines
from holdfast.actions import Entry
from holdfast.controller import Controller, Limits
from holdfast.errors import Error
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    Diagnosed,
    JobSubmitted,
    NodeJoined,
    NodeReady,
    Progress,
    Store,
    WorkerExited,
)
from holdfast.replay import read_state, replay, troubles, until_damage

LIMITS = Limits(node_count=1)
EVENTS: list[AnyEvent] = [
    JobSubmitted(),
    NodeJoined(node="a", name="node-0", address="127.0.0.1", workers=1),
    NodeReady(node="a", store=Store("127.0.0.1", 1, True)),
    WorkerExited(node="a", attempt=1, rank=0, exit_code=1, signal=None, progress=Progress(step=7)),
    AttemptStopped(attempt=1, store=Store("127.0.0.1", 2, True)),
    Diagnosed(attempt=1, cause="worker-killed", summary="it was killed", confidence=1.0),
]
STATE_AT = 3  # entries; one more each time would leave nothing to replay
EVERY_BIT = "HOLDFAST_TEST_MORE" in os.environ


class Written(NamedTuple):
    """The bytes of a journal and of the state beside it, and the state after each entry."""

    journal: bytes
    saved: bytes
    states: list[bytes]

    @property
    def lines(self) -> list[bytes]:
        return self.journal.splitlines(keepends=True)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    path = tmp_path_factory.mktemp("written") / "journal.jsonl"
    header = journal.Header(journal=journal.VERSION, holdfast="0", job={}, created_at=1.0)
    controller = Controller(LIMITS)
    states = [_state(controller)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "STATE_EVERY", STATE_AT)
        book = journal.Journal.create(path, header)
        for seq, event in enumerate(EVENTS, start=1):
            book.append(Entry(seq, float(seq), event, tuple(controller.handle(event, float(seq)))))
            book.sync()
            if seq == STATE_AT:
                book.save(controller.state)
            states.append(_state(controller))
        book.close()
    return Written(path.read_bytes(), journal.state_path(path).read_bytes(), states)


@pytest.fixture(scope="module", autouse=True)
def no_reserve() -> Iterator[None]:
    """A file of a mebibyte for each example would take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal.Journal, "_reserve", lambda _: None)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def _state(controller: Controller) -> bytes:
    return msgspec.json.encode(controller.state)


def replayed(folder: Path, content: bytes, saved: bytes | None) -> bytes | None:
    """The state that a new controller has; None if it refuses."""
    path = folder / "journal.jsonl"
    path.write_bytes(content)
    journal.state_path(path).unlink(missing_ok=True)
    if saved is not None:
        journal.state_path(path).write_bytes(saved)
    try:
        controller, book = replay(path, LIMITS, lambda _: None)
    except Error as error:
        refused = error.slug
    else:
        book.close()
        return _state(controller)
    assert refused in ("journal-corrupt", "journal-version")
    assert path.read_bytes() == content, "what is refused is left as it is"
    return None


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@given(data=st.data(), with_state=st.booleans())
def test_a_flipped_bit_in_the_journal_is_refused(
    folder: Path, written: Written, data: st.DataObject, with_state: bool
) -> None:
    bit = data.draw(st.integers(0, 8 * len(written.journal) - 1))
    saved = written.saved if with_state else None
    assert replayed(folder, flipped(written.journal, bit), saved) is None


@given(data=st.data())
def test_a_flipped_bit_in_the_saved_state_changes_nothing(
    folder: Path, written: Written, data: st.DataObject
) -> None:
    bit = data.draw(st.integers(0, 8 * len(written.saved) - 1))
    assert replayed(folder, written.journal, flipped(written.saved, bit)) == written.states[-1]


@pytest.mark.skipif(not EVERY_BIT, reason="HOLDFAST_TEST_MORE=1")
def test_every_single_bit(folder: Path, written: Written) -> None:
    path = folder / "journal.jsonl"
    for bit in range(8 * len(written.journal)):
        path.write_bytes(flipped(written.journal, bit))
        with pytest.raises(Error):
            journal.end_of(path)
    for bit in range(8 * len(written.saved)):
        changed = flipped(written.saved, bit)
        assert replayed(folder, written.journal, changed) == written.states[-1]


@given(data=st.data(), with_state=st.booleans())
def test_lines_that_are_removed_doubled_or_swapped_are_refused(
    folder: Path, written: Written, data: st.DataObject, with_state: bool
) -> None:
    found = written.lines
    one = data.draw(st.integers(0, len(found) - 1))
    other = data.draw(st.integers(0, len(found) - 1))
    if data.draw(st.booleans()):
        found.insert(other, found[one])  # a line of this journal, once more
    elif one == other:
        del found[one]
    else:
        found[one], found[other] = found[other], found[one]
    saved = written.saved if with_state else None
    state = replayed(folder, b"".join(found), saved)
    if found == written.lines[:-1]:  # what was never written cannot be told from what was removed
        assert state == written.states[-2]
    else:
        assert state is None


@given(data=st.data(), with_state=st.booleans())
def test_a_journal_that_ends_early_is_cut_after_a_whole_line(
    folder: Path, written: Written, data: st.DataObject, with_state: bool
) -> None:
    content = written.journal[: data.draw(st.integers(0, len(written.journal)))]
    state = replayed(folder, content, written.saved if with_state else None)
    whole = content.count(b"\n") - 1
    if whole < 0 or (with_state and whole < STATE_AT):
        assert state is None, "the saved state knows that lines are lost"
    else:
        assert state == written.states[whole]


def test_zeroes_after_a_loss_of_power_are_a_torn_line(folder: Path, written: Written) -> None:
    assert replayed(folder, written.journal + bytes(4096), written.saved) == written.states[-1]


def test_the_state_of_another_journal_is_not_taken(folder: Path, written: Written) -> None:
    """The same entries, but begun a second later."""
    other, checksum = b"", 0
    for line in written.lines:
        document = msgspec.json.decode(line)
        del document["xxh"]
        document["created_at" if not other else "at"] = document.get("at", 1.0) + 1.0
        sealed = bytearray(msgspec.json.encode(document))
        checksum = lines.seal(sealed, checksum)
        other += sealed
    assert len(other) == len(written.journal), "the same length, so that only checksums differ"
    with_foreign_state = replayed(folder, other, written.saved)
    assert with_foreign_state == replayed(folder, other, None)
    assert with_foreign_state not in (None, written.states[-1])


def test_readers_show_what_precedes_the_damage_and_say_where_it_is(
    folder: Path, written: Written
) -> None:
    path = folder / "journal.jsonl"
    at = len(b"".join(written.lines[:5]))
    replayed(folder, flipped(written.journal, 8 * (at + 30)), None)
    assert [entry.seq for entry in until_damage(path)] == [1, 2, 3, 4]
    assert msgspec.json.encode(read_state(path, LIMITS)) == written.states[4]
    (trouble,) = troubles(path, LIMITS)
    assert (trouble.slug, trouble.what) == ("journal-corrupt", f"{path}, line 6, at byte {at}")


def test_the_way_out_of_a_damaged_last_line_is_told_and_leads_out(
    folder: Path, written: Written
) -> None:
    path = folder / "journal.jsonl"
    bit = 8 * (len(written.journal) - 40)
    assert replayed(folder, flipped(written.journal, bit), None) is None
    (trouble,) = troubles(path, LIMITS)
    words = trouble.help.split()
    os.truncate(path, int(words[words.index("-s") + 1]))
    controller, book = replay(path, LIMITS)
    book.close()
    assert _state(controller) == written.states[-2]


def test_a_sound_journal_has_no_troubles(folder: Path, written: Written) -> None:
    replayed(folder, written.journal, written.saved)
    assert troubles(folder / "journal.jsonl", LIMITS) == []


def test_each_line_is_json_and_states_the_checksum_of_the_rest(written: Written) -> None:
    before = 0
    for line in written.lines:
        assert msgspec.json.decode(line)["xxh"] == f"{lines.stated(line):016x}"
        checksum = lines.unseal(line, before)
        assert checksum is not None
        before = checksum
