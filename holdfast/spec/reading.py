"""YAML as plain data, read strictly: what could be misread is refused, not guessed.

The text is read event by event into mappings, lists, text, numbers, booleans and null. A key that
is given twice and a word that YAML 1.1 and 1.2 read differently (`010`, `1:30`, `yes`) become
problems with their place and line; what has no sound reading at all (tags, an alias of itself,
endless nesting) ends it. What aliases repeat counts as often as it would be written out, so that
the answer is never much larger than the file.

PyYAML's own constructor reads `1:30` as 90, lets the second of two keys win and expands a hundred
bytes to gigabytes. Its parser, which this stands on, does none of that.
"""

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from holdfast.errors import shown

FILE_BYTES_MAX = 1 << 20
DEPTH_MAX = 64
STDIN = "-"
VALUES_MAX = 100_000  # a hundred characters of text count as one more

Place = tuple[str | int, ...]

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is built
_STANDARD = "tag:yaml.org,2002:"
_UNPRINTABLE = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_NULL = re.compile(r"|~|null|Null|NULL")
_BOOL = re.compile(r"(true|True|TRUE)|false|False|FALSE")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?|([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))"
)
_WORD = re.compile(r"yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF")
_UNSURE = re.compile(
    r"[-+]?(0[0-9_]+|0b[01_]+|0o[0-7]+|0x[0-9a-fA-F_]+)"  # octal or decimal, other radices
    r"|[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*"  # in base 60
    r"|[-+]?[1-9][0-9_]*"  # here and below only with `_`, as all else was recognised before
    r"|[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?"
)
_DIGITS_MAX = 40
_ESCAPED_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_ESCAPE = re.compile(rf"({_ESCAPED_PAIR.pattern})|\\.")


class Problem(NamedTuple):
    """One thing that is wrong, and where."""

    place: Place
    what: str


class Read(NamedTuple):
    """One document: its data, the line of every place, and what is wrong with it."""

    data: Any
    lines: dict[Place, int]
    problems: list[Problem]


class UnreadableError(Exception):
    """There is nothing to read, or it is not YAML as it is read here; the message says why."""


class UnsureError(Exception):
    """A plain word that has more than one reading; the message says what to write instead."""


def file_text(path: Path, most_bytes: int = FILE_BYTES_MAX) -> str:
    """The text of a file, of standard input where it is `-`. Raises `UnreadableError`."""
    try:
        if str(path) == STDIN:
            if sys.stdin is None:  # `<&-`
                raise UnreadableError("it is closed")
            return decoded(sys.stdin.buffer.read(most_bytes + 1), most_bytes)
        raw = _bytes(path, most_bytes + 1)
    except OSError as exc:
        raise UnreadableError(exc.strerror or str(exc)) from None
    except ValueError as exc:  # a NUL in the path
        raise UnreadableError(str(exc)) from None
    return decoded(raw, most_bytes)


def named(path: Path) -> str:
    """What messages call the source of `file_text`."""
    return "standard input" if str(path) == STDIN else str(path)


def decoded(raw: bytes, most_bytes: int = FILE_BYTES_MAX) -> str:
    """The text that `raw` holds, unless that is too much. Raises `UnreadableError`."""
    if len(raw) > most_bytes:
        raise UnreadableError(f"it is larger than {most_bytes} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise UnreadableError(f"it is not UTF-8 text (byte {exc.start})") from None


def mapping(text: str) -> Read:
    """The one document of `text`, which is a mapping. Raises `UnreadableError`."""
    found = documents(text)
    first = next(found, None)
    if first is None or not isinstance(first.data, dict):
        raise UnreadableError("`key: value` lines are expected at the top")
    if next(found, None) is not None:
        raise UnreadableError("it contains more than one document")
    return first


def documents(
    text: str, plain: "Callable[[str], Any] | None" = None, values_max: int = VALUES_MAX
) -> Iterator[Read]:
    """Every document of a stream; `plain` says what an unquoted word is. Raises
    `UnreadableError`."""
    _require_printable(text)
    events = yaml.parse(_without_pairs(text), Loader=_Loader)
    try:
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                yield _Document(events, plain or plain_value, values_max).read()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        tab = mark is not None and _character_at(text, mark.line, mark.column) == "\t"
        remedy = ": it is a tab, and YAML takes only spaces to indent" if tab else ""
        raise UnreadableError(f"{exc.problem}{place}{remedy}") from None
    except (yaml.YAMLError, UnicodeError) as exc:
        raise UnreadableError(str(exc)) from None


def _character_at(text: str, line: int, column: int) -> str:
    lines = text.splitlines()
    return lines[line][column : column + 1] if line < len(lines) else ""


def plain_value(text: str) -> Any:
    """What an unquoted word is where YAML 1.1 and 1.2 agree; a number with an exponent, on which
    they do not, stays text, which every number takes. Raises `UnsureError` for anything else."""
    if _NULL.fullmatch(text):
        return None
    if found := _BOOL.fullmatch(text):
        return bool(found[1])
    number = int if _INT.fullmatch(text) else _hexadecimal if _HEX.fullmatch(text) else None
    if number is not None:
        return number(_of_length(text))
    if _FLOAT.fullmatch(text):
        return float(_of_length(text).replace(".inf", "inf").replace(".nan", "nan"))
    if _WORD.fullmatch(text):
        raise UnsureError(
            "YAML 1.1 and YAML 1.2 interpret it differently; write true or false, or quote it"
        )
    if _UNSURE.fullmatch(text):
        raise UnsureError(
            "YAML 1.1 and YAML 1.2 interpret it differently; write a plain decimal number, or "
            "quote it"
        )
    return text


def _hexadecimal(text: str) -> int:
    return int(text, 16)


def _of_length(text: str) -> str:
    if len(text) > _DIGITS_MAX:
        raise UnsureError(f"a number has at most {_DIGITS_MAX} digits; quote it if it is text")
    return text.lower()


def _bytes(path: Path, limit: int) -> bytes:
    """A named pipe that nobody writes to is empty, instead of a wait without end; so is what the
    kernel has not said yet (`/proc/kmsg`). Only who writes to a pipe or a terminal is waited for.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(fd, stat.S_ISFIFO(os.fstat(fd).st_mode) or os.isatty(fd))
    with os.fdopen(fd, "rb") as file:
        return file.read(limit) or b""


def _require_printable(text: str) -> None:
    found = _UNPRINTABLE.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise UnreadableError(f"the character U+{ord(found[0]):04X} is not allowed (line {line})")


def _without_pairs(text: str) -> str:
    """The same JSON with characters for their surrogate pairs, which YAML does not have."""
    if not _ESCAPED_PAIR.search(text):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _ESCAPE.sub(lambda found: json.loads(f'"{found[0]}"') if found[1] else found[0], text)


class _Document:
    """One document that is being read."""

    def __init__(
        self, events: Iterator[yaml.Event], plain: Callable[[str], Any], values_max: int
    ) -> None:
        self._events = events
        self._plain = plain
        self._values_max = values_max
        self._values = 0
        self._anchors: dict[str, tuple[Any, int] | None] = {}  # None: not ended yet
        self._lines: dict[Place, int] = {}
        self._problems: list[Problem] = []

    def read(self) -> Read:
        """What stands between the start and the end of the document."""
        return Read(self._value(next(self._events), ()), self._lines, self._problems)

    def _value(self, event: yaml.Event, place: Place) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._repeated(event)
        self._count(1, event)
        if len(place) > DEPTH_MAX:
            raise _wrong("it is nested too deeply", event)
        before = self._values
        anchor: str | None = event.anchor  # type: ignore[attr-defined]
        if anchor is not None:
            self._anchors[anchor] = None
        value = self._new(event, place)
        if anchor is not None:
            self._anchors[anchor] = (value, self._values - before + 1)
        return value

    def _new(self, event: yaml.Event, place: Place) -> Any:
        tag: str | None = event.tag  # type: ignore[attr-defined]
        match event:
            case yaml.ScalarEvent():
                return self._scalar(event, place)
            case yaml.SequenceStartEvent() if tag in (None, "!", f"{_STANDARD}seq"):
                return self._sequence(place)
            case yaml.MappingStartEvent() if tag in (None, "!", f"{_STANDARD}map"):
                return self._mapping(place)
            case _:
                raise _wrong(f"the tag {shown(tag)} is not supported", event)

    def _repeated(self, event: yaml.AliasEvent) -> Any:
        if event.anchor not in self._anchors:
            raise _wrong(f"found undefined alias {shown(event.anchor)}", event)
        known = self._anchors[event.anchor]
        if known is None:
            raise _wrong(
                f"the alias {shown(event.anchor)} refers to a node that contains it", event
            )
        value, size = known
        self._count(size, event)
        return value

    def _count(self, size: int, event: yaml.Event) -> None:
        self._values += size
        if self._values > self._values_max:
            most = f"{self._values_max:,} values"
            raise _wrong(f"it contains more than {most} with all aliases expanded", event)

    def _scalar(self, event: yaml.ScalarEvent, place: Place) -> Any:
        text: str = event.value
        self._count(len(text) // 100, event)
        if event.tag in ("!", f"{_STANDARD}str"):
            return text
        if event.tag is not None:
            raise _wrong(f"the tag {shown(event.tag)} is not supported", event)
        if not event.implicit[0]:
            return text
        try:
            return self._plain(text)
        except UnsureError as exc:
            self._problems.append(Problem(place, f"{shown(text)}: {exc}"))
            return text

    def _sequence(self, place: Place) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            inner = (*place, len(found))
            self._lines[inner] = _line(event)
            found.append(self._value(event, inner))
        return found

    def _mapping(self, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[dict[str, Any]] = []
        lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            merges = isinstance(event, yaml.ScalarEvent) and _merges(event)
            key = "<<" if merges else self._key(event)
            inner, line = (*place, key), _line(event)
            if key in lines:
                self._problems.append(Problem(inner, _twice(lines[key], line)))
            self._lines[inner] = lines[key] = line
            value = self._value(next(self._events), inner)
            if merges:
                merged += _sources(value, event)
            else:
                found[key] = value
        for source in merged:
            for key, value in source.items():
                found.setdefault(key, value)
        return found

    def _key(self, event: yaml.Event) -> str:
        """A key is text, whatever it looks like: `on` and `8080` are names too."""
        if isinstance(event, yaml.ScalarEvent) and event.tag in (None, "!", f"{_STANDARD}str"):
            size = 1 + len(event.value) // 100
            self._count(size, event)
            if event.anchor is not None:
                self._anchors[event.anchor] = (event.value, size)
            return str(event.value)
        key = self._repeated(event) if isinstance(event, yaml.AliasEvent) else None
        if not isinstance(key, str):
            raise _wrong("a key must be text", event)
        return key


def _merges(event: yaml.ScalarEvent) -> bool:
    return event.value == "<<" and event.tag is None and event.implicit[0]


def _sources(value: Any, event: yaml.Event) -> list[dict[str, Any]]:
    """The mappings that `<<` brings in; of the same key the first one counts."""
    sources = value if isinstance(value, list) else [value]
    if not all(isinstance(source, dict) for source in sources):
        raise _wrong("the value of `<<` must be a mapping or a list of mappings", event)
    return sources


def _twice(first: int, line: int) -> str:
    where = "on this line" if first == line else f"first on line {first}"
    return f"duplicate key, {where}; keep one"


def _wrong(what: str, event: yaml.Event) -> UnreadableError:
    return UnreadableError(f"{what} (line {_line(event)})")


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None
    return event.start_mark.line + 1
