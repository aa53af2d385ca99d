"""A folder as a store: any mounted path, from the disk of a node to a parallel file system.

A file is written under another name in the same folder, flushed to the disk, renamed, and the
folder flushed too: in this order nothing of it is ever seen in part, even after a power cut, on any
file system that keeps what POSIX says about rename and fsync. NFS does, between its clients after
they open a file anew, which every read here does.

A large file goes past the system's page cache (O_DIRECT), block by block, in a thread: nobody
reads it soon, and for a cache of it pages have to be found, which training needs. Where a file
system does not take that, it is flushed as it grows: left to itself the system would begin only
when a good part of the memory waits to be written, and then all at once.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from holdfast.checkpoint import stores
from holdfast.errors import Error

BLOCK_BYTES = 4 << 20  # of one request to the disk
FLUSH_BYTES = 64 << 20
_ALIGNED = 4096  # what O_DIRECT asks of addresses and lengths, at most, where it is known at all
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_DENIED = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))
_MISSING = frozenset((errno.ENOENT, errno.ENOTDIR))
_NO_FOLDERS = frozenset((errno.EINVAL, errno.ENOTSUP, errno.ENOSYS))  # some in user space
_UNUSABLE = frozenset((errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR))


class FolderStore:
    """A store in a folder, which is made when something is written."""

    def __init__(self, folder: str) -> None:
        self._root = Path(folder).absolute()
        self.where = str(self._root)

    def list(self, folder: str) -> list[str]:
        """Names of what is in a folder."""
        with self._translated(folder or "the folder"):
            try:
                return sorted(os.listdir(self._path(folder) if folder else self._root))
            except FileNotFoundError:
                return []

    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is none."""
        with self._translated(name):
            try:
                return self._path(name).stat().st_size
            except FileNotFoundError:
                return None

    def read(self, name: str, at: int = 0, length: int | None = None) -> bytes:
        """The bytes of a file from `at` on, to its end or exactly `length`."""
        with self._opened(name) as fd:
            size = max(0, os.fstat(fd).st_size - at) if length is None else length
            target = bytearray(size)
            self._fill(fd, name, at, memoryview(target))
            return bytes(target)

    def read_into(self, name: str, at: int, target: memoryview) -> None:
        """Fill `target` with the bytes of a file from `at` on."""
        with self._opened(name) as fd:
            self._fill(fd, name, at, target)

    def put(self, name: str, data: bytes) -> None:
        """Write a file at once."""
        with self.create(name) as upload:
            upload.write(data)

    @contextmanager
    def create(self, name: str) -> "Iterator[FolderUpload]":
        """Write a large file."""
        path = self._path(name)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{stores.UNFINISHED}")
        with self._translated(name):
            fd = _open_new(temporary, self._root)
        try:
            with self._translated(name):
                upload = FolderUpload(fd)
                try:
                    yield upload
                    upload.finish()
                finally:
                    upload.close()
                temporary.rename(path)
                _sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
                path.parent.rmdir()  # if it is empty
            raise

    def remove(self, name: str) -> None:
        """Remove a file, and its folder with the last one. It does not come back after a power
        failure: what is removed next may be what it refers to."""
        path = self._path(name)
        with self._translated(name):
            path.unlink(missing_ok=True)
            if path.parent == self._root or not path.parent.is_dir():
                return
            changed = path.parent.parent
            try:
                path.parent.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise
                changed = path.parent
            with contextlib.suppress(FileNotFoundError):  # somebody else removed the last one
                _sync_folder(changed)

    def _path(self, name: str) -> Path:
        return self._root / stores.require_name(name)

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        with self._translated(name):
            fd = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                yield fd
            finally:
                os.close(fd)

    def _fill(self, fd: int, name: str, at: int, target: memoryview) -> None:
        done = 0
        while done < len(target):
            count = os.preadv(fd, [target[done:]], at + done)
            if count == 0:
                raise stores.missing(self.where, name, f"it is truncated at byte {at + done}")
            done += count

    @contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _error(self.where, name, error) from error


class FolderUpload:
    """A file under its temporary name. One block is being filled while another is written."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._block = memoryview(mmap.mmap(-1, BLOCK_BYTES))
        self._spare: memoryview | None = None
        self._filled = 0
        self._direct = False
        self._unflushed = 0
        self._writer: ThreadPoolExecutor | None = None
        self._under_way: Future[None] | None = None

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes."""
        rest = memoryview(data).cast("B")
        while rest:
            piece = rest[: BLOCK_BYTES - self._filled]
            self._block[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            rest = rest[len(piece) :]
            if self._filled == BLOCK_BYTES:
                self._send()

    def finish(self) -> None:
        """All bytes are on the disk. An error is told to one flush only, so each is asked."""
        self._wait()
        self._set_direct(False)  # the end has any length
        self._write_out(self._block[: self._filled])
        os.fsync(self._fd)

    def close(self) -> None:
        """No more bytes come."""
        if self._writer is not None:
            self._writer.shutdown()
        os.close(self._fd)

    def _send(self) -> None:
        """Have the block written."""
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="holdfast-write")
            self._set_direct(True)
        self._wait()
        full, free = self._block, self._spare or memoryview(mmap.mmap(-1, BLOCK_BYTES))
        self._block, self._spare, self._filled = free, full, 0
        self._under_way = self._writer.submit(self._write_out, full)

    def _wait(self) -> None:
        """Raises what went wrong."""
        if self._under_way is not None:
            self._under_way.result()

    def _write_out(self, data: memoryview) -> None:
        while data:
            try:
                count = os.write(self._fd, data)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._set_direct(False)
                continue
            data = data[count:]
            self._unflushed += count
            if data and count % _ALIGNED:
                self._set_direct(False)
        if self._unflushed >= FLUSH_BYTES and not self._direct:
            os.fdatasync(self._fd)
            self._unflushed = 0

    def _set_direct(self, wanted: bool) -> None:
        """Where the file system refuses, everything goes through the page cache."""
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~os.O_DIRECT
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | (os.O_DIRECT if wanted else 0))
            self._direct = wanted
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise


def _open_new(path: Path, root: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    while True:  # until nobody removes the empty folder between these two lines
        _make_folder(path.parent, root)
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags, 0o666)


def _make_folder(folder: Path, root: Path) -> None:
    if folder.is_dir():
        return
    if folder == root:
        folder.mkdir(parents=True, exist_ok=True)
    else:
        _make_folder(folder.parent, root)
        folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDERS:
            raise
    finally:
        os.close(fd)


def _by_whom(why: str) -> str:
    return f"{why} for user {os.geteuid()}, group {os.getegid()}"


def _error(where: str, name: str, error: OSError) -> Error:
    why = error.strerror or str(error)
    if error.errno in _FULL:
        return stores.full(where, name, why)
    if error.errno in _DENIED:
        return stores.denied(where, name, why if error.errno == errno.EROFS else _by_whom(why))
    if error.errno in _MISSING:
        return stores.missing(where, name, why)
    if error.errno in _UNUSABLE:
        return stores.unusable(f"{where}/{name}", why)
    return stores.unreachable(where, name, why)
