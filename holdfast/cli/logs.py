"""`holdfast logs`: what the workers printed."""

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from holdfast.cli.cluster import Context, Namespace, On, Reach, connected, reached
from holdfast.cli.controller import Where
from holdfast.cli.locate import job_folder
from holdfast.cli.log_filter import Level, Levels, LineChoice, Same, compiled, told, unique
from holdfast.cli.output import AsJson, JobName, talk, verbatim
from holdfast.cli.tail import TICK_S, Line, Tail, logs_below, prefixed
from holdfast.errors import Error, shown

ONCE_S = 1.0
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Asked(NamedTuple):
    """Which lines, and how."""

    rank: int | None
    attempt: int | None
    since: float | None  # seconds since the epoch
    wanted: LineChoice
    once: bool  # each line only once
    as_json: bool


def logs(
    name: JobName = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the output until the job has ended.")
    ] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank.")] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Only this attempt. Default: the newest.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only what was written since: 90s, 10m, 2h, 1d, or a time."),
    ] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", help="Only lines in which this is found (a regex).")
    ] = None,
    level: Annotated[
        Level | None, typer.Option("--level", help="Only lines of this level or a graver one.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--unique", help="Lines that many ranks wrote only once, with a count.")
    ] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Print the output of the workers, each line with its rank."""
    reach = reached(on, context, namespace)
    began = instant(since, time.time()) if since is not None else None
    asked = Asked(rank, attempt, began, LineChoice(compiled(grep), level), once, as_json)
    if reach is not None:
        _remote(reach, name, follow, asked)
        return
    folder = job_folder(name)
    newest = attempt is None and not follow and began is None
    tail = Tail(folder, rank=rank, attempt=_newest(folder) if newest else attempt, since=began)
    batches = _followed(folder, tail) if follow else iter([tail.drain()])
    printed = _print(batches, asked)
    tail.close()
    if not printed:
        talk(_nothing(folder.name, asked))


def _nothing(job: str, asked: Asked) -> str:
    chosen = asked.since is not None or asked.wanted != LineChoice()
    return f"no such output of {job}" if chosen else f"no output of {job}"


def _remote(reach: Reach, name: str | None, follow: bool, asked: Asked) -> None:
    from holdfast.cli import remote_logs

    if asked.attempt is not None:
        raise Error(
            "usage",
            "--attempt applies to jobs on this machine only",
            why="the log of a pod contains all attempts in sequence",
            help="omit --attempt",
        )
    with (
        connected(reach) as session,
        closing(
            remote_logs.shown(session, name, follow=follow, rank=asked.rank, since=asked.since)
        ) as show,
    ):
        some = ([] if line is None else [line] for line in show)
        batches = some if follow else iter([chain.from_iterable(some)])
        if not _print(batches, asked):
            talk(_nothing(name or "the newest job", asked))


def _newest(folder: Path) -> int | None:
    return max((attempt for attempt, _, _ in logs_below(folder / "logs")), default=None)


def _followed(folder: Path, tail: Tail) -> Iterator[Iterable[Line]]:
    """New lines until the controller is gone; the look at it comes before the last read."""
    from holdfast.drivers.records import controller_alive

    while controller_alive(folder):
        yield tail.tick()
        time.sleep(TICK_S)
    yield tail.drain()


def _print(batches: Iterator[Iterable[Line]], asked: Asked) -> int:
    """How many lines; those that are to be told once are gathered for a while."""
    printed, levels = 0, Levels()
    chosen = (asked.wanted.chosen(levels, lines) for lines in batches)
    for lines in _gathered(chosen) if asked.once else chosen:
        if asked.once:
            same = unique(lines)
            for one in same:
                verbatim(_object(one.line, one) if asked.as_json else told(one))
            printed += len(same)
            continue
        for line in lines:
            verbatim(_object(line) if asked.as_json else prefixed([line]).rstrip("\n"))
            printed += 1
    return printed


def _gathered(batches: Iterator[Iterable[Line]]) -> Iterator[list[Line]]:
    """What came within `ONCE_S`, so that the ranks which write the same find together."""
    held: list[Line] = []
    began = time.monotonic()
    for lines in batches:
        held += lines
        if time.monotonic() - began >= ONCE_S:
            yield held
            held, began = [], time.monotonic()
    yield held


def _object(line: Line, same: Same | None = None) -> str:
    import json

    said = {"attempt": line.attempt, "rank": line.rank, "line": line.text}
    pod = {"pod": line.pod} if line.pod else {}
    times = {"ranks": same.ranks, "count": same.times} if same is not None else {}
    return json.dumps({**said, **pod, **times})


def instant(text: str, now: float) -> float:
    """`10m` before now, or the time that is written there. Raises `Error` usage."""
    if found := _AGO.fullmatch(text):
        return now - float(found[1]) * _UNITS_S[found[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise Error(
            "usage",
            f"--since {shown(text)} is neither a duration nor a time",
            why="a duration is a number with s, m, h or d; a time is written 2027-01-31T17:00:00",
            help="holdfast logs --since 10m",
        ) from None
