"""The journal: durable before effects, whole after a crash, refused when damaged."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast import journal
from holdfast.actions import AnyAction, Entry
from holdfast.controller import Controller, Limits
from holdfast.errors import Error
from holdfast.events import AnyEvent, JobSubmitted, NodeJoined, NodeReady, StopRequested, Store
from holdfast.replay import read_state, replay

LIMITS = Limits(node_count=1)
HEADER = journal.Header(journal=journal.VERSION, holdfast="0", job={"name": "x"}, created_at=1.0)
EVENTS: list[AnyEvent] = [
    JobSubmitted(),
    NodeJoined(node="a", name="node-0", address="127.0.0.1", workers=1),
    NodeReady(node="a", store=Store("127.0.0.1", 1, True)),
    StopRequested(by="test"),
]


def write(path: Path, events: list[AnyEvent]) -> Controller:
    """A journal of what a controller decided about these events, the normal way."""
    controller = Controller(LIMITS)
    book = journal.Journal.create(path, HEADER)
    _record(book, controller, events)
    book.close()
    return controller


def _record(book: journal.Journal, controller: Controller, events: list[AnyEvent]) -> None:
    for event in events:
        at = controller.state.now + 1.0
        actions = tuple(controller.handle(event, at))
        book.append(Entry(book.seq + 1, at, event, actions))
        book.sync()
        book.save(controller.state)


def encoded(controller: Controller) -> bytes:
    return msgspec.json.encode(controller.state)


def test_a_replay_gives_the_state_of_the_controller_that_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    before = write(path, EVENTS)
    after, book = replay(path, LIMITS)
    book.close()
    assert encoded(after) == encoded(before)
    assert book.seq == len(EVENTS)


def test_entries_after_a_replay_continue_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, EVENTS[:2])
    controller, book = replay(path, LIMITS)
    _record(book, controller, EVENTS[2:])
    book.close()
    assert [e.seq for e in journal.entries(path)] == [1, 2, 3, 4]
    assert [e.event for e in journal.entries(path)] == EVENTS


@pytest.mark.parametrize("cut", [1, 2, 30, 150, 500])
def test_a_journal_that_was_cut_goes_on_after_its_last_whole_entry(
    tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, EVENTS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    kept = path.read_bytes().count(b"\n") - 1
    controller, book = replay(path, LIMITS)
    _record(book, controller, EVENTS[kept:])
    book.close()
    assert [e.event for e in journal.entries(path)] == EVENTS


def test_a_damaged_line_in_the_middle_is_refused_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, EVENTS)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b"garbage\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(Error, match="line 3") as raised:
        replay(path, LIMITS)
    assert raised.value.slug == "journal-corrupt"


def test_a_missing_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, EVENTS)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    with pytest.raises(Error, match=r"line 3\b.*\n.*entry 3, expected 2") as raised:
        list(journal.entries(path))
    assert raised.value.slug == "journal-corrupt"


@pytest.mark.parametrize("first", [b"", b"x\n", b"{}\n", b"[]\n", b'{"journal":1}\n'])
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, first: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(first)
    with pytest.raises(Error) as raised:
        replay(path, LIMITS)
    assert raised.value.slug == "journal-corrupt"


def test_a_journal_of_another_version_is_refused_by_whoever_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, EVENTS)
    lines = path.read_bytes().splitlines(keepends=True)
    header = msgspec.structs.replace(HEADER, journal=99)
    path.write_bytes(msgspec.json.encode(header) + b"\n" + b"".join(lines[1:]))
    for read in (
        journal.read_header,
        lambda path: list(journal.entries(path)),
        lambda path: replay(path, LIMITS),
        lambda path: read_state(path, LIMITS),
    ):
        with pytest.raises(Error, match="line 1: format 99") as raised:
            read(path)
        assert raised.value.slug == "journal-version"


def test_a_saved_state_makes_replay_start_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "STATE_EVERY", 3)
    path = tmp_path / "journal.jsonl"
    before = write(path, EVENTS)
    heard: list[AnyEvent] = []
    handle = Controller.handle

    def counting(controller: Controller, event: AnyEvent, now: float) -> list[AnyAction]:
        heard.append(event)
        return handle(controller, event, now)

    monkeypatch.setattr(Controller, "handle", counting)
    after, book = replay(path, LIMITS)
    book.close()
    assert encoded(after) == encoded(before)
    assert heard == EVENTS[3:]


def test_damage_before_the_saved_state_hides_nothing_from_readers_and_stops_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "STATE_EVERY", 3)
    path = tmp_path / "journal.jsonl"
    before = write(path, EVENTS)
    change_line(path, 1, lambda line: line.replace(b'"count":1', b'"count":3'))
    assert msgspec.json.encode(read_state(path, LIMITS)) == encoded(before)
    with pytest.raises(Error, match="line 2, at byte"):
        replay(path, LIMITS)


def change_line(path: Path, number: int, change: Callable[[bytes], bytes]) -> None:
    """Damage one line (0: the header)."""
    lines = path.read_bytes().splitlines(keepends=True)
    changed = change(lines[number])
    assert changed != lines[number]
    path.write_bytes(b"".join([*lines[:number], changed, *lines[number + 1 :]]))


@pytest.mark.parametrize("content", [b"", b"{", b"\0\0\0"])
def test_a_damaged_saved_state_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(journal, "STATE_EVERY", 3)
    path = tmp_path / "journal.jsonl"
    before = write(path, EVENTS)
    journal.state_path(path).write_bytes(content)
    after, book = replay(path, LIMITS)
    book.close()
    assert encoded(after) == encoded(before)


def test_a_journal_is_private_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, EVENTS)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        journal.Journal.create(path, HEADER)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_on_a_full_disk_the_reserve_keeps_the_journal_going(small_disk: Path) -> None:
    path = small_disk / "journal.jsonl"
    controller = Controller(LIMITS)
    book = journal.Journal.create(path, HEADER)
    _fill(small_disk)
    long: list[AnyEvent] = [StopRequested(by="x" * 10_000)]  # more than what is left of a block
    _record(book, controller, EVENTS + long)
    assert not path.with_suffix(".reserve").exists()
    book.close()
    assert [e.event for e in journal.entries(path)] == EVENTS + long


def test_with_the_reserve_used_up_nothing_is_half_written_and_it_goes_on_later(
    small_disk: Path,
) -> None:
    path = small_disk / "journal.jsonl"
    book = journal.Journal.create(path, HEADER)
    _fill(small_disk)
    book.append(Entry(1, 1.0, StopRequested(by="x" * (journal.RESERVE_BYTES + 100_000)), ()))
    size = path.stat().st_size
    for _ in range(3):
        with pytest.raises(journal.JournalFullError):
            book.sync()
        assert path.stat().st_size == size
    (small_disk / "filler").unlink()
    book.sync()
    book.close()
    assert [e.seq for e in journal.entries(path)] == [1]


def _fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"\0" * 4096)


def test_whose_folder_has_another_job_now_decides_nothing_more_and_touches_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder was removed or moved, and the name was used again, while it ran."""
    monkeypatch.setattr(journal, "STATE_EVERY", 1)
    folder = tmp_path / "x"
    folder.mkdir()
    controller, book = Controller(LIMITS), journal.Journal.create(folder / "journal.jsonl", HEADER)
    _record(book, controller, EVENTS[:1])
    folder.rename(tmp_path / "moved")
    _record(book, controller, EVENTS[1:2])  # what nobody has replaced goes on
    folder.mkdir()
    other = journal.Journal.create(folder / "journal.jsonl", HEADER)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(Error) as raised:
        _record(book, controller, EVENTS[2:])
    assert raised.value.slug == "job-replaced"
    book.save(controller.state)
    book.close()
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    other.close()
