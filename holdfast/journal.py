"""The journal: every fact and what was decided, one JSON line each, on disk before it takes effect.

The first line is a header with the format's version and the job. Each line ends with a checksum
that covers it and all lines before (`holdfast/lines.py`), so bits that flipped and lines that were
removed, put in or swapped are found. A last line without its end, left by a crash, is cut off: it
was never durable, so nothing that it orders has happened. Anything else is refused.

Every so often the controller's state is written beside it, so that a new controller replays only
the lines after that. A file of reserved space lies next to it and is given up when the disk is
full, so that a job can still be driven, stopped and explained then.
"""

import contextlib
import errno
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from holdfast import lines
from holdfast.actions import Entry
from holdfast.controller import State
from holdfast.errors import Error
from holdfast.files import open_plain, read_plain, write_durable

VERSION = 2
UNSEALED = 1  # the format before it, whose lines have no checksums: it is still read
STATE_EVERY = 2_000  # entries between two snapshots of the state
RESERVE_BYTES = 1 << 20
HEADER_MAX_BYTES = 4 << 20
LINE_MAX_BYTES = 64 << 20  # several times what the largest job needs
STATE_MAX_BYTES = 512 << 20


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a journal."""

    journal: int
    holdfast: str
    job: dict[str, Any]
    created_at: float


class Mark(NamedTuple):
    """A place in a journal, between two lines."""

    seq: int  # of the previous line; the header is line 0
    offset: int  # in bytes
    checksum: int  # that of the line before


BEGIN = Mark(-1, 0, 0)


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's state after entry `seq`, which ends at byte `offset` of the journal."""

    journal: int
    seq: int
    offset: int
    follows: str  # checksum of that entry's line, in hexadecimal digits
    state: State

    @property
    def mark(self) -> Mark:
        """Where the journal goes on."""
        return Mark(self.seq, self.offset, int(self.follows, 16))


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Entry)


class JournalFullError(OSError):
    """No space is left, not even the reserve. The entries stay in memory; try again."""


class Journal:
    """An open journal. `append` collects, `sync` makes durable; effects wait for `sync`."""

    def __init__(self, path: Path, end: Mark) -> None:
        self.seq = end.seq  # of the last entry
        self.obeyed = 0  # attempts up to this one were ordered, or are void: see `replay`
        self.diverged = ""  # and why
        self._path = path
        self._offset = end.offset  # bytes that are durable
        self._checksum = end.checksum  # of the last line
        self._line = bytearray()  # a buffer, used again for each
        self._pending = bytearray()
        self._saved_seq = end.seq
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        os.ftruncate(self._fd, end.offset)  # a torn last line
        os.lseek(self._fd, end.offset, os.SEEK_SET)
        self._reserve()

    @staticmethod
    def create(path: Path, header: Header) -> "Journal":
        """Start a new journal, readable only by its owner; raises `FileExistsError`."""
        line = bytearray(_encoder.encode(header))
        checksum = lines.seal(line, BEGIN.checksum)
        write_durable(path, line)
        return Journal(path, Mark(0, len(line), checksum))

    def append(self, entry: Entry) -> None:
        """Add an entry; it must carry the next number."""
        assert entry.seq == self.seq + 1, f"entry {entry.seq} after {self.seq}"
        self.seq = entry.seq
        _encoder.encode_into(entry, self._line)
        self._checksum = lines.seal(self._line, self._checksum)
        self._pending += self._line

    def sync(self) -> None:
        """Make everything appended durable. Raises `JournalFullError`, and may then be retried, and
        `Error` job-replaced: nothing may follow from what nobody reads."""
        if not self._pending:
            return
        if self.replaced:
            raise _replaced(self._path)
        try:
            self._write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            self._write_into_reserve()

    @property
    def replaced(self) -> bool:
        """Whether its name is another file's: the folder was removed, and a job was made there. One
        that is only removed goes on: its job trains, and would not train any better for knowing."""
        try:
            return not os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except OSError:
            return False

    def save(self, state: State) -> None:
        """Write the state beside the journal if it is time to; failing to is harmless."""
        if self.seq - self._saved_seq < STATE_EVERY or self._pending or self.replaced:
            return
        self._saved_seq = self.seq
        saved = Saved(
            journal=VERSION, seq=self.seq, offset=self._offset, follows=f"{self._checksum:x}",
            state=state,
        )  # fmt: skip
        target = state_path(self._path)
        temporary = target.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            _encoder.encode_into(saved, self._line)
            lines.seal(self._line, 0)
            temporary.write_bytes(self._line)
            temporary.replace(target)

    def close(self) -> None:
        """Make everything durable and give back the reserve."""
        replaced = self.replaced
        with contextlib.suppress(JournalFullError):
            if not replaced:
                self.sync()
        os.close(self._fd)
        with contextlib.suppress(OSError):
            if not replaced:
                _reserve_path(self._path).unlink()

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
            flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(_reserve_path(self._path), flags, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)


def state_path(path: Path) -> Path:
    """Where the state snapshot of this journal lies."""
    return path.with_suffix(".state")


def _reserve_path(path: Path) -> Path:
    return path.with_suffix(".reserve")


# ── reading ───────────────────────────────────────────────────────────────────────────────────


def read_header(path: Path) -> Header:
    """The first line. Raises `Error` journal-version or journal-corrupt."""
    with open_plain(path) as file:
        return _first(file, path)[0]


def read(path: Path, after: Mark | None = None) -> Iterator[tuple[Entry, Mark]]:
    """Entries, or those after a place in the journal, each with the place that follows it.

    A torn last line is left out. Raises `Error` journal-corrupt or journal-version; what precedes
    the damage has been given then.
    """
    for line, mark in _lines(path, after):
        try:
            entry = _decoder.decode(line)
        except (ValueError, RecursionError) as error:
            raise _corrupt(path, mark.seq, mark.offset - len(line), str(error)) from error
        if entry.seq != mark.seq:
            why = f"entry {entry.seq}, expected {mark.seq}"
            raise _corrupt(path, mark.seq, mark.offset - len(line), why)
        yield entry, mark


def entries(path: Path) -> Iterator[Entry]:
    """All entries of a journal."""
    return (entry for entry, _ in read(path))


def end_of(path: Path) -> Mark:
    """The end of the last whole line, every checksum on the way being right. Raises `Error`."""
    with open_plain(path) as file:
        _, mark = _first(file, path)
    for _, mark in _lines(path, None):  # noqa: B007 - the last one is wanted
        pass
    return mark


def read_saved(path: Path) -> Saved | None:
    """The newest state snapshot that belongs to this journal; None if there is none.

    Raises `Error` journal-state-damaged if it is, or of another journal: it can be done without.
    """
    try:
        line = read_plain(state_path(path), STATE_MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _state_unusable(path, error.strerror or str(error)) from error
    try:
        saved = msgspec.json.decode(line, type=Saved)
    except (ValueError, RecursionError) as error:
        if line.startswith(lines.UNSEALED):
            return None  # beside a journal of the format without checksums, it had none either
        raise _state_unusable(path, str(error)) from error
    if lines.unseal(line, 0) is None:
        raise _state_unusable(path, "checksum mismatch")
    if saved.journal != VERSION:
        raise _state_unusable(path, f"format {saved.journal}, expected {VERSION}")
    if saved.offset <= path.stat().st_size and not _ends_with(path, saved.mark):
        raise _state_unusable(path, f"its entry {saved.seq} differs from the one in the journal")
    return saved


def _lines(path: Path, after: Mark | None) -> Iterator[tuple[bytes, Mark]]:
    """Whole lines whose checksums are right, without the header."""
    with open_plain(path) as file:
        header, mark = _first(file, path)
        if after is not None:
            mark = after
            file.seek(mark.offset)
        while line := file.readline(LINE_MAX_BYTES):
            checksum = _checksum(line, mark, sealed=header.journal == VERSION)
            if checksum is None:
                raise _damaged(path, mark, line, last=not file.read(1))
            if not line.endswith(b"\n"):
                return
            mark = Mark(mark.seq + 1, mark.offset + len(line), checksum)
            yield line, mark


def _checksum(line: bytes, before: Mark, *, sealed: bool) -> int | None:
    """That of a line; None if the line is damaged, anything if it is torn."""
    if line.endswith(b"\n"):
        return lines.unseal(line, before.checksum) if sealed else 0
    whole_but_for_its_end = sealed and lines.stated(line[:-1] + b"\n") is not None
    return None if whole_but_for_its_end or len(line) == LINE_MAX_BYTES else 0


def _first(file: BinaryIO, path: Path) -> tuple[Header, Mark]:
    line = file.readline(HEADER_MAX_BYTES)
    try:
        fields = msgspec.json.decode(line)
        version = fields["journal"]
        if version not in (VERSION, UNSEALED):
            raise _wrong_version(path, version)
        header = msgspec.convert(fields, Header)
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise _corrupt(path, 0, 0, f"not a header: {error}") from error
    checksum = lines.unseal(line, BEGIN.checksum)
    sealed = version == VERSION
    if (checksum is None) if sealed else (lines.stated(line) is not None):
        raise _corrupt(path, 0, 0, "checksum mismatch")
    return header, Mark(0, len(line), checksum or 0)


def _ends_with(path: Path, mark: Mark) -> bool:
    """Whether a line with the checksum of this place ends there."""
    tail = 64
    with open_plain(path) as file:
        file.seek(max(0, mark.offset - tail))
        return lines.stated(file.read(min(tail, mark.offset))) == mark.checksum


# ── what can be wrong ─────────────────────────────────────────────────────────────────────────


def _damaged(path: Path, before: Mark, line: bytes, *, last: bool) -> Error:
    """The error for a line that is not what was written after this place."""
    seq = before.seq + 1
    try:
        found = _decoder.decode(line).seq
    except (ValueError, RecursionError) as problem:
        why = f"checksum mismatch: {problem}"
    else:
        other = f"entry {found}, expected {seq}"
        why = "checksum mismatch" if found == seq else other
    error = _corrupt(path, seq, before.offset, why)
    if last:
        error.help += (
            "; or, to continue without this last line, whose orders may have been executed: "
            f"holdfast stop, then truncate -s {before.offset} {shlex.quote(str(path))}"
        )
    return error


def _corrupt(path: Path, seq: int, at: int, why: str) -> Error:
    sound = "; everything before it is intact" if seq else ""
    return Error(
        "journal-corrupt",
        f"{path}, line {seq + 1}, at byte {at}",
        why=f"{why}{sound}",
        help="restore the file from a backup, or start the job under a new name",
    )


def _replaced(path: Path) -> Error:
    name = path.parent.name
    return Error(
        "job-replaced",
        f"this controller of job {name!r} ends: its record was removed, and another one is there",
        why=f"{path} is not the file that it writes to",
        help=f"holdfast status {name}   (of the job whose record is there)",
    )


def _state_unusable(path: Path, why: str) -> Error:
    return Error(
        "journal-state-damaged",
        f"{state_path(path)} is ignored",
        why=why,
        help="no data is lost: the journal is replayed from its first line instead",
    )


def _wrong_version(path: Path, found: object) -> Error:
    return Error(
        "journal-version",
        f"{path}, line 1: format {found}",
        why=f"this version of Holdfast supports formats {UNSEALED} and {VERSION}",
        help="use the version of Holdfast named in the journal's first line",
    )
