"""Which lines of many ranks somebody wants to see: by pattern, by level, each only once.

A line has the level that its logger wrote into it: Python's names, or the first letter of glog, as
torch and XLA write it. Lines without one belong to the line before if they are indented, or part of
a traceback down to its exception. Any other is `info`, as is what `print` wrote.

Two lines are the same if they differ in times, addresses and the number of the rank at most.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from holdfast.cli.tail import Line
from holdfast.errors import Error, shown


class Level(StrEnum):
    """Of a line, the least important first."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_ORDER = list(Level)
_NAMES = {
    "DEBUG": Level.DEBUG, "TRACE": Level.DEBUG, "INFO": Level.INFO, "NOTICE": Level.INFO,
    "WARN": Level.WARNING, "WARNING": Level.WARNING, "ERROR": Level.ERROR, "FATAL": Level.ERROR,
    "CRITICAL": Level.ERROR, "D": Level.DEBUG, "I": Level.INFO, "W": Level.WARNING,
    "E": Level.ERROR, "F": Level.ERROR, "C": Level.ERROR,
}  # fmt: skip
_HEAD_CHARS = 120  # a level stands at the beginning of a line
_WORD = re.compile(
    r"(?<![\w.])(DEBUG|TRACE|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)(?![\w.])"
)
_GLOG = re.compile(r"\s*(?:\[rank\d+\]:)?\s*\[?([DIWEFC])\d{4} \d\d:\d\d:\d\d")
_WARNED = re.compile(r".*?:\d+: (?:[A-Z]\w*)?Warning: ")  # of Python's module warnings
_TRACEBACK = "Traceback (most recent call last)"
_VARIES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*Z?"  # dates
    r"|\b\d\d:\d\d:\d\d(?:[.,]\d+)?|\b[DIWEF]\d{4}(?= )"
    r"|0x[0-9a-fA-F]+"
    r"|\b(?:global |local )?rank[ :=]*\d+|\[\d+\](?=:)",
    re.IGNORECASE,
)


class Levels:
    """The level of each line of each rank in each attempt, in order."""

    def __init__(self) -> None:
        self._of: dict[
            tuple[int | None, int | None, str], tuple[Level, bool]
        ] = {}  # and in a traceback?

    def of(self, line: Line) -> Level:
        """Of the next line of its rank."""
        key = line.attempt, line.rank, line.pod
        before, inside = self._of.get(key, (Level.INFO, False))
        if _TRACEBACK in line.text:
            found, inside = Level.ERROR, True
        elif (stated := _stated(line.text)) is not None:
            found, inside = stated, False
        elif inside:
            found = Level.ERROR
            inside = not line.text or line.text[0].isspace() or line.text.startswith("[rank")
        else:
            found = before if line.text[:1].isspace() else Level.INFO
        self._of[key] = found, inside
        return found


def _stated(text: str) -> Level | None:
    if glog := _GLOG.match(text):
        return _NAMES[glog[1]]
    if _WARNED.match(text):
        return Level.WARNING
    word = _WORD.search(text, 0, _HEAD_CHARS)
    return _NAMES[word[1]] if word else None


class LineChoice(NamedTuple):
    """What somebody asked for; as it is: everything."""

    pattern: re.Pattern[str] | None = None
    level: Level | None = None

    def chosen(self, levels: Levels, lines: Iterable[Line]) -> Iterator[Line]:
        """Those that are wanted; `levels` goes on from call to call."""
        least = _ORDER.index(self.level) if self.level is not None else 0
        for line in lines:
            grave = self.level is None or _ORDER.index(levels.of(line)) >= least
            if grave and (self.pattern is None or self.pattern.search(line.text)):
                yield line


def compiled(pattern: str | None) -> re.Pattern[str] | None:
    """A regular expression as given. Raises `Error` usage."""
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise Error(
            "usage",
            f"--grep {shown(pattern)} is not a regular expression",
            why=str(error),
            help="escape characters with a meaning, as in --grep 'loss\\[0\\]'",
        ) from None


class Same(NamedTuple):
    """Lines that are the same: the first of them, who wrote it, and how often in all."""

    line: Line
    ranks: tuple[int, ...]
    pods: tuple[str, ...]
    times: int


def unique(lines: Iterable[Line]) -> list[Same]:
    """Each line once, in the order in which they came first. Bounded by what differs."""
    first: dict[tuple[int | None, str], Line] = {}
    writers: dict[tuple[int | None, str], Counter[tuple[int | None, str]]] = {}
    for line in lines:
        key = line.attempt, _VARIES.sub("", line.text)
        first.setdefault(key, line)
        writers.setdefault(key, Counter())[line.rank, line.pod] += 1
    return [
        Same(
            line,
            tuple(sorted(rank for rank, _ in writers[key] if rank is not None)),
            tuple(dict.fromkeys(pod for _, pod in writers[key] if pod)),
            writers[key].total(),
        )
        for key, line in first.items()
    ]


def told(same: Same) -> str:
    """`[0-7] text  (x 8)`."""
    from holdfast.events import in_rows
    from holdfast.stacks import in_words

    who = in_words(in_rows(same.ranks)) if same.ranks else ", ".join(same.pods)
    times = f"  (x {same.times})" if same.times > 1 else ""
    return f"[{who}] {same.line.text}{times}"
