"""From YAML or a dict to a `Job`, and back; every problem is told at once, in plain words.

The YAML text is first composed into nodes, which knows duplicate keys and line numbers, then built
and handed to pydantic. What pydantic finds is sorted by path and rewritten: the path as one would
write it (`recovery.window_s`), the line in the file, what is wrong, and for an unknown key the one
that was probably meant.

A loader that stops at the first mistake costs one round trip per mistake; a loader that lets a
duplicate key win silently costs a night.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from holdfast.errors import Error
from holdfast.spec.job import Job

PROGRAMS = ("script", "module", "command")
FILE_BYTES_MAX = 4 * 1024 * 1024

Place = tuple[str | int, ...]


class Problem(NamedTuple):
    """One thing that is wrong, and where."""

    place: Place
    what: str


class NotAMappingError(Exception):
    """The text is not YAML, or not one mapping; the message says where."""


def job_from_yaml(path: Path) -> Job:
    """The job that the file describes, for this machine: its paths become absolute.

    They are relative to the folder of the file. Raises `Error` with slug `job-file-unreadable` or
    `job-invalid`.
    """
    folder = path.resolve().parent
    return with_places(located(job_as_written(path), folder), folder)


def job_as_written(path: Path) -> Job:
    """The job that the file describes; paths stay as they are, as those of an image.

    Raises `Error` with slug `job-file-unreadable` or `job-invalid`.
    """
    text = _read(path)
    try:
        data, lines, duplicates = _parse(text)
    except NotAMappingError as exc:
        raise _unreadable(path, f"it is not a YAML mapping: {exc}") from None
    return _build(data, where=str(path), lines=lines, known=duplicates)


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
    return job.model_copy(update={"checkpoints": tiers.model_copy(update=changes)})


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


def _yaml(data: Mapping[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


# ── reading ───────────────────────────────────────────────────────────────────────────────────


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as exc:
        raise _unreadable(path, exc.strerror or str(exc)) from None
    if len(raw) > FILE_BYTES_MAX:
        raise _unreadable(path, f"it is larger than {FILE_BYTES_MAX} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise _unreadable(path, f"it is not UTF-8 text (byte {exc.start})") from None


def _unreadable(path: Path, why: str) -> Error:
    return Error(
        "job-file-unreadable",
        f"cannot read the job file {path}",
        why=why,
        help="`holdfast schema` shows what a job file may hold",
    )


def _parse(text: str) -> tuple[Mapping[str, Any], dict[Place, int], list[Problem]]:
    """The data, the line of every place, and the duplicate keys."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise NotAMappingError("`key: value` lines are expected at the top")
        places = list(_walk(node, (), set()))
        return loader.construct_document(node), dict(places), _duplicates(places)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise NotAMappingError(f"{exc.problem}{place}") from None
    except (yaml.YAMLError, ValueError) as exc:
        raise NotAMappingError(str(exc)) from None
    except RecursionError:
        raise NotAMappingError("it is nested too deeply") from None
    finally:
        loader.dispose()


def _walk(node: yaml.Node, place: Place, seen: set[int]) -> Iterator[tuple[Place, int]]:
    """Every key and item below `node` with its line; what an alias repeats is walked once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    for step, at, value in _children(node):
        yield (*place, step), at.start_mark.line + 1
        yield from _walk(value, (*place, step), seen)


def _children(node: yaml.Node) -> list[tuple[str | int, yaml.Node, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        return [(str(key.value), key, value) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [(index, value, value) for index, value in enumerate(node.value)]
    return []


def _duplicates(places: list[tuple[Place, int]]) -> list[Problem]:
    first: dict[Place, int] = {}
    found = []
    for place, line in places:
        earlier = first.setdefault(place, line)
        if earlier != line:
            found.append(Problem(place, f"given twice, first in line {earlier}; keep one"))
    return found


# ── checking ──────────────────────────────────────────────────────────────────────────────────


def _build(
    data: Mapping[str, Any], *, where: str, lines: Mapping[Place, int], known: list[Problem]
) -> Job:
    problems = list(known)
    try:
        job = Job.model_validate(data)
    except ValidationError as exc:
        problems += _merged(_problem(found, data) for found in exc.errors(include_url=False))
        problems += _program(problems, data)
    if problems:
        raise _invalid(sorted(problems, key=lambda p: lines.get(p.place, 0)), where, lines)
    return job


def _program(problems: list[Problem], data: Mapping[str, Any]) -> list[Problem]:
    """The choice of a program, which pydantic looks at only when all the rest is right."""
    given = [key for key in PROGRAMS if data.get(key) is not None]
    if len(given) == 1 or any(p.place == () for p in problems):
        return []
    return [Problem((), f"give exactly one of {', '.join(PROGRAMS)}")]


def _invalid(problems: list[Problem], where: str, lines: Mapping[Place, int]) -> Error:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    told = [_told(p, lines) for p in problems]
    return Error(
        "job-invalid",
        f"{where}: {count} in the job description",
        why="\n    ".join(told if len(told) == 1 else ["", *told]),
        help="`holdfast schema` prints what is accepted; nothing was started",
    )


def _told(problem: Problem, lines: Mapping[Place, int]) -> str:
    line = lines.get(problem.place)
    at = f" (line {line})" if line else ""
    return f"{dotted(problem.place)}{at}: {problem.what}"


def dotted(place: Place) -> str:
    """`("args", 2)` as `args[2]`; the job itself as `job`."""
    text = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place)
    return text.removeprefix(".") or "job"


def _merged(problems: Iterable[Problem]) -> list[Problem]:
    """One problem per place: the branches of a choice are joined by "or"."""
    by_place: dict[Place, list[str]] = {}
    for problem in problems:
        found = by_place.setdefault(problem.place, [])
        if problem.what not in found:
            found.append(problem.what)
    return [Problem(place, _either(whats)) for place, whats in by_place.items()]


def _either(whats: list[str]) -> str:
    first, *others = whats
    return " or ".join([first, *(w.removeprefix("must be ") for w in others)])


def _problem(found: ErrorDetails, data: Mapping[str, Any]) -> Problem:
    place = _real_place(found["loc"], data, ends_outside=found["type"] == "missing")
    return Problem(place, _in_words(found, place))


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
        case "string_type":
            return f"must be text; write it in quotes: {_quoted(found['input'])}"
        case "string_pattern_mismatch" if place == ("name",):
            return "must be lower-case letters, digits and dashes, as in gpt-2b"
        case "int_type" | "int_parsing" | "int_from_float":
            return "must be a whole number"
        case "float_type" | "float_parsing":
            return "must be a number"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "must be a section of `key: value` lines"
        case "tuple_type":
            return "must be a list"
        case _:
            message = found["msg"].removeprefix("Value error, ")
            return message.replace("Input should be", "must be")


def _quoted(value: object) -> str:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f'"{value}"' if plain else '"..."'


def _unknown_key(place: Place) -> str:
    key, siblings = str(place[-1]), _keys_beside(place)
    close = difflib.get_close_matches(key, siblings, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(siblings)}"
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
