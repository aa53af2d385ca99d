"""The folder of a job: where it lies, how it is made, and what can be read from it.

Everything that `status`, `incidents` and `goodput` say can be worked out from the journal, so they
answer also when the controller is gone; while it lives it adds what is in no journal: telemetry.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from holdfast import __version__, journal
from holdfast.actions import Fence, Outcome
from holdfast.boots import boot_id
from holdfast.controller import Limits, State
from holdfast.diagnosis import lemons
from holdfast.drivers import report
from holdfast.drivers.engines import clear, use_ray
from holdfast.drivers.fencing import Fenced, require_gone
from holdfast.drivers.incident_facts import IncidentFacts
from holdfast.errors import Error
from holdfast.events import NodeJoined
from holdfast.files import read_plain, unusable
from holdfast.goodput import ledger, to_goodput
from holdfast.goodput.ledger import Ledger
from holdfast.replay import read_state, until_damage
from holdfast.replay import troubles as journal_troubles
from holdfast.spec import Job
from holdfast.status import Goodput, Incident, JobStatus

JOURNAL = "journal.jsonl"
NOTIFIED = "notified.json"  # what receivers of notices know of the incidents in the journal
CLUSTER_GONE = ("ray-unreachable", "ray-missing")  # errors for a Ray cluster that cannot be asked
TOKEN = re.compile(r"[A-Za-z0-9_-]{16,}")
LOCK_ASKERS_S = 10.0  # for those who only look; on a busy machine one may be held up while it does
LOCK_PAUSE_S = 0.01


def jobs_home() -> Path:
    """The folder of all jobs: `$HOLDFAST_HOME/jobs`, by default `~/.holdfast/jobs`."""
    home = os.environ.get("HOLDFAST_HOME")
    if home:  # as a file of variables has it, no shell has expanded `~`
        return Path(os.path.expanduser(home)).absolute() / "jobs"
    return Path.home().absolute() / ".holdfast" / "jobs"


def job_dir(name: str) -> Path:
    """The folder of one job, which need not exist."""
    return jobs_home() / name


def all_jobs(home: Path | None = None) -> list[Path]:
    """The folders of all jobs below a home, by default ours, the newest first. Raises `OSError`.

    A folder is a job's as soon as there is a description or a journal in it, readable or not: what
    is damaged is to be told, not hidden.
    """
    home = home or jobs_home()
    try:
        names = os.listdir(home)
    except FileNotFoundError:
        return []
    folders = [home / name for name in names if not name.startswith(".")]
    submitted = [(at, path) for path in folders if (at := _submitted_at(path)) is not None]
    return [path for _, path in sorted(submitted, reverse=True)]


def _submitted_at(folder: Path) -> float | None:
    """When the job was submitted; None if this is no job's folder."""
    for name in ("job.json", JOURNAL):
        with contextlib.suppress(OSError):
            return os.lstat(folder / name).st_mtime
    return None


def create(
    job: Job, folder: Path, *, replace: bool = False, ray: str | None = None, now: float
) -> int:
    """Make the folder of a new job with its description, token and empty journal, and `ray`, the
    address of the Ray cluster that it runs on.

    Returns the job's lock, held, as a descriptor for `locked`: from its first moment nobody else
    can run or replace it. With `replace` the former record of the name goes, once the new one is
    complete and nothing of the former job runs any more. Raises `Error` job-exists, job-running,
    process-stuck, or what the system says; then nothing has changed.
    """
    temporary = _beside(folder)
    lock = -1
    try:
        if os.path.lexists(folder):
            _may_go(job.name, folder, replace=replace)
        temporary.mkdir(mode=0o700, parents=True)
        lock = _open_lock(temporary)
        fcntl.flock(lock, fcntl.LOCK_EX)
        _fill(job, temporary, now)
        if ray is not None:
            use_ray(temporary, ray)
        old = _moved_away(folder) if replace and os.path.lexists(folder) else None
        _take_place(job.name, temporary, folder, old)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if lock >= 0:
            os.close(lock)
        if isinstance(error, OSError):
            raise unusable(error, f"cannot create {folder}") from error
        raise
    if old is not None:
        _discard(old)
    return lock


def remove(folder: Path) -> None:
    """Drop the record of a job, once nothing of the job runs any more. Raises `Error` job-running,
    process-stuck."""
    _discard(_moved_away(folder))


def _beside(folder: Path) -> Path:
    """A name that nobody has, on the same file system."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")


def _moved_away(folder: Path) -> Path:
    """The record of a job under another name, once nothing of the job runs any more."""
    with locked(folder):
        remedy = f"wait until it has exited (holdfast stop {folder.name}), or use another --name"
        require_gone(_cleared(folder), f"job {folder.name!r} cannot be replaced", remedy)
        return folder.rename(f"{_beside(folder)}.old")


def _cleared(folder: Path) -> Fenced:
    try:
        return clear(folder)
    except Error as error:
        if not went_before_its_cluster(folder, error):
            raise
        return Fenced(0, ())


def went_before_its_cluster(folder: Path, error: Error) -> bool:
    """Whether nobody needs the Ray cluster that cannot be asked: the job has ended, and what was
    its own there has been given back."""
    return error.slug in CLUSTER_GONE and state_of(folder).ended


def _take_place(name: str, temporary: Path, folder: Path, old: Path | None) -> None:
    try:
        temporary.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # somebody else was faster
            if old is not None:  # its name is another job's now; it was to go anyhow
                _discard(old)
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
    """Set the journal aside as `journal-N.jsonl` and begin a new one: a new life of the job.

    Whoever reads meanwhile finds the old one or the new one, never none.
    """
    number = 1 + len(list(folder.glob("journal-*.jsonl")))
    last = folder / f"journal-{number - 1}.jsonl"
    if last.exists() and last.samefile(folder / JOURNAL):  # somebody died before the new one
        last.unlink()
        number -= 1
    fresh = folder / "next-journal"
    fresh.unlink(missing_ok=True)  # of a process that died here
    _begin_journal(job, fresh, now)
    for path in sorted(folder.glob("journal.*"), key=lambda path: path.name == JOURNAL):
        kept = path.with_name(f"journal-{number}{path.suffix}")
        if path.name == JOURNAL:
            os.link(path, kept)
        else:
            path.rename(kept)
    (folder / NOTIFIED).unlink(missing_ok=True)  # incidents are counted from 1 again
    fresh.replace(folder / JOURNAL)


def _fill(job: Job, folder: Path, now: float) -> None:
    write_private(folder / "job.json", job.model_dump_json(indent=2))
    write_private(folder / "token", secrets.token_urlsafe(32))
    _begin_journal(job, folder / JOURNAL, now)


def _begin_journal(job: Job, path: Path, now: float) -> None:
    header = journal.Header(
        journal=journal.VERSION,
        holdfast=__version__,
        job=job.model_dump(mode="json"),
        created_at=now,
    )
    journal.Journal.create(path, header).close()


def _may_go(name: str, folder: Path, *, replace: bool) -> None:
    """Whether a former record of this name may be replaced. Raises `Error` if not."""
    if controller_alive(folder):
        raise already_running(name)
    if not replace:
        raise _exists(name, folder, orphaned=_orphaned(folder))


def _orphaned(folder: Path) -> bool:
    """Whether the job has not ended though its controller has, so that workers may train on."""
    with contextlib.suppress(Error, OSError):
        return not state_of(folder).ended
    return False


def _exists(name: str, folder: Path, *, orphaned: bool = False) -> Error:
    if orphaned:
        return Error(
            "job-exists",
            f"job {name!r} has not ended: its controller has died",
            why="its workers may have kept training in the meantime",
            help=f"holdfast resume {name}   (or: holdfast stop {name}; with --replace, the record "
            "is dropped and its workers are killed)",
        )
    return Error(
        "job-exists",
        f"there is a record of a job named {name!r}",
        why=f"{folder} holds its journal and logs",
        help=f"choose another --name, or drop the record with --replace "
        f"(to inspect it first: holdfast why {name})",
    )


def already_running(name: str) -> Error:
    """The error for a second controller."""
    return Error(
        "job-running",
        f"job {name!r} is already running",
        why="its controller is running and holds the lock; a job has one controller",
        help=f"holdfast watch {name}   (or: holdfast stop {name})",
    )


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_job(folder: Path) -> Job:
    """The job description that was submitted. Raises `Error` job-not-found or record-damaged."""
    if not os.path.lexists(folder):
        raise Error(
            "job-not-found",
            f"there is no job {folder.name!r}",
            why=f"{folder} does not exist",
            help="holdfast status --all   (lists the jobs below HOLDFAST_HOME)",
        )
    try:
        return Job.model_validate_json(read_plain(folder / "job.json"))
    except OSError as error:
        raise _damaged(folder, "job.json", error.strerror or str(error)) from error
    except ValueError as error:
        raise _damaged(folder, "job.json", _in_short(error)) from error


def require_same_job(folder: Path, job: Job) -> None:
    """The journal's first line has the description too, and a checksum. Raises `Error`
    record-damaged if it is another one."""
    if recorded_job(folder) != job:
        raise _damaged(folder, "job.json", "the journal was started with a different description")


def recorded_job(folder: Path) -> Job:
    """The description with which the journal was begun. Raises `Error`."""
    path = folder / JOURNAL
    try:
        return Job.model_validate(journal.read_header(path).job)
    except ValueError as error:
        raise Error(
            "journal-version",
            f"{path}, line 1: this version does not support this job description",
            why=_in_short(error),
            help="use the version of Holdfast named in the journal's first line",
        ) from error


def _in_short(error: ValueError) -> str:
    """What is wrong, in a line, however many lines a library makes of it."""
    return "; ".join(line.strip() for line in str(error).splitlines()[:3])


def _damaged(folder: Path, name: str, why: str) -> Error:
    path, source = shlex.quote(str(folder / name)), shlex.quote(str(folder / JOURNAL))
    remedies = {
        "job.json": f"the journal has it too: head -n 1 {source} | jq .job > {path}",
        "token": f"stop what is running: holdfast stop {folder.name}; then run the job again",
    }
    return Error("record-damaged", f"{folder / name} is damaged", why=why, help=remedies[name])


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
    """Whoever only looks whether there is a controller shares the lock for a moment: then it can be
    shared, and is waited for. A controller shares it with nobody."""
    fd = _open_lock(folder)
    until = time.monotonic() + LOCK_ASKERS_S
    while not _locks(fd, fcntl.LOCK_EX):
        if not _locks(fd, fcntl.LOCK_SH) or time.monotonic() > until:
            os.close(fd)
            raise already_running(folder.name)
        fcntl.flock(fd, fcntl.LOCK_UN)
        time.sleep(LOCK_PAUSE_S)
    return fd


def _locks(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_lock(folder: Path) -> int:
    return os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)


def controller_alive(folder: Path) -> bool:
    """Whether a controller holds the job's lock. Who only asks does not look like one to others,
    and need not be allowed to write: a record may be an archive's, or somebody else's."""
    try:
        fd = os.open(folder / "lock", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # or a pipe hangs
    except FileNotFoundError:
        return False
    try:
        return not _locks(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def state_of(folder: Path) -> State:
    """The controller's state as the journal has it."""
    return read_state(folder / JOURNAL, Limits.of(recorded_job(folder)))


def troubles(folder: Path) -> list[Error]:
    """What is wrong with the record of a job, and so with what is told of it."""
    found = journal_troubles(folder / JOURNAL, Limits.of(recorded_job(folder)))
    try:
        require_same_job(folder, load_job(folder))
        if controller_alive(folder) and read_address(folder) is None:
            found.append(controller_silent(folder.name))
    except Error as error:
        found.append(error)
    return found


def controller_silent(name: str) -> Error:
    """The error for a controller that lives and cannot be asked."""
    return Error(
        "controller-silent",
        f"the controller of {name} does not answer",
        why="it holds the job's lock, but cannot be reached as `controller.json` and `token` say",
        help=f"retry; if it persists: fuser -k -TERM {shlex.quote(str(job_dir(name) / 'lock'))}"
        "   (a stopped job can be resumed)",
    )


def ledger_of(folder: Path, now: float | None) -> Ledger:
    """Where the time went, up to `now` (seconds since the epoch) or the job's end."""
    path = folder / JOURNAL
    started_at = journal.read_header(path).created_at
    return ledger(started_at, until_damage(path), now)


def signals(folder: Path) -> dict[str, lemons.Counts]:
    """How often each node has troubled the job, by its name."""
    entries = list(until_damage(folder / JOURNAL))
    return lemons.signals(entries, entries[-1].at if entries else 0.0)


def given_up(folder: Path) -> dict[str, str]:
    """Why nodes are gone, by their names."""
    names: dict[str, str] = {}
    found: dict[str, str] = {}
    for entry in until_damage(folder / JOURNAL):
        if isinstance(entry.event, NodeJoined):
            names[entry.event.node] = entry.event.name
        gone = (one for one in entry.actions if isinstance(one, Fence) and one.node in names)
        found |= {names[one.node]: one.reason for one in gone}
    return found


def status(folder: Path, now: float) -> JobStatus:
    """What the journal says of the job; `client.status` also asks the controller."""
    state, accounts, facts = _accounts(folder, now)
    controller = "ended" if state.ended else "away"
    return report.job_status(folder.name, state, accounts, controller=controller, wall=facts.wall)


def incidents(folder: Path, now: float) -> list[Incident]:
    """Every incident with its cost."""
    state, accounts, facts = _accounts(folder, now)
    return report.incidents(folder.name, state, accounts, facts)


def _accounts(folder: Path, now: float) -> tuple[State, Ledger, IncidentFacts]:
    state, path, facts = state_of(folder), folder / JOURNAL, IncidentFacts()
    until = None if state.ended else _until(folder, state, now)
    entries = facts.passing(until_damage(path))
    return state, ledger(journal.read_header(path).created_at, entries, until), facts


def goodput(folder: Path, now: float) -> Goodput:
    """The job's goodput ledger."""
    state = state_of(folder)
    until = _until(folder, state, now)
    return to_goodput(folder.name, ledger_of(folder, None if state.ended else until))


def _until(folder: Path, state: State, now: float) -> float:
    """The present while somebody counts; else the last thing that is known."""
    return present(folder, now) if controller_alive(folder) else state.now


def present(folder: Path, now: float) -> float:
    """By the clock of the job's controller, which knows nothing of clocks that are set and machines
    that sleep; `now`, by the wall clock, where it is another machine's."""
    address = read_address(folder)
    if address is None or address.ahead_s is None or address.boot != this_boot():
        return now
    return time.monotonic() + address.ahead_s


def this_boot() -> str:
    """Which start of which machine this is; empty: not known."""
    try:
        return boot_id()
    except OSError:
        return ""


def read_secret(folder: Path) -> str:
    """The token that agents and the command line show to the controller."""
    token = read_plain(folder / "token").decode("ascii", "replace").strip()
    if not TOKEN.fullmatch(token):
        raise _damaged(folder, "token", "it is not what `holdfast run` writes there")
    return token


class Address(msgspec.Struct, frozen=True):
    """Where a controller listens: the content of `controller.json`."""

    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    pid: int
    ahead_s: float | None = None  # of its clock, before the monotonic one of its machine
    boot: str = ""  # since which that one runs


def read_address(folder: Path) -> Address | None:
    """The address of the newest controller, which may be gone; None if there is no sound one."""
    try:
        return msgspec.json.decode(read_plain(folder / "controller.json"), type=Address)
    except (OSError, ValueError):
        return None
