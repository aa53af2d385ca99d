"""The cache of data sets on a machine: what is whole, who uses it, what goes when room is needed.

    FOLDER/fetching          locked (flock) by the one that changes what is here
    FOLDER/KEY/contents.json what lies in KEY/data, with the SHA-256 of each file
    FOLDER/KEY/data/...      the files
    FOLDER/KEY.part/         one that is being fetched, or was until its process was killed
    FOLDER/KEY.lease         locked (flock, shared) by every node that uses it; its time: last use

Everything is on disk before `KEY.part` becomes `KEY` by a rename, so what is there is whole. Locks
are the kernel's: those of a process that is killed are gone with it. A data set is removed only
under the exclusive lock of its lease, which nobody can have while a job uses it. The folder is one
that a user has named: what does not look like the above in every part is not ours to remove.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.datasets.source import SourceFile
from holdfast.errors import Error
from holdfast.files import sync_folder

LOOK_S = 0.2
READ_BYTES = 8 << 20
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_KEY = re.compile(r"[0-9a-f]{32}")
_FETCHING, _CONTENTS, _DATA = "fetching", "contents.json", "data"
_PART, _GONE, _LEASE = ".part", ".gone", ".lease"


class CachedFile(msgspec.Struct, frozen=True):
    """One file as it was when it was verified."""

    name: str
    size: int
    sha256: str
    mtime_ns: int


class CachedContents(msgspec.Struct, frozen=True):
    """What one data set of the cache is."""

    source: str
    manifest: str | None
    sha256: str  # of the manifest, or of the only file: what a job can ask for
    files: tuple[CachedFile, ...]
    fetched_at: float

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class RoomNeeded(NamedTuple):
    """What a data set needs."""

    size: int  # bytes of the whole
    missing: int  # bytes that are not on the disk yet
    limit: int  # of all data sets in this cache
    what: str  # for people


class _Kept(NamedTuple):
    size: int
    used_at: float


class _Shortage(NamedTuple):
    size: int
    why: str


class Cache:
    """One folder, which is made. Raises `OSError`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    # ── what is here ──

    def whole(self) -> dict[str, CachedContents]:
        """Every data set that can be used, by its key."""
        found = {}
        for path in self.folder.iterdir():
            if _KEY.fullmatch(path.name) and (contents := self.contents(path.name)) is not None:
                found[path.name] = contents
        return found

    def contents(self, key: str) -> CachedContents | None:
        """Of a whole one; None if it is not here, or the disk has lost what it was."""
        try:
            raw = (self.folder / key / _CONTENTS).read_bytes()
            return msgspec.json.decode(raw, type=CachedContents)
        except (OSError, ValueError):  # msgspec's are ValueErrors
            return None

    def data(self, key: str) -> Path:
        """Where the files of a whole one lie."""
        return self.folder / key / _DATA

    def damaged(
        self, key: str, contents: CachedContents, *, full: bool, read: Callable[[int], None]
    ) -> list[CachedFile]:
        """Files that are not as they were: by their bytes where size or time has changed, or all
        (`full`). `read` hears of bytes that were read for that."""
        return [
            file
            for file in contents.files
            if not _is_sound(self.data(key) / file.name, file, read if full else None)
        ]

    # ── who uses it ──

    def lease(self, key: str) -> int | None:
        """Use a data set from now on, until this descriptor, and all copies of it, are closed or
        their processes dead; None if it is not here."""
        fd = self._open_lease(key)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            if (self.folder / key / _CONTENTS).exists():
                os.utime(fd)
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def _open_lease(self, key: str) -> int:
        return os.open(self.folder / f"{key}{_LEASE}", os.O_RDWR | os.O_CREAT, 0o644)

    @contextmanager
    def fetching(self, waiting: Callable[[bool], None]) -> Iterator[None]:
        """Be the only one who fetches or removes; `waiting` hears again and again whether the one
        that does meanwhile has come further."""
        fd = os.open(self.folder / _FETCHING, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            seen = os.fstat(fd).st_mtime_ns
            while not _locked(fd, fcntl.LOCK_EX):
                now = os.fstat(fd).st_mtime_ns
                waiting(now != seen)
                seen = now
                time.sleep(LOOK_S)
            self._clear_away()
            yield
        finally:
            os.close(fd)

    def progressed(self) -> None:
        """Let those who wait see that the fetch goes on."""
        os.utime(self.folder / _FETCHING)

    # ── changes, by the one who is `fetching` ──

    def part(self, key: str) -> Path:
        """The folder in which a data set is fetched, with what an earlier try has left there."""
        path = self.folder / f"{key}{_PART}"
        (path / _DATA).mkdir(parents=True, exist_ok=True)
        return path

    def commit(self, key: str, contents: CachedContents) -> None:
        """All files lie in its part, on disk."""
        path = self.folder / f"{key}{_PART}"
        for folder, _, _ in os.walk(path / _DATA):
            sync_folder(Path(folder))
        with (path / _CONTENTS).open("wb") as file:
            file.write(msgspec.json.encode(contents))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path)
        path.rename(self.folder / key)
        sync_folder(self.folder)

    def drop_part(self, key: str) -> None:
        """What was fetched of it is invalid."""
        shutil.rmtree(self.folder / f"{key}{_PART}", ignore_errors=True)

    def remove(self, key: str) -> bool:
        """Remove a data set; False if a job uses it."""
        path = self.folder / key
        gone = path.with_name(f"{key}{_GONE}")
        with self._unused(key) as unused:
            if not unused:
                return False
            path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        return True

    @contextmanager
    def _unused(self, key: str) -> Iterator[bool]:
        """Whether no job uses it; then none begins to meanwhile."""
        fd = self._open_lease(key.removesuffix(_PART))
        try:
            yield _locked(fd, fcntl.LOCK_EX)
        finally:
            os.close(fd)

    def make_room(self, key: str, room: RoomNeeded, say: Callable[[str], None]) -> None:
        """Remove what was not used for longest, until this data set fits both below the limit of
        the cache and on the disk; nothing, if it would not fit even then. Raises `Error`
        dataset-no-room."""
        if room.size > room.limit:
            raise _no_room(
                room.what, f"it has {size_text(room.size)}, the cache {size_text(room.limit)}"
            )
        found = self._others(key)
        others = dict(sorted(found.items(), key=lambda one: one[1].used_at))
        while short := self._shortage(others, room):
            idle = [name for name in others if self._is_idle(name)]
            if short.size > sum(others[name].size for name in idle):
                used = [self._told(name, others[name]) for name in others if name not in idle]
                told = ", ".join(used) or "nothing else is in the cache"
                raise _no_room(room.what, f"{short.why}; used by live jobs: {told}")
            name = idle[0]
            what = self._told(name, others[name])
            if self.remove(name):
                ago_h = (time.time() - others[name].used_at) / 3600
                say(f"removed {what} from the cache, last used {ago_h:.1f} h ago: {short.why}")
                del others[name]

    def _others(self, key: str) -> dict[str, _Kept]:
        """All that could go."""
        found = {}
        for path in self.folder.iterdir():
            name = path.name.removesuffix(_PART)
            if name != key and _is_ours(path, name):
                lease = self.folder / f"{name}{_LEASE}"
                at = lease.stat().st_mtime if lease.exists() else path.stat().st_mtime
                found[path.name] = _Kept(bytes_below(path), at)
        return found

    def _is_idle(self, name: str) -> bool:
        with self._unused(name) as unused:
            return unused

    def _shortage(self, others: dict[str, _Kept], room: RoomNeeded) -> _Shortage | None:
        above = room.size + sum(other.size for other in others.values()) - room.limit
        disk = os.statvfs(self.folder)
        free = disk.f_bavail * disk.f_frsize
        missing = room.missing - free
        if above <= 0 and missing <= 0:
            return None
        limit, left = size_text(room.limit), size_text(free)
        why = (
            f"{room.what} needs {size_text(room.size)} of {limit} of the cache"
            if above > 0
            else f"{room.what} needs {size_text(room.missing)}, the disk has {left} left"
        )
        return _Shortage(max(above, missing), why)

    def _told(self, name: str, kept: _Kept) -> str:
        contents = self.contents(name)
        told = f"data set {contents.source}" if contents else "an incomplete data set"
        return f"{told} ({size_text(kept.size)})"

    def _clear_away(self) -> None:
        """What was being removed when its process was killed."""
        for path in self.folder.glob(f"*{_GONE}"):
            if _KEY.fullmatch(path.name.removesuffix(_GONE).removesuffix(_PART)):
                shutil.rmtree(path, ignore_errors=True)


def _is_ours(path: Path, key: str) -> bool:
    """Other programs name folders by sums, too."""
    if not _KEY.fullmatch(key) or path.is_symlink() or not (path / _DATA).is_dir():
        return False
    return path.name != key or (path / _CONTENTS).is_file()


def key_of(source: str, manifest: str | None, files: list[SourceFile]) -> str:
    """The name of these contents in a cache: other files, or other tags, are another data set."""
    told = msgspec.json.encode([source, manifest, files])
    return hashlib.sha256(told).hexdigest()[:32]


def sha256_of(path: Path, read: Callable[[int], None] = lambda _: None) -> str:
    """Of a file; `read` hears of its bytes. Raises `OSError`."""
    found = hashlib.sha256()
    for piece in pieces_of(path, path.stat().st_size):
        found.update(piece)
        read(len(piece))
    return found.hexdigest()


def pieces_of(path: Path, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file, piece by piece. Raises `OSError`."""
    with path.open("rb") as file:
        while size and (piece := file.read(min(size, READ_BYTES))):
            yield piece
            size -= len(piece)


def bytes_below(folder: Path) -> int:
    """Of all files in a folder."""
    found = 0
    for here, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found += os.lstat(os.path.join(here, name)).st_size
    return found


def _is_sound(path: Path, file: CachedFile, read: Callable[[int], None] | None) -> bool:
    """By its bytes, which `read` hears of; or, without one, only if its time has changed."""
    try:
        now = path.stat()
        if now.st_size != file.size:
            return False
        if read is None and now.st_mtime_ns == file.mtime_ns:
            return True
        return sha256_of(path, read or (lambda _: None)) == file.sha256
    except OSError:
        return False


def _locked(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def size_text(size: float) -> str:
    """Bytes for people."""
    unit, name = next((u for u in UNITS if size >= u[0]), UNITS[-1])
    return f"{size / unit:.1f} {name}"


def _no_room(what: str, why: str) -> Error:
    return Error(
        "dataset-no-room",
        f"{what} does not fit into the cache of this machine",
        why=why,
        help="raise `cache.size`, name a `cache.folder` on a larger disk, or end a job",
    )
