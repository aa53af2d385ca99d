"""The journal: every fact and what was decided, one JSON line each, on disk before it takes effect.

The first line is a header with the format's version and the job. A torn last line, left by a crash,
is cut off; anything unreadable further up, or a gap in the numbers, is refused. Every so often the
controller's state is written beside it, so that a new controller replays only the lines after that.
A file of reserved space lies next to it and is given up when the disk is full, so that a job can
still be driven, stopped and explained then.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.actions import Entry
from holdfast.controller import Controller, Limits, State
from holdfast.errors import Error

VERSION = 1
STATE_EVERY = 2_000  # entries between two snapshots of the state
RESERVE_BYTES = 1 << 20


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a journal."""

    journal: int
    holdfast: str
    job: dict[str, Any]
    created_at: float


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's state after entry `seq`, which ends at byte `offset` of the journal."""

    journal: int
    seq: int
    offset: int
    state: State


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Entry)


class JournalFullError(OSError):
    """No space is left, not even the reserve. The entries stay in memory; try again."""


class Journal:
    """An open journal. `append` collects, `sync` makes durable; effects wait for `sync`."""

    def __init__(self, path: Path, *, seq: int, offset: int) -> None:
        self.seq = seq  # of the last entry
        self._path = path
        self._offset = offset  # bytes that are durable
        self._pending = bytearray()
        self._saved_seq = seq
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        os.ftruncate(self._fd, offset)  # a torn last line
        os.lseek(self._fd, offset, os.SEEK_SET)
        self._reserve()

    @staticmethod
    def create(path: Path, header: Header) -> "Journal":
        """Start a new journal, readable only by its owner; raises `FileExistsError`."""
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        line = _encoder.encode(header) + b"\n"
        with os.fdopen(fd, "wb") as file:
            file.write(line)
            file.flush()
            os.fsync(fd)
        sync_folder(path.parent)
        return Journal(path, seq=0, offset=len(line))

    def append(self, entry: Entry) -> None:
        """Add an entry; it must carry the next number."""
        assert entry.seq == self.seq + 1, f"entry {entry.seq} after {self.seq}"
        self.seq = entry.seq
        _encoder.encode_into(entry, self._pending, -1)
        self._pending += b"\n"

    def sync(self) -> None:
        """Make everything appended durable. Raises `JournalFullError`, and may then be retried."""
        if not self._pending:
            return
        try:
            self._write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._write_into_reserve()

    def save(self, state: State) -> None:
        """Write the state beside the journal if it is time to; failing to is harmless."""
        if self.seq - self._saved_seq < STATE_EVERY or self._pending:
            return
        self._saved_seq = self.seq
        saved = Saved(journal=VERSION, seq=self.seq, offset=self._offset, state=state)
        target = state_path(self._path)
        temporary = target.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            temporary.write_bytes(_encoder.encode(saved))
            temporary.replace(target)

    def close(self) -> None:
        """Make everything durable and give back the reserve."""
        with contextlib.suppress(JournalFullError):
            self.sync()
        os.close(self._fd)
        _reserve_path(self._path).unlink(missing_ok=True)

    def _write(self) -> None:
        try:
            view = memoryview(self._pending)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._offset)
            os.lseek(self._fd, self._offset, os.SEEK_SET)
            raise
        self._offset += len(self._pending)
        self._pending = bytearray()

    def _write_into_reserve(self) -> None:
        _reserve_path(self._path).unlink(missing_ok=True)
        try:
            self._write()
        except OSError as error:
            raise JournalFullError(error.errno, "no space left for the journal") from error

    def _reserve(self) -> None:
        """Without room for the reserve the job still runs; the first write then tells."""
        with contextlib.suppress(OSError):
            fd = os.open(_reserve_path(self._path), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)


def state_path(path: Path) -> Path:
    """Where the state snapshot of this journal lies."""
    return path.with_suffix(".state")


def _reserve_path(path: Path) -> Path:
    return path.with_suffix(".reserve")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a file that was made or renamed there."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# ── reading ───────────────────────────────────────────────────────────────────────────────────


def read_header(path: Path) -> Header:
    """The first line. Raises `Error` journal-version or journal-corrupt."""
    with path.open("rb") as file:
        line = file.readline()
    try:
        header = msgspec.json.decode(line)
        if header["journal"] != VERSION:
            raise _wrong_version(path, header["journal"])
        return msgspec.convert(header, Header)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise _corrupt(path, 1, f"not a header: {error}") from error


def read(path: Path, *, offset: int | None = None, seq: int = 0) -> Iterator[tuple[Entry, int]]:
    """Entries after `seq`, which ends at `offset`, each with the byte offset of its end.

    A torn last line is left out. Raises `Error` journal-corrupt for anything else.
    """
    read_header(path)
    with path.open("rb") as file:
        if offset is None:
            offset = len(file.readline())
        file.seek(offset)
        number = seq + 1  # line in the file, less the header
        for line in file:
            offset += len(line)
            entry = _parse(path, line, number, last=not line.endswith(b"\n"))
            if entry is None:
                return
            yield entry, offset
            number += 1


def entries(path: Path) -> Iterator[Entry]:
    """All entries of a journal."""
    return (entry for entry, _ in read(path))


def replay(path: Path, limits: Limits) -> tuple[Controller, Journal]:
    """Rebuild the controller from the journal and open it for more."""
    saved = _saved(path)
    controller = Controller(limits, saved.state if saved else None)
    seq, offset = (saved.seq, saved.offset) if saved else (0, None)
    end = offset if offset is not None else _header_length(path)
    for entry, end in read(path, offset=offset, seq=seq):  # noqa: B007 - the last end is used
        controller.handle(entry.event, entry.at)
        seq = entry.seq
    return controller, Journal(path, seq=seq, offset=end)


def read_state(path: Path, limits: Limits) -> State:
    """The controller's state as of the last entry, without opening the journal for writing."""
    saved = _saved(path)
    controller = Controller(limits, saved.state if saved else None)
    at = {"offset": saved.offset, "seq": saved.seq} if saved else {}
    for entry, _ in read(path, **at):
        controller.handle(entry.event, entry.at)
    return controller.state


def _header_length(path: Path) -> int:
    with path.open("rb") as file:
        return len(file.readline())


def _saved(path: Path) -> Saved | None:
    """The newest state snapshot, if it is whole and not ahead of the journal."""
    try:
        saved = msgspec.json.decode(state_path(path).read_bytes(), type=Saved)
    except (OSError, msgspec.MsgspecError):
        return None
    fits = saved.journal == VERSION and saved.offset <= path.stat().st_size
    return saved if fits else None


def _parse(path: Path, line: bytes, number: int, *, last: bool) -> Entry | None:
    try:
        entry = _decoder.decode(line)
    except msgspec.MsgspecError as error:
        if last:
            return None
        raise _corrupt(path, number + 1, str(error)) from error
    if entry.seq != number:
        raise _corrupt(path, number + 1, f"entry {entry.seq} where {number} should be")
    return None if last else entry


def _corrupt(path: Path, line: int, why: str) -> Error:
    return Error(
        "journal-corrupt",
        f"{path}, line {line}",
        why=why,
        help="restore the file from a copy, or start the job under a new name",
    )


def _wrong_version(path: Path, found: object) -> Error:
    return Error(
        "journal-version",
        f"{path}, line 1: format {found}",
        why=f"this version of Holdfast reads format {VERSION}",
        help="use the version of Holdfast named in the journal's first line",
    )
