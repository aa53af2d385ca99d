"""Whether what a job names really is on this machine: script, working folder, program.

Asked before anything starts: a typing mistake should cost a second, not a start of all nodes.
"""

import ast
import errno
import os
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from holdfast.errors import Error
from holdfast.files import require_text
from holdfast.spec.job import Job

_PATH = (
    "correct the path; relative paths are resolved against the folder of the job file, "
    "or the current directory of `holdfast run`"
)
_PROGRAM = (
    "a program in another language is run by `holdfast run --no-python PROGRAM`, or by "
    "`command: [PROGRAM]` in the job file"
)
_LAUNCHERS = ("accelerate", "deepspeed", "mpirun", "python", "python3", "srun", "torchrun")
_IN_ITS_PLACE = (
    "Holdfast takes the place of `{0}`: leave that word out, as in `holdfast run "
    "--nproc-per-node N SCRIPT ARGUMENTS`; docs/guides/your-script.md#from-another-launcher "
    "says what becomes of its flags"
)


def require_files(job: Job) -> None:
    """Raise `Error` with slug `script-not-found` unless everything is there, and `locale-encoding`
    if workers could not be told of it.

    A module cannot be looked up without running code of its packages, so it is not.
    """
    require_texts(job)
    if why := _not_there(job.workdir, stat.S_ISDIR, "no such folder"):
        raise _missing(job, f"the working folder {job.workdir}", why)
    if job.script is not None and (why := _not_there(job.script, stat.S_ISREG, "no such file")):
        raise _missing(job, f"the script {job.script}", why, _meant(Path(job.script).name))
    if job.script is not None and (kind := _other_language(Path(job.script))):
        raise _missing(job, f"the script {job.script}", f"it is not Python but {kind}", _PROGRAM)
    if job.command is not None and _program(job) is None:
        raise _missing(job, f"the program {job.command[0]}", "not found, or not executable")


def _meant(name: str) -> str:
    """What helps whoever gave the word `name` where a script belongs: holdfast run bash train.sh"""
    if name in _LAUNCHERS:
        return _IN_ITS_PLACE.format(name)
    return _PATH if shutil.which(name) is None else _PROGRAM


def require_texts(job: Job) -> None:
    """Raise `Error` unless workers can be told all that the job says: also the folders that were
    put before its paths, which nobody has looked at."""
    for text in _texts(job.model_dump()):
        require_text(f"part of job {job.name}", text)


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            yield from (text for pair in value.items() for part in pair for text in _texts(part))
        case list() | tuple():
            yield from (text for part in value for text in _texts(part))
        case _:
            pass


def _not_there(path: str, is_right: Callable[[int], bool], missing: str) -> str | None:
    """Why `path` is not what it should be, None if it is."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return missing
    except OSError as exc:  # a loop of links, a name that is too long, a folder that is closed
        return exc.strerror or str(exc)
    if is_right(mode):
        right = os.R_OK if stat.S_ISREG(mode) else os.X_OK
        return None if os.access(path, right, effective_ids=True) else os.strerror(errno.EACCES)
    if stat.S_ISDIR(mode) and os.path.isfile(os.path.join(path, "__main__.py")):
        return "it is a folder: name the __main__.py in it"
    return "it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file or folder"


def _other_language(script: Path) -> str | None:
    """What a file is that is not Python and says what else; None for any other."""
    try:
        with script.open("rb") as file:
            first = file.readline(256)
            if first.startswith(b"\x7fELF"):
                return "a compiled program"
            if not first.startswith(b"#!") or b"python" in first:
                return None
            if zipfile.is_zipfile(file):  # `pex --sh-boot` begins with a script of /bin/sh
                return None
            file.seek(0)
            ast.parse(file.read())  # `#!/bin/sh` may stand above Python, too
    except (SyntaxError, ValueError):
        return f"a script of {first[2:].decode('utf-8', 'replace').strip()}"
    except OSError:
        return None  # workers say why
    return None


def _program(job: Job) -> str | None:
    """The file that `command` starts; names with a slash are relative to the working folder."""
    assert job.command is not None
    name = job.command[0]
    if os.sep in name:
        return shutil.which(Path(job.workdir) / name)
    return shutil.which(name, path=job.env.get("PATH"))


def _missing(job: Job, what: str, why: str, remedy: str = _PATH) -> Error:
    return Error(
        "script-not-found",
        f"{what} of job {job.name} cannot be used",
        why=why,
        help=remedy,
    )
