"""Objects as YAML that a person likes to read, with a comment where a choice is not obvious.

The same data always gives the same text: keys keep their order, small lists of plain values stand
on one line, and whatever YAML could mistake for something else is quoted. Comments come from a
table beside the data (`notes.py`), so that the data stays plain, exactly what a client would send.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from holdfast.drivers.kubernetes.manifests.request import Body

WIDTH = 100
NAMES = "resourceNames"  # of which a rule may have dozens
Path = tuple[str, ...]
Part = TypeVar("Part", Body, list[object])

PLAIN = re.compile(
    r"(?:--)?[A-Za-z_/][A-Za-z0-9_./+@%=,() -]*(?::[A-Za-z0-9_./+@%=,()-]+)*|[0-9]+[KMGTPE]i"
)
ODD = re.compile("[^ -~\u00a0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
WORDS = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n", "~", ""))


def documents(bodies: Sequence[Body], notes: "Notes") -> str:
    """All objects as one YAML stream."""
    return "---\n".join(document(body, notes) for body in bodies)


def document(body: Body, notes: "Notes") -> str:
    """One object as YAML."""
    return "".join(f"{line}\n" for line in _mapping(body, (str(body.get("kind")),), notes))


class Notes:
    """Comments by place, each given once. A place is the kind and the keys below it, list positions
    left out; the most specific entry (one with a kind) wins over one that starts with `*`. A place
    that ends in `=value` is meant only with this value."""

    def __init__(self, table: dict[str, str]):
        self._table = {tuple(place.split(".")): text for place, text in table.items()}
        self._valued = {path[-1].partition("=")[0] for path in self._table if "=" in path[-1]}
        self._told: set[str] = set()
        self._asked: set[Path] = set()
        self._written: dict[tuple[int, Path], tuple[object, list[str]]] = {}

    def at(self, path: Path, value: object = None) -> str | None:
        """The comment for this place, if it has not been given yet."""
        if path[-1] in self._valued and not isinstance(value, (dict, list)):
            path = (*path[:-1], f"{path[-1]}={scalar(value)}")
        if path in self._asked:
            return None
        self._asked.add(path)
        found = self._table.get(path)
        if found is None:
            tails = (("*", *path[start:]) for start in range(1, len(path)))
            found = next((self._table[tail] for tail in tails if tail in self._table), None)
        if found is None or found in self._told:
            return None
        self._told.add(found)
        return found

    def once(
        self, value: Part, path: Path, write: Callable[[Part, Path, "Notes"], Iterator[str]]
    ) -> list[str]:
        """Lines of a value. Pods of a job share what they have in common, and 500 of them must not
        take 500 times as long: what had no comment in it is not written again in the same place."""
        known = self._written.get((id(value), path))
        if known is not None:
            return known[1]
        told = len(self._told)
        lines = list(write(value, path, self))
        if told == len(self._told):
            block = lines if "" in lines else ["\n".join(lines)]
            self._written[id(value), path] = (value, block)  # kept, so that the id stays its own
        return lines


def _mapping(body: Body, path: Path, notes: Notes) -> Iterator[str]:
    for key, value in body.items():
        here = (*path, key)
        text = notes.at(here, value)
        if text is not None:
            yield from _comment(text)
        yield from _entry(f"{scalar(key)}:", value, here, notes)


def _comment(text: str) -> Iterator[str]:
    line = "#"
    for word in text.split():
        if len(line) + len(word) >= WIDTH - 20:
            yield line
            line = "#"
        line += f" {word}"
    yield line


def _entry(head: str, value: object, path: Path, notes: Notes) -> Iterator[str]:
    match value:
        case dict() if value:
            yield head
            yield from _indented(notes.once(value, path, _mapping), "  ")
        case list() if path[-1] == NAMES and not _short(value):
            yield f"{head} ["
            yield from _lines(value)
        case list() if value and not _short(value):
            yield head
            yield from notes.once(value, path, _sequence)
        case str() if "\n" in value.rstrip("\n") and _block(value):
            yield f"{head} |{'' if value.endswith(chr(10)) else '-'}"
            yield from (f"  {line}" if line else "" for line in value.splitlines())
        case _:
            yield f"{head} {flow(value)}"


def _lines(items: Sequence[object]) -> Iterator[str]:
    """As many of many short items on a line as fit."""
    line = " "
    for item in items:
        if len(line) + len(text := f" {_in_flow(item)},") > WIDTH - 2:
            yield line
            line = " "
        line += text
    yield f"{line[:-1]}]"


def _sequence(items: list[object], path: Path, notes: Notes) -> Iterator[str]:
    return (line for item in items for line in _item(item, path, notes))


def _item(item: object, path: Path, notes: Notes) -> Iterator[str]:
    if isinstance(item, dict) and item:
        lines = _mapping(item, path, notes)
    elif isinstance(item, list) and item:
        lines = (line for inner in item for line in _item(inner, path, notes))
    else:
        lines = (line.removeprefix("- ") for line in _entry("-", item, path, notes))
    for number, line in enumerate(lines):
        yield ("- " if number == 0 else "  ") + _shifted(line, "  ") if line else line


def _indented(lines: Iterable[str], indent: str) -> Iterator[str]:
    return (indent + _shifted(line, indent) if line else line for line in lines)


def _shifted(block: str, indent: str) -> str:
    """A line, or several that were written before, all but the first moved to the right."""
    return block.replace("\n", f"\n{indent}")


def _short(items: Sequence[object]) -> bool:
    """Whether a list is short enough for one line."""
    plain = all(isinstance(i, (str, int, float)) and "\n" not in str(i) for i in items)
    return plain and sum(len(str(i)) + 4 for i in items) < WIDTH - 30


def _block(text: str) -> bool:
    """Whether a text can stand as lines: no odd characters, no blanks that would be lost."""
    lines = text.removesuffix("\n").split("\n")
    odd = any(line != line.rstrip() or not line.isprintable() for line in lines)
    return bool(lines[0]) and not odd and not lines[0].startswith(" ") and bool(lines[-1])


def flow(value: object) -> str:
    """A value on one line."""
    match value:
        case dict():
            return "{" + ", ".join(f"{scalar(k)}: {flow(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(_in_flow(item) for item in value) + "]"
        case _:
            return scalar(value)


def _in_flow(value: object) -> str:
    text = flow(value)
    return quoted(value) if isinstance(value, str) and "," in text else text


def quoted(text: str) -> str:
    """In double quotes; what YAML does not take as it is, it takes by its number."""
    shown = json.dumps(text, ensure_ascii=False)
    return ODD.sub(lambda found: f"\\U{ord(found[0]):08x}", shown)


def scalar(value: object) -> str:
    """A key or plain value; text is quoted where YAML would read it as something else."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            plain = PLAIN.fullmatch(value) and value.lower() not in WORDS and value == value.strip()
            return value if plain else quoted(value)
        case _:
            return str(value)
