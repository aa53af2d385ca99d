"""Whether what a job names really is on this machine: script, working folder, program.

Asked before anything starts: a typing mistake should cost a second, not a start of all nodes.
"""

import os
import shutil
from pathlib import Path

from holdfast.errors import Error
from holdfast.spec.job import Job


def require_files(job: Job) -> None:
    """Raise `Error` with slug `script-not-found` unless everything is there.

    A module cannot be looked up without running code of its packages, so it is not.
    """
    if not Path(job.workdir).is_dir():
        raise _missing(job, f"the working folder {job.workdir}", "no such folder")
    if job.script is not None and not Path(job.script).is_file():
        folder = Path(job.script).is_dir()
        why = "it is a folder" if folder else "no such file"
        raise _missing(job, f"the script {job.script}", why)
    if job.command is not None and _program(job) is None:
        raise _missing(job, f"the program {job.command[0]}", "not found, or not executable")


def _program(job: Job) -> str | None:
    """The file that `command` starts; names with a slash are relative to the working folder."""
    assert job.command is not None
    name = job.command[0]
    if os.sep in name:
        return shutil.which(Path(job.workdir) / name)
    return shutil.which(name, path=job.env.get("PATH"))


def _missing(job: Job, what: str, why: str) -> Error:
    return Error(
        "script-not-found",
        f"{what} of job {job.name} cannot be used",
        why=why,
        help="correct the path; relative ones start at the folder of the job file, or where you "
        "called `holdfast run`",
    )
