"""From YAML or a dict to a `Job`, and back; reports all problems in one pass.

The YAML text is read strictly (`reading.py`), which knows duplicate keys and line numbers, then
handed to pydantic. What pydantic finds is sorted by path and rewritten: the path as one would write
it (`recovery.window_s`), the line in the file, what is wrong, and for an unknown key the one that
was probably meant. What fits no process and no JSON (NUL, half a surrogate pair, a text longer than
an argument may be) is found here too, whatever the key, and whoever the data is from.

A loader that stops at the first mistake costs one round trip per mistake; a loader that lets a
duplicate key win silently costs a night.
"""

import difflib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from holdfast.errors import Error, clipped, visible
from holdfast.spec import reading
from holdfast.spec.job import Job
from holdfast.spec.reading import Place, Problem
from holdfast.spec.storage import Dataset

PROGRAMS = ("script", "module", "command")
TEXT_BYTES_MAX = 130_000  # with its name below the 128 KiB that Linux takes for one variable
WHOLE_MAX = 2**63 - 1
PROBLEMS_MAX = 20  # that are told; the others are counted
PLACE_MAX = 120


def job_from_yaml(path: Path) -> Job:
    """The job that the file describes, for this machine: its paths become absolute.

    They are relative to the folder of the file; of standard input (`-`) to the current one. Raises
    `Error` with slug `job-file-unreadable` or `job-invalid`.
    """
    job = job_as_written(path)
    folder = path.resolve().parent
    return with_places(located(job, folder), folder)


def job_as_written(path: Path) -> Job:
    """The job that the file describes; paths stay as they are, as those of an image.

    Raises `Error` with slug `job-file-unreadable` or `job-invalid`.
    """
    try:
        text = reading.file_text(path)
    except reading.UnreadableError as exc:
        raise _unreadable(reading.named(path), str(exc)) from None
    return job_from_text(text, where=reading.named(path))


def job_from_text(text: str, *, where: str) -> Job:
    """The job that YAML describes; paths stay as they are. Raises `Error` with slug
    `job-file-unreadable` or `job-invalid`."""
    try:
        data, lines, problems = reading.mapping(text)
    except reading.UnreadableError as exc:
        raise _unreadable(where, str(exc)) from None
    return _build(data, where=where, lines=lines, known=problems)


def job_from_dict(data: Mapping[str, Any], *, where: str) -> Job:
    """The job that `data` describes; `where` names its origin in the message.

    Paths stay as they are. Raises `Error` with slug `job-invalid`, listing every problem.
    """
    return _build(data, where=where, lines={}, known=[])


def located(job: Job, folder: Path) -> Job:
    """The same job with `script` and `workdir` absolute, relative ones taken from `folder`, or from
    the folder in it that `code` names."""
    folder = folder / (job.code or ".")
    changes = {"workdir": str(folder / job.workdir)}
    if job.script is not None:
        changes["script"] = str(folder / job.script)
    return job.model_copy(update=changes)


def code_folder(job: Job) -> Path:
    """Where the code of a located job lies: its working folder, unless the script is elsewhere."""
    workdir = Path(job.workdir).resolve()
    if job.script is None:
        return workdir
    script = Path(job.script).resolve()
    if script.is_relative_to(workdir):
        return workdir
    together = os.path.commonpath((script.parent, workdir))
    return Path(together) if job.code is not None else script.parent


def script_in(job: Job) -> Path:
    """The script of a located job, relative to its code."""
    assert job.script is not None, "it is no module or command"
    return Path(job.script).resolve().relative_to(code_folder(job))


def with_places(job: Job, folder: Path) -> Job:
    """The same job with the folders of its checkpoints absolute, for a job outside Kubernetes;
    relative ones are taken from `folder`."""
    tiers = job.checkpoints
    changes: dict[str, Any] = {
        name: tier.model_copy(update={"path": str(folder / (tier.path or ""))})
        for name, tier in (("local", tiers.local), ("shared", tiers.shared))
        if tier is not None and tier.path is not None
    }
    start = tiers.start_from
    if start is not None and "://" not in start:
        changes["start_from"] = str(folder / start)
    datasets = tuple(_with_source(one, folder) for one in job.datasets)
    with_tiers = {"checkpoints": tiers.model_copy(update=changes)}
    return job.model_copy(update={**with_tiers, "datasets": datasets})


def _with_source(dataset: Dataset, folder: Path) -> Dataset:
    if dataset.source is None or "://" in dataset.source:
        return dataset
    return dataset.model_copy(update={"source": str(folder / dataset.source)})


def job_schema() -> dict[str, Any]:
    """JSON schema of the job file, short forms included."""
    from holdfast.spec.described import described

    schema = described(Job.model_json_schema())
    keys = schema["properties"]
    nodes = keys["nodes"]
    whole = {"type": "integer", "minimum": 1, "maximum": 100_000}
    keys["nodes"] = {**nodes, "anyOf": [whole, {"$ref": nodes.pop("$ref")}]}
    keys["image"]["anyOf"].insert(0, {"type": "string", "minLength": 1})
    schema["oneOf"] = [{"required": [name]} for name in PROGRAMS]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def to_yaml(job: Job) -> str:
    """A job file that gives this job again; what equals the default is left out."""
    return _yaml(job.model_dump(mode="json", exclude_defaults=True))


def as_given(job: Job) -> str:
    """A job file with what was said and nothing else, be it a default: that may mean something."""
    said = job.model_dump(mode="json", exclude_unset=True)
    return _yaml({key: value for key, value in said.items() if value not in (None, [], {})})


_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times as fast, where built


class _Dumper(_SafeDumper):  # type: ignore[misc]
    """Quotes what our reader would not take for the same text, beside what YAML 1.1 makes quote."""


def _quoted_if_unsure(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    node: yaml.ScalarNode = dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=_style(text)
    )
    return node


def _style(text: str) -> str | None:
    if visible(text) != text:
        return '"'  # with escapes: other quotes would make a space of a NEL
    try:
        return None if reading.plain_value(text) == text else "'"
    except reading.UnsureError:
        return "'"


_Dumper.add_representer(str, _quoted_if_unsure)


def _yaml(data: Mapping[str, Any]) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


# ── checking ──────────────────────────────────────────────────────────────────────────────────


def _unreadable(where: str, why: str) -> Error:
    return Error(
        "job-file-unreadable",
        f"cannot read the job file {where}",
        why=why,
        help="`holdfast schema` prints the accepted keys",
    )


def _build(
    data: Mapping[str, Any], *, where: str, lines: Mapping[Place, int], known: list[Problem]
) -> Job:
    problems = [*known, *unfit(data)]
    if any(len(problem.place) > reading.DEPTH_MAX for problem in problems):
        raise _invalid(problems, where, lines)  # no data for a recursive validator
    try:
        job = Job.model_validate(data)
    except ValidationError as exc:
        told = {problem.place for problem in problems}
        found = _merged(exc.errors(include_url=False), data, lines)
        problems += [problem for problem in found if problem.place not in told]
        problems += _program(problems, data)
    if problems:
        raise _invalid(problems, where, lines)
    return job


def unfit(value: object, place: Place = ()) -> Iterator[Problem]:
    """What no program can be given and no JSON can hold, wherever it stands."""
    match value:
        case _ if len(place) > reading.DEPTH_MAX:
            yield Problem(place, f"is nested deeper than {reading.DEPTH_MAX} levels")
        case str():
            yield from (Problem(place, what) for what in _unfit_text(value))
        case bool() | None:
            pass
        case int():
            if not -WHOLE_MAX <= value <= WHOLE_MAX:
                yield Problem(place, "is too large a number")
        case float():
            if not math.isfinite(value):
                yield Problem(place, "must be a finite number")
        case Mapping():
            for key, inner in value.items():
                yield from (Problem((*place, str(key)), f"its name {w}") for w in _unfit_key(key))
                yield from unfit(inner, (*place, str(key)))
        case list() | tuple():
            for index, inner in enumerate(value):
                yield from unfit(inner, (*place, index))
        case _:
            yield Problem(place, f"must be plain data, not {type(value).__name__}")


def _unfit_key(key: object) -> list[str]:
    return _unfit_text(key) if isinstance(key, str) else ["must be text"]


def _unfit_text(text: str) -> list[str]:
    if "\0" in text:
        return ["contains a NUL character, which terminates strings of the operating system"]
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return ["is not valid Unicode: unpaired surrogate or bytes that are not UTF-8"]  # fmt: skip
    if size > TEXT_BYTES_MAX:
        return [f"has {size:,} bytes; the limit of Linux is {TEXT_BYTES_MAX:,} per argument"]
    return []


def _program(problems: list[Problem], data: Mapping[str, Any]) -> list[Problem]:
    """The choice of a program, which pydantic looks at only when all the rest is right."""
    given = [key for key in PROGRAMS if data.get(key) is not None]
    if len(given) == 1 or any(p.place == () for p in problems):
        return []
    return [Problem((), f"give exactly one of {', '.join(PROGRAMS)}")]


def _invalid(problems: list[Problem], where: str, lines: Mapping[Place, int]) -> Error:
    count = "1 problem" if len(problems) == 1 else f"{len(problems):,} problems"
    in_order = sorted(problems, key=lambda problem: lines.get(problem.place, 0))
    told = [_told(problem, lines) for problem in in_order[:PROBLEMS_MAX]]
    if len(problems) > PROBLEMS_MAX:
        told.append(f"and {len(problems) - PROBLEMS_MAX:,} more")
    return Error(
        "job-invalid",
        f"{where}: {count} in the job description",
        why="\n    ".join(told if len(told) == 1 else ["", *told]),
        help="`holdfast schema` prints the accepted keys; nothing was started",
    )


def _told(problem: Problem, lines: Mapping[Place, int]) -> str:
    line = lines.get(problem.place)
    at = f" (line {line})" if line else ""
    place = dotted(problem.place).replace("\n", "\\n")
    return f"{clipped(place, PLACE_MAX)}{at}: {problem.what}"


def dotted(place: Place) -> str:
    """`("args", 2)` as `args[2]`; the job itself as `job`."""
    text = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place)
    return text.removeprefix(".") or "job"


def _merged(
    errors: Iterable[ErrorDetails], data: Mapping[str, Any], lines: Mapping[Place, int]
) -> list[Problem]:
    """One problem per place, in order: the branches of a choice are joined by "or". Of more than
    can be told only the places are known."""
    by_place: dict[Place, list[ErrorDetails]] = {}
    for error in errors:
        place = _real_place(error["loc"], data, ends_outside=error["type"] == "missing")
        by_place.setdefault(place, []).append(error)
    places = sorted(by_place, key=lambda place: lines.get(place, 0))
    told = [
        Problem(place, _either(list(dict.fromkeys(_in_words(e, place) for e in by_place[place]))))
        for place in places[:PROBLEMS_MAX]
    ]
    return told + [Problem(place, "") for place in places[PROBLEMS_MAX:]]


def _either(whats: list[str]) -> str:
    first, *others = whats
    return " or ".join([first, *(w.removeprefix("must be ") for w in others)])


def _real_place(loc: Place, data: object, *, ends_outside: bool) -> Place:
    """`loc` without the names of choices that pydantic adds, which are not in the data."""
    for depth, step in enumerate(loc):
        if not _holds(data, step):
            return loc[: depth + 1] if ends_outside else loc[:depth]
        data = data[step]  # type: ignore[index]
    return loc


def _holds(data: object, step: str | int) -> bool:
    if isinstance(data, Mapping):
        return step in data
    return isinstance(data, (list, tuple)) and isinstance(step, int) and step < len(data)


def _in_words(found: ErrorDetails, place: Place) -> str:
    match found["type"]:
        case "extra_forbidden":
            return _unknown_key(place)
        case "missing":
            return "is required"
        case "string_pattern_mismatch" if place[:1] == ("env",):
            return (
                "the name of a variable must be printable ASCII without `=`, at most 255 characters"
            )
        case "string_type":
            return f"must be text; write it in quotes: {_quoted(found['input'])}"
        case "string_pattern_mismatch" if place == ("name",):
            return "must be lower-case letters, digits and dashes, as in gpt-2b"
        case "string_pattern_mismatch" if place == ("module",):
            return "must be the name of a module, as in `python -m package.module`"
        case "bool_type" | "bool_parsing":
            return "must be true or false"
        case "int_type" | "int_parsing" | "int_from_float":
            return "must be a whole number"
        case "float_type" | "float_parsing":
            return "must be a number"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "must be a section of `key: value` lines"
        case "tuple_type":
            return "must be a list"
        case "too_short":
            return "must not be empty"
        case _:
            message = found["msg"].removeprefix("Value error, ")
            return re.sub("^(Input|String|Value) should", "must", message)


def _quoted(value: object) -> str:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f'"{value}"' if plain else '"..."'


def _unknown_key(place: Place) -> str:
    key, siblings = str(place[-1])[:PLACE_MAX], _keys_beside(place)
    close = difflib.get_close_matches(key, siblings, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(siblings)}"
    return f"unknown key; {hint}"


def _keys_beside(place: Place) -> list[str]:
    """The keys that are accepted in the section that holds `place`."""
    model: type[BaseModel] = Job
    for step in place[:-1]:
        if isinstance(step, int):
            continue
        field = model.model_fields.get(step)
        inner = _section_in(field.annotation) if field else None
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _section_in(annotation: object) -> type[BaseModel] | None:
    """The section in `Section`, `Section | None` or `tuple[Section, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_section_in(argument) for argument in get_args(annotation))
    return next((section for section in inner if section is not None), None)
