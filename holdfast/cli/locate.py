"""Which job a command means: the one that is named, else the newest."""

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

from holdfast.errors import Error


def job_folder(name: str | None) -> Path:
    """The folder of the named job, or of the newest one. Raises `Error` job-not-found, and
    `PermissionError` where there is one that may not be looked into."""
    known = all_jobs()
    if name is None:
        if not known:
            _require_access(_names())
            raise _not_found("there is no job yet", "no job has been run", "holdfast run train.py")
        return known[0]
    for folder in known:
        if folder.name == name:
            return folder
    _require_access([name])
    raise _unknown(name, [folder.name for folder in known])


def all_jobs() -> list[Path]:
    """The folders of all jobs, the newest first. Raises `OSError`."""
    from holdfast.drivers import records

    return records.all_jobs()


def _names() -> list[str]:
    from holdfast.drivers.records import jobs_home

    names = os.listdir(jobs_home()) if jobs_home().is_dir() else []
    return [name for name in names if not name.startswith(".")]


def _require_access(names: Iterable[str]) -> None:
    """What may not be looked into is not what does not exist. Raises `PermissionError`."""
    from holdfast.drivers.records import job_dir

    for name in names:
        try:
            os.lstat(job_dir(name) / "job.json")
        except PermissionError:
            raise
        except OSError:
            continue


def _unknown(name: str, known: list[str]) -> Error:
    from holdfast.drivers.fencing import controllers_without_folder
    from holdfast.drivers.records import job_dir

    if living := controllers_without_folder(job_dir(name)):
        pid = living[0]
        why = f"its folder was removed while it ran, and its controller, process {pid}, still runs"
        return _not_found(f"there is no job {name!r}", why, f"kill {pid}   (which stops the job)")
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        why, remedy = f"did you mean {close[0]}?", f"holdfast status {close[0]}"
    else:
        why = f"known: {', '.join(known[:10])}" if known else "no job has been run yet"
        remedy = "holdfast status --all"
    return _not_found(f"there is no job {name!r}", why, remedy)


def _not_found(what: str, why: str, remedy: str) -> Error:
    from holdfast.drivers.records import jobs_home

    return Error("job-not-found", f"{what} in {jobs_home()}", why=why, help=remedy)
