"""From the words of `holdfast run` to a `Job`: a job file, or a script with torchrun's flags."""

import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.cli import torchrun
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.spec import Job

NAME_LENGTH = 50
JOB_FILE_ENDINGS = (".yaml", ".yml")


class Flags(NamedTuple):
    """The flags of `holdfast run` that say what the job is; None where not given."""

    name: str | None = None
    nodes: str | None = None
    spares: int | None = None
    workers: str | None = None
    max_restarts: int | None = None
    stop_grace_s: float | None = None
    module: bool = False
    no_python: bool = False
    env: tuple[str, ...] = ()
    workdir: str | None = None
    terminal: str | None = None
    start_from: str | None = None
    fresh: str | None = None
    preload: tuple[str, ...] | None = None
    preload_imports: bool | None = None
    instrument: bool | None = None
    integrate: bool | None = None
    parallel: str | None = None


def is_job_file(word: str) -> bool:
    """Whether the first word after the flags names a job file rather than a script."""
    return word.endswith(JOB_FILE_ENDINGS)


def job_from_file(path: Path, flags: Flags) -> "Job":
    """The job of the file, with what flags change. Raises `Error`."""
    from holdfast.spec import job_from_dict, job_from_yaml
    from holdfast.spec.files import require_texts

    if flags.module or flags.no_python:
        flag = "--module" if flags.module else "--no-python"
        raise _conflict(flag, f"{path.name} already defines the program to run")
    job = job_from_yaml(path)
    require_texts(job)  # its folder may be in the way
    data = _merged(job.model_dump(mode="json", exclude_unset=True), _changes(flags))
    data["workdir"] = str(Path.cwd() / flags.workdir) if flags.workdir else job.workdir
    return job_from_dict(data, where=f"{path} with the flags given")


def job_for_cluster(path: Path, flags: Flags) -> "Job":
    """The job of the file for a cluster: paths stay as they are, as those of the image."""
    from holdfast.spec import job_from_dict
    from holdfast.spec.load import job_as_written

    job = job_as_written(path)
    changes = _changes(flags)
    if flags.workdir is not None:
        changes["workdir"] = flags.workdir
    if not changes:
        return job
    data = _merged(job.model_dump(mode="json", exclude_unset=True), changes)
    return job_from_dict(data, where=f"{path} with the flags given")


def job_from_words(words: list[str], flags: Flags) -> "Job":
    """The job that a torchrun-like command line describes. Raises `Error`."""
    from holdfast.spec import job_from_dict
    from holdfast.spec.load import located

    data = _merged(_program(words, flags), _changes(flags))
    data.setdefault("name", _name_from(words[0], module=flags.module))
    data["workdir"] = flags.workdir or "."
    return located(job_from_dict(data, where="the command line"), Path.cwd())


def unused_name(name: str, taken: Callable[[str], bool]) -> str:
    """`name`, or the first of `name-2`, `name-3`, ... that is free."""
    number, candidate = 1, name
    while taken(candidate):
        number += 1
        suffix = f"-{number}"
        candidate = name[: NAME_LENGTH - len(suffix)].rstrip("-") + suffix
    return candidate


def _program(words: list[str], flags: Flags) -> dict[str, Any]:
    first, *args = words
    if flags.module and flags.no_python:
        raise _conflict("--module", "--no-python runs any program, -m a Python module")
    if flags.no_python:
        framework = "pytorch" if find_spec("torch") else "command"
        return {"command": [first], "args": args, "framework": framework, **_default_workers()}
    if flags.module:
        return {"module": first, "args": args, **_default_workers()}
    return {"script": _script(first), "args": args, **_default_workers()}


def _script(word: str) -> str:
    """The file that Python would run. Raises `Error` usage for standard input."""
    if word == "-":
        raise Error(
            "usage",
            "the script cannot come from standard input",
            why="every worker of every attempt runs it from its beginning, and it can be read once",
            help="write it to a file: cat > train.py && holdfast run train.py",
        )
    inside = os.path.join(word, "__main__.py")
    return inside if os.path.isfile(inside) else word  # pathlib raises for names that are too long


def place_given(word: str) -> str:
    """A place with checkpoints on this machine, absolute; a URL as it is.

    Raises `Error` storage-missing for a folder that is not there.
    """
    if "://" in word:
        return word
    folder = Path(word).absolute()
    if not folder.is_dir():
        raise Error(
            "storage-missing",
            f"there is no folder {folder} to start from",
            why="it does not exist" if not folder.exists() else "it is not a folder",
            help="holdfast checkpoint list NAME   (shows where a job has its checkpoints)",
        )
    return str(folder)


def fresh_word(wanted: bool) -> str | None:
    """The word under which a job begins anew, if that is wanted: no other one has it."""
    return datetime.now(UTC).isoformat(timespec="microseconds") if wanted else None


def _default_workers() -> dict[str, Any]:
    """torchrun starts one worker per node unless told otherwise."""
    return {"workers_per_node": 1}


def _changes(flags: Flags) -> dict[str, Any]:
    """The flags that were given, as they would stand in a job file."""
    least, most = torchrun.node_range(flags.nodes) if flags.nodes is not None else (None, None)
    changes = {
        "name": flags.name,
        "nodes": _given(count=most, spares=flags.spares),
        "elasticity": _given(min_nodes=least, max_nodes=most) if least != most else {},
        "workers_per_node": torchrun.workers_per_node(flags.workers) if flags.workers else None,
        "parallel": _layout(flags.parallel),
        "recovery": _given(max_restarts=flags.max_restarts, stop_grace_s=flags.stop_grace_s),
        "env": dict(map(_variable, flags.env)),
        "logs": _given(terminal=flags.terminal),
        "warm": _given(preload=flags.preload, preload_imports=flags.preload_imports),
        "instrument": _auto(flags.instrument),
        "integrate": _auto(flags.integrate),
        "checkpoints": _given(start_from=flags.start_from, fresh=flags.fresh),
    }
    return {key: value for key, value in changes.items() if value not in (None, {})}


def _auto(flag: bool | None) -> str | None:
    """Of a key that is `auto` or `off`."""
    return None if flag is None else ("off", "auto")[flag]


def _layout(text: str | None) -> dict[str, Any]:
    """`tp=2,pp=2` as a section."""
    if text is None:
        return {}
    from holdfast.dimensions import parsed

    try:
        return {**parsed(text)}
    except ValueError as error:
        raise Error(
            "usage",
            f"--parallel {text} is invalid",
            why=str(error),
            help="for example: --parallel tp=2,dp_shard=-1   (keys of `parallel` in a job file)",
        ) from None


def _given(**values: object) -> dict[str, object]:
    return {key: value for key, value in values.items() if value is not None}


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`below` with what `above` says instead; sections are merged."""
    merged = dict(below)
    for key, value in above.items():
        section = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = {**merged[key], **value} if section else value
    return merged


def _variable(text: str) -> tuple[str, str]:
    """`K=V`, or `K` to hand on the value that it has here."""
    key, equals, value = text.partition("=")
    if key and equals:
        return key, value
    if key in os.environ:
        return key, os.environ[key]
    raise Error(
        "usage",
        f"--env {text} is invalid",
        why="NAME=VALUE is expected, or the NAME of a variable that is set",
        help="holdfast run --help",
    )


def _name_from(word: str, *, module: bool) -> str:
    """A valid name from the script's, module's or program's own."""
    stem = word.rpartition(".")[2] if module else Path(word).stem
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    return name[:NAME_LENGTH].strip("-") or "job"


def _conflict(flag: str, why: str) -> Error:
    return Error("usage", f"{flag} cannot be used here", why=why, help="holdfast run --help")
