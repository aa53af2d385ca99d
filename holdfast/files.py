"""Files of a job, read without ever waiting, and the system's errors about them in plain words.

What lies in a job's folder may be anything by the time it is read: a pipe that nobody writes to, a
folder, a file of a gigabyte. Opening it must not hang and reading it must not fill the memory.
"""

import errno
import os
import shlex
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import Error, shown

SMALL_BYTES = 16 << 20  # what is one document is never larger
GROWN_BYTES = 1 << 16  # that somebody may add meanwhile
_PATHS = {
    errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOENT, errno.EEXIST,
    errno.ENOTEMPTY, errno.EINVAL, errno.EFBIG, errno.ENXIO,
}  # fmt: skip


def open_plain(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises `OSError`, also for whatever is no regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, f"it is {_kind(mode)}, not a file", str(path))
    return os.fdopen(fd, "rb")


def read_plain(path: Path, limit: int = SMALL_BYTES) -> bytes:
    """All of a file of at most `limit` bytes. Raises `OSError`."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"its size is {size} bytes, the limit is {limit}", str(path))
        return file.read(min(size + GROWN_BYTES, limit))  # read() takes as much memory


def require_memory(fd: int, name: str, least_bytes: int = 0) -> None:
    """Make sure that this is the memory of this name (`memfd_create`), of at least so many bytes.

    Variables that name a descriptor reach children that do not have it (`subprocess` closes it), in
    which a file of the script's may have the number. Raises `Error` run-unavailable.
    """
    try:
        found = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        found = ""
    if not found.startswith(f"/memfd:{name} "):
        raise not_the_worker(fd)
    if os.fstat(fd).st_size < least_bytes:
        os.ftruncate(fd, least_bytes)


def not_the_worker(fd: int) -> Error:
    """The error for a process that has the variables of a worker and is none."""
    return Error(
        "run-unavailable",
        "this process is not the worker that Holdfast has started",
        why=f"descriptor {fd}, which the agent has given to the worker, is not open here: the "
        "script was started as a child of the worker, or has closed it",
        help="run the script itself: holdfast run train.py   (a wrapper has to end with exec, "
        "which keeps the process: holdfast run --no-python ./start.sh)",
    )


def part_before(path: Path) -> Path:
    """Where a file that has become too large is kept, when it goes on as a new one."""
    return path.with_name(f"{path.name}.1")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a file that was made or renamed there."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durable(path: Path, content: bytes | bytearray) -> None:
    """Make a new file that only its owner may read, on disk when this returns.

    Raises `FileExistsError` if there is one."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(fd)
    sync_folder(path.parent)


def _kind(mode: int) -> str:
    names = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return names.get(stat.S_IFMT(mode), "a device")


def require_home() -> None:
    """Raise `Error` home-unknown where `~` means nothing: no HOME, and no entry in passwd."""
    try:
        Path.home()
    except RuntimeError as error:
        raise Error(
            "home-unknown",
            "the home directory cannot be determined",
            why=f"HOME is not set, and user ID {os.getuid()} has no entry in /etc/passwd",
            help="export HOLDFAST_HOME=/path/to/a/folder   (or set HOME)",
        ) from error


def require_proc() -> None:
    """Raise `Error` platform-unsupported where /proc does not show this process by its number: it
    is not mounted, or is that of another PID namespace, in which numbers are other processes."""
    try:
        shown_as = os.readlink("/proc/self")
    except OSError as error:
        raise _without_proc(f"/proc/self: {error.strerror}; it is not mounted") from error
    if shown_as != str(os.getpid()):
        why = f"it shows this process as {shown_as}, and its process ID here is {os.getpid()}"
        raise _without_proc(f"{why}: it belongs to another PID namespace")


def _without_proc(why: str) -> Error:
    return Error(
        "platform-unsupported",
        "/proc cannot be used",
        why=why,
        help="mount -t proc proc /proc   (with unshare --pid: add --fork --mount-proc)",
    )


def require_text(name: str, text: str) -> None:
    """Raise `Error` unless `text` can be stored, as UTF-8, and given to the system, in the encoding
    of the locale; `name` says what it is."""
    try:
        text.encode()  # where the locale had no characters for some bytes, there are surrogates
        os.fsencode(text)
    except UnicodeEncodeError:
        raise not_text(name, text) from None


def not_text(name: str, text: str) -> Error:
    """The error for text that is no UTF-8, or that is, but not for the locale of this shell."""
    try:
        meant = os.fsencode(text).decode()
    except UnicodeEncodeError:  # from a job file
        meant = text
    except UnicodeDecodeError:
        return Error(
            "usage",
            f"{name} is not UTF-8 text: {shown(text)}",
            why="jobs and their records are stored as UTF-8, which cannot represent these bytes",
            help="use UTF-8; for a path, rename the file or use a symbolic link",
        )
    forbidden = os.environ.get("PYTHONUTF8") == "0"
    return Error(
        "locale-encoding",
        f"the locale of this shell cannot represent {name}: {shown(meant)}",
        why=f"its encoding is {sys.getfilesystemencoding()}"
        + (", and PYTHONUTF8=0 keeps Python from using UTF-8 instead" if forbidden else ""),
        help="export PYTHONUTF8=1   (or: export LC_ALL=C.UTF-8)",
    )


# ── the system's errors ───────────────────────────────────────────────────────────────────────


def _is_nowhere() -> bool:
    """Whether the current directory was removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _nearest(path: str) -> str:
    """The path, or what there is of it: what a command of the help can look at. A file may be
    written below a name of its own, and renamed."""
    while not os.path.lexists(path) and (above := os.path.dirname(path)) not in ("", path):
        path = above
    return path


def unusable(error: OSError, what: str = "") -> Error:
    """The error to show for one of the operating system: its own words, and what helps."""
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    if error.errno == errno.ENOTDIR and not os.path.isdir(_nearest(path)):
        path = _nearest(path)
    why = error.strerror or str(error) or type(error).__name__
    why = f"{why}: {path}" if path and what else why
    what = what or (f"cannot use {path}" if path else "the operating system returned an error")
    if f"{path}/".startswith("/proc/") and not os.path.lexists("/proc/self"):
        return _without_proc(why if path in why else f"{why}: {path}")
    there = shlex.quote(_nearest(path)) if path else '"${HOLDFAST_HOME:-$HOME/.holdfast}"'
    home = "or set HOLDFAST_HOME to a folder"
    if error.errno == errno.ENOENT and not path and _is_nowhere():
        gone = "the current directory no longer exists"
        return Error("path-unusable", gone, why=why, help='cd "$HOME"')
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            room = f"df -h {there}; df -i {there}   ({home} on another disk)"
            return Error("disk-full", what, why=why, help=room)
        case errno.EACCES | errno.EPERM | errno.EROFS:
            mode = f"ls -ld {there}   ({home} that you own)"
            return Error("home-unwritable", what, why=why, help=mode)
        case errno.EMFILE | errno.ENFILE:
            return Error("too-many-open-files", what, why=why, help="ulimit -n 65536")
        case errno.EIO | errno.ESTALE | errno.EUCLEAN:
            return Error("disk-failing", what, why=why, help="dmesg | tail")
        case number if number in _PATHS:
            kind = f"ls -ld {there}   ({home} elsewhere)"
            return Error("path-unusable", what, why=why, help=kind)
        case _:
            return Error("system-error", what, why=why, help="holdfast doctor")
