"""The folder of a job: where it lies, how it is made, and what can be read from it.

Everything that `status`, `incidents` and `goodput` say can be worked out from the journal, so they
answer also when the controller is gone; while it lives it adds what is in no journal: telemetry.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast import __version__, journal
from holdfast.actions import Outcome
from holdfast.controller import Limits, State
from holdfast.drivers import report
from holdfast.drivers.fencing import fence_job, require_gone
from holdfast.errors import Error
from holdfast.goodput import ledger, to_goodput
from holdfast.goodput.ledger import Ledger
from holdfast.spec import Job
from holdfast.status import Goodput, Incident, JobStatus

LOCK_TRIES = 10
LOCK_PAUSE_S = 0.01


def jobs_home() -> Path:
    """The folder of all jobs: `$HOLDFAST_HOME/jobs`, by default `~/.holdfast/jobs`."""
    home = os.environ.get("HOLDFAST_HOME")
    return (Path(home).absolute() if home else Path.home() / ".holdfast") / "jobs"


def job_dir(name: str) -> Path:
    """The folder of one job, which need not exist."""
    return jobs_home() / name


def create(job: Job, folder: Path, *, replace: bool = False, now: float) -> int:
    """Make the folder of a new job with its description, token and empty journal.

    Returns the job's lock, held, as a descriptor for `locked`: from its first moment nobody else
    can run or replace it. Raises `Error` job-exists, job-running, process-stuck or home-unwritable;
    then nothing has changed.
    """
    if folder.exists():
        _require_free(job.name, folder, replace=replace)
    temporary = _beside(folder)
    lock = -1
    try:
        temporary.mkdir(mode=0o700, parents=True)
        lock = _open_lock(temporary)
        fcntl.flock(lock, fcntl.LOCK_EX)
        _fill(job, temporary, now)
        old = _moved_away(folder) if replace and folder.exists() else None
        _take_place(job.name, temporary, folder, old)
    except (OSError, Error) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if lock >= 0:
            os.close(lock)
        raise (error if isinstance(error, Error) else _unwritable(folder, error)) from error
    if old is not None:
        _discard(old)
    return lock


def _beside(folder: Path) -> Path:
    """A name that nobody has, on the same file system."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")


def _moved_away(folder: Path) -> Path:
    """The record of a job under another name, once nothing of the job runs any more."""
    with locked(folder):
        remedy = f"wait until it is gone, or run under another --name (holdfast stop {folder.name})"
        require_gone(fence_job(folder), f"job {folder.name!r} cannot be replaced", remedy)
        return folder.rename(_beside(folder))


def _take_place(name: str, temporary: Path, folder: Path, old: Path | None) -> None:
    try:
        temporary.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # somebody else was faster
            raise _exists(name, folder) from error
        if old is not None:
            old.rename(folder)
        raise


def _discard(old: Path) -> None:
    try:
        shutil.rmtree(old)
    except OSError as error:
        left = f"what is left of the record that was replaced is in {old}: {error}"
        print(f"holdfast: {left}", file=sys.stderr, flush=True)


def may_begin_again(job: Job, state: State) -> bool:
    """Whether a job that has ended can go on: it was only stopped, and its state is on a disk."""
    stopped = state.outcome is Outcome.STOPPED
    return stopped and bool(job.checkpoints.on_laptop(job.name))


def begin_again(job: Job, folder: Path, now: float) -> None:
    """Set the journal aside as `journal-N.jsonl` and begin a new one: a new life of the job."""
    number = 1 + len(list(folder.glob("journal-*.jsonl")))
    for path in sorted(folder.glob("journal.*")):
        path.rename(path.with_name(f"journal-{number}{path.suffix}"))
    _begin_journal(job, folder, now)


def _fill(job: Job, folder: Path, now: float) -> None:
    write_private(folder / "job.json", job.model_dump_json(indent=2))
    write_private(folder / "token", secrets.token_urlsafe(32))
    _begin_journal(job, folder, now)


def _begin_journal(job: Job, folder: Path, now: float) -> None:
    header = journal.Header(
        journal=journal.VERSION,
        holdfast=__version__,
        job=job.model_dump(mode="json"),
        created_at=now,
    )
    journal.Journal.create(folder / "journal.jsonl", header).close()


def _require_free(name: str, folder: Path, *, replace: bool) -> None:
    if controller_alive(folder):
        raise already_running(name)
    if not replace:
        raise _exists(name, folder)


def _exists(name: str, folder: Path) -> Error:
    return Error(
        "job-exists",
        f"there is a record of a job named {name!r}",
        why=f"{folder} holds its journal and logs",
        help=f"choose another --name, or drop the record with --replace "
        f"(to look at it first: holdfast why {name})",
    )


def already_running(name: str) -> Error:
    """The error for a second controller."""
    return Error(
        "job-running",
        f"job {name!r} is already running",
        why="its controller is alive and holds the lock; a job has one controller",
        help=f"holdfast watch {name}   (or: holdfast stop {name})",
    )


def _unwritable(folder: Path, error: OSError) -> Error:
    return Error(
        "home-unwritable",
        f"cannot create {folder}",
        why=error.strerror or str(error),
        help="holdfast doctor   (or set HOLDFAST_HOME to a folder with room)",
    )


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def load_job(folder: Path) -> Job:
    """The job description that was submitted. Raises `Error` job-not-found."""
    try:
        return Job.model_validate_json((folder / "job.json").read_bytes())
    except FileNotFoundError:
        raise Error(
            "job-not-found",
            f"there is no job {folder.name!r}",
            why=f"{folder} does not exist",
            help="holdfast status --all   (lists the jobs below HOLDFAST_HOME)",
        ) from None


@contextlib.contextmanager
def locked(folder: Path, held: int | None = None) -> Iterator[None]:
    """Hold the job's lock, which may be `held` already, until the end of the block.

    Raises `Error` job-running if another controller has it.
    """
    fd = _take_lock(folder) if held is None else held
    try:
        yield
    finally:
        os.close(fd)


def _take_lock(folder: Path) -> int:
    """Whoever only looks whether there is a controller holds the lock for a moment, too."""
    fd = _open_lock(folder)
    for left in reversed(range(LOCK_TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S if left else 0.0)
        else:
            return fd
    os.close(fd)
    raise already_running(folder.name)


def _open_lock(folder: Path) -> int:
    return os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)


def controller_alive(folder: Path) -> bool:
    """Whether a controller holds the job's lock."""
    try:
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def state_of(folder: Path) -> State:
    """The controller's state as the journal has it."""
    return journal.read_state(folder / "journal.jsonl", Limits.of(load_job(folder)))


def ledger_of(folder: Path, now: float | None) -> Ledger:
    """Where the time went, up to `now` (seconds since the epoch) or the job's end."""
    path = folder / "journal.jsonl"
    started_at = journal.read_header(path).created_at
    return ledger(started_at, journal.entries(path), now)


def status(folder: Path, now: float) -> JobStatus:
    """What the journal says of the job; `client.status` also asks the controller."""
    state = state_of(folder)
    until = _until(folder, state, now)
    return report.job_status(
        folder.name,
        state,
        ledger_of(folder, None if state.ended else until),
        controller="ended" if state.ended else "away",
    )


def incidents(folder: Path, now: float) -> list[Incident]:
    """Every incident with its cost."""
    state = state_of(folder)
    until = _until(folder, state, now)
    return report.incidents(state, ledger_of(folder, None if state.ended else until))


def goodput(folder: Path, now: float) -> Goodput:
    """The job's goodput ledger."""
    state = state_of(folder)
    until = _until(folder, state, now)
    return to_goodput(folder.name, ledger_of(folder, None if state.ended else until))


def _until(folder: Path, state: State, now: float) -> float:
    """The present while somebody counts; else the last thing that is known."""
    return now if controller_alive(folder) else state.now


def read_secret(folder: Path) -> str:
    """The token that agents and the command line show to the controller."""
    return (folder / "token").read_text().strip()


class Address(msgspec.Struct, frozen=True):
    """Where a controller listens: the content of `controller.json`."""

    host: str
    port: int
    pid: int


def read_address(folder: Path) -> Address | None:
    """The address of the newest controller, which may be gone."""
    try:
        return msgspec.json.decode((folder / "controller.json").read_bytes(), type=Address)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
