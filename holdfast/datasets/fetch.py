"""One data set from its source into the cache of this machine, and the lease on it.

A data set that is there whole is looked over (`verify`) and used without a read from the source:
after a listing where one can be had, which tells whether the source has changed, and after no
request at all where the job says the SHA-256 of what it wants. If the source does not answer, the
newest whole one of that source is used, and said to be.

Otherwise the files that are missing are fetched, some at a time. Each is verified, brought to disk
and renamed; one that a killed process has left unfinished goes on where it can be verified in the
end, and begins anew where it cannot. A file that was damaged in the cache is fetched again alone.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import msgspec

from holdfast.datasets import source as sources
from holdfast.datasets.cache import (
    Cache,
    CachedContents,
    CachedFile,
    RoomNeeded,
    key_of,
    pieces_of,
    sha256_of,
    size_text,
)
from holdfast.datasets.source import DatasetSource, SourceFile, mismatch
from holdfast.errors import Error

AT_ONCE = 4  # files
PARTS = 1000
READ_ONLY, WRITABLE = 0o444, 0o644  # scripts of several jobs share the files
_UNFINISHED = "unfinished"


class DatasetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A data set that a job wants on this machine."""

    name: str
    source: str
    endpoint: str | None = None
    manifest: str | None = None
    sha256: str | None = None
    folder: str  # of the cache
    limit: int  # bytes of the cache
    full: bool = False  # look over every byte of what is there


class FetchNews(msgspec.Struct, frozen=True, kw_only=True):
    """What the process says of one data set; the last word has `data`."""

    name: str
    text: str
    moved: bool | None = None  # it has come further since the last word; None: if it is a new one
    part: int = -1  # of `PARTS` that are fetched
    data: str = ""  # where it lies; the descriptor of its lease comes with it


class DatasetLease(NamedTuple):
    """A data set that cannot go away while `fd` is open."""

    fd: int
    data: Path


@contextmanager
def _closed_unless_used(fd: int) -> Iterator[None]:
    """A lease is given back where what it is for fails: tries go on in the same process."""
    try:
        yield
    except BaseException:
        os.close(fd)
        raise


class Fetch:
    """One data set. `tell` hears what is being done, and whether it has come further."""

    def __init__(self, wanted: DatasetRequest, tell: Callable[[FetchNews], None]) -> None:
        self._wanted, self._tell = wanted, tell
        self._identity = sources.identity(wanted.source)
        self._cache = Cache(Path(wanted.folder))
        self._source: DatasetSource | None = None
        self._lock = Lock()
        self._tags_are_sums: bool | None = None  # it is not known yet
        self._done = 0  # bytes

    def run(self) -> DatasetLease:
        """Until it is there. Raises `Error` dataset-unavailable, -mismatch or -no-room, and
        `OSError`; what was fetched stays for the next try where it is of use."""
        pinned = self._pinned()
        if pinned is not None and (lease := self._sound(pinned)) is not None:
            return lease
        try:
            files = self._listing()
        except Error as error:
            if error.slug != "dataset-unavailable" or (lease := self._newest(error)) is None:
                raise
            return lease
        wanted = self._wanted
        key = key_of(self._identity, wanted.manifest, files)
        if (lease := self._sound(key)) is not None:
            return lease
        with self._cache.fetching(self._waits):
            self._drop_unreadable(key)
            fd = self._cache.lease(key)
            if fd is None:
                self._make_whole(key, files)
                fd = self._cache.lease(key)
            else:
                with _closed_unless_used(fd):
                    if damaged := self._damaged(key):
                        self._mend(key, damaged, {file.name: file for file in files})
        assert fd is not None, "nobody else removes anything meanwhile"
        return DatasetLease(fd, self._cache.data(key))

    # ── what is there ──

    def _pinned(self) -> str | None:
        """A data set of the contents that the job asks for."""
        if self._wanted.sha256 is None:
            return None
        return self._key_where(lambda contents: contents.sha256 == self._wanted.sha256)

    def _key_where(self, fits: Callable[[CachedContents], bool]) -> str | None:
        wanted = self._wanted
        here = [
            (contents.fetched_at, key)
            for key, contents in self._cache.whole().items()
            if (contents.source, contents.manifest) == (self._identity, wanted.manifest)
            and fits(contents)
        ]
        return max(here)[1] if here else None

    def _sound(self, key: str) -> DatasetLease | None:
        """The data set, if it is here and nothing of it is damaged."""
        fd = self._cache.lease(key)
        if fd is None:
            return None
        with _closed_unless_used(fd):
            if (damaged := self._damaged(key)) == []:
                return DatasetLease(fd, self._cache.data(key))
        os.close(fd)
        if damaged:
            names = ", ".join(file.name for file in damaged[:3])
            self._say(f"{len(damaged)} files in the cache are damaged: {names}")
        return None

    def _damaged(self, key: str) -> list[CachedFile] | None:
        """None: it cannot be read what the files were."""
        self._say("verifying the files in the cache")
        contents = self._cache.contents(key)
        if contents is None:
            return None
        self._done, size = 0, contents.size

        def read(count: int) -> None:
            self._count(count, size, "verified")

        return self._cache.damaged(key, contents, full=self._wanted.full, read=read)

    def _drop_unreadable(self, key: str) -> None:
        """What cannot be verified any more is fetched anew."""
        here = self._cache.folder / key
        if not here.exists() or self._cache.contents(key) is not None:
            return
        self._say("the record of this data set in the cache is damaged; it is fetched again")
        if not self._cache.remove(key):
            why = f"the record in {here} cannot be read, and live jobs use the data set"
            raise mismatch(self._wanted.source, why)

    def _newest(self, error: Error) -> DatasetLease | None:
        """What there is of a source that is away."""
        if self._wanted.sha256 is not None:
            return None
        key = self._key_where(lambda _: True)
        lease = self._sound(key) if key is not None else None
        if lease is not None:
            self._say(f"the source is unreachable ({error.why}); the copy in the cache is used")
        return lease

    # ── from the source ──

    def _open(self) -> DatasetSource:
        if self._source is None:
            self._source = sources.open_source(self._wanted.source, self._wanted.endpoint)
        return self._source

    def _listing(self) -> list[SourceFile]:
        self._say("listing the files of the source")
        return sources.listing(self._open(), self._wanted.source, self._wanted.manifest)

    def _make_whole(self, key: str, files: list[SourceFile]) -> None:
        part = self._cache.part(key)
        try:
            left = [file for file in files if not (part / "data" / file.name).exists()]
            self._make_room(key, part, files)
            self._done = sum(file.size for file in files) - sum(file.size for file in left)
            self._fetch(left, part / _UNFINISHED, part / "data", sum(file.size for file in files))
            again = sources.listing(self._open(), self._wanted.source, self._wanted.manifest)
            if again != files:
                raise mismatch(self._wanted.source, "it changed while it was read")
            contents = self._contents(part / "data", files)
        except Error as error:
            if error.slug in ("dataset-mismatch", "dataset-no-room"):
                self._cache.drop_part(key)
            raise
        except OSError:  # the disk is full, or breaks: what is there only takes room
            self._cache.drop_part(key)
            raise
        shutil.rmtree(part / _UNFINISHED, ignore_errors=True)
        self._cache.commit(key, contents)

    def _mend(self, key: str, damaged: Iterable[CachedFile], files: dict[str, SourceFile]) -> None:
        """Fetch single files again, each of which takes the place of the damaged one at once."""
        part, known = self._cache.part(key), {file.name: file for file in damaged}
        again = [files[name] for name in known]
        try:
            self._done = 0
            size = sum(file.size for file in again)
            self._fetch(again, part / _UNFINISHED, part / "data", size)
            for name, file in known.items():
                fresh = part / "data" / name
                if sha256_of(fresh) != file.sha256:
                    raise mismatch(self._wanted.source, f"the contents of {name} have changed")
                os.utime(fresh, ns=(file.mtime_ns, file.mtime_ns))
                target = self._cache.data(key) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                fresh.replace(target)
        finally:
            self._cache.drop_part(key)

    def _make_room(self, key: str, part: Path, files: list[SourceFile]) -> None:
        size = sum(file.size for file in files)
        here = sum(path.stat().st_size for path in part.rglob("*") if path.is_file())
        what = f"data set {self._wanted.name}"
        room = RoomNeeded(size, size - here, self._wanted.limit, what)
        self._cache.make_room(key, room, self._say)

    def _fetch(self, files: list[SourceFile], unfinished: Path, data: Path, size: int) -> None:
        def one(file: SourceFile) -> None:
            target = data / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            begun = unfinished / file.name
            begun.parent.mkdir(parents=True, exist_ok=True)
            self._fetch_file(file, begun, size)
            begun.chmod(READ_ONLY)
            begun.replace(target)

        pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch")
        try:
            for done in [pool.submit(one, file) for file in files]:
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _fetch_file(self, file: SourceFile, path: Path, size: int) -> None:
        """Raises `Error` dataset-mismatch for what is not as promised. An ETag that looks like an
        MD5 sum may be none (of encrypted objects): then the file reads alike twice."""
        found = self._read_file(file, path, size)
        if file.sha256 and found != file.sha256:
            path.unlink()
            raise mismatch(
                self._wanted.source, f"{file.name}: SHA-256 {found} does not match the manifest"
            )
        if found == (file.sha256 or file.md5) or not file.md5 or self._tags_are_sums is False:
            return
        path.unlink()
        if self._tags_are_sums or self._read_file(file, path, size) != found:
            path.unlink(missing_ok=True)
            raise mismatch(self._wanted.source, f"{file.name} does not match its ETag")
        self._tags_are_sums = False
        self._say(
            f"the ETag of {file.name} is not an MD5 sum (two reads agree); only sizes are compared"
        )

    def _read_file(self, file: SourceFile, path: Path, size: int) -> str:
        """To the disk, or what is left of it; the sum of its bytes, if one is promised."""
        proof = sources.proof_of(file)
        if path.exists():  # a try that was killed before the last rename
            path.chmod(WRITABLE)
        with path.open("ab" if proof is not None else "wb") as out:
            at = out.tell()
            if at > file.size:
                out.truncate(at := 0)
            if proof is not None:
                for piece in pieces_of(path, at):
                    proof.update(piece)
            with self._lock:
                self._done += at
            for piece in self._open().read(file.name, at, file.size) if at < file.size else ():
                if at + len(piece) > file.size:
                    what = f"{file.name} is longer than the {file.size} bytes that were listed"
                    raise sources.unavailable(self._wanted.source, what)
                out.write(piece)
                at += len(piece)
                if proof is not None:
                    proof.update(piece)
                self._count(len(piece), size, "fetched")
            out.flush()
            os.fsync(out.fileno())
        if at != file.size:
            raise sources.unavailable(self._wanted.source, f"{file.name} ends at byte {at}")
        return proof.hexdigest() if proof is not None else ""

    def _contents(self, data: Path, files: list[SourceFile]) -> CachedContents:
        wanted, found = self._wanted, []
        self._done, size = 0, sum(file.size for file in files)

        def read(count: int) -> None:
            self._cache.progressed()
            self._count(count, size, "verified")

        for file in files:
            path = data / file.name
            sha256 = file.sha256 or sha256_of(path, read)
            found.append(CachedFile(file.name, file.size, sha256, path.stat().st_mtime_ns))
        pin = _pin(found)
        if wanted.sha256 is not None and pin != wanted.sha256:
            raise mismatch(wanted.source, f"its SHA-256 is {pin}, expected: {wanted.sha256}")
        return CachedContents(self._identity, wanted.manifest, pin, tuple(found), time.time())

    # ── words ──

    def _count(self, size: int, total: int, done_with: str) -> None:
        with self._lock:
            self._done += size
            done = self._done
        if done_with == "fetched":
            self._cache.progressed()
        text = f"{size_text(done)} of {size_text(total)} {done_with}"
        part = PARTS * done // max(total, 1)
        self._tell(FetchNews(name=self._wanted.name, text=text, moved=True, part=part))

    def _waits(self, moved: bool) -> None:
        text = "waiting for another job on this machine to fetch it"
        self._tell(FetchNews(name=self._wanted.name, text=text, moved=moved))

    def _say(self, text: str) -> None:
        self._tell(FetchNews(name=self._wanted.name, text=text))


def _pin(files: list[CachedFile]) -> str:
    """The SHA-256 of the only file; of several, of what `sha256sum` says of them by name."""
    if len(files) == 1:
        return files[0].sha256
    lines = (f"{file.sha256}  {file.name}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
