"""`holdfast logs`: what the workers printed."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
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
from holdfast.cli.source import incidents_of
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
    traces: Mapping[int, str] = {}  # attempt → trace of the incident that ended it

    @property
    def looks(self) -> bool:
        """Whether something is looked for, wherever it was written, and not only shown."""
        return self.since is not None or self.wanted != LineChoice()


def logs(
    name: JobName = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the output until the job has ended.")
    ] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank.")] = None,
    attempt: Annotated[
        int | None,
        typer.Option(
            "--attempt",
            min=1,
            help="Only this attempt. Default: the newest; with --follow, --since, --grep or "
            "--level all of them.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only what was written since: 90s, 10m, 2h, 1d, or a time."),
    ] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", help="Only lines in which this is found (a regex).")
    ] = None,
    level: Annotated[
        Level | None, typer.Option("--level", help="Only lines of this level or higher.")
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
    asked = asked._replace(traces=_traces(folder) if as_json else {})
    if not _print((_followed if follow else _written)(folder, asked), asked, follow):
        talk(_nothing(folder.name, asked))


def _traces(folder: Path) -> dict[int, str]:
    """By attempt: the trace of the incident that ended it, of a job that exports traces."""
    from holdfast.drivers.records import load_job

    otlp = load_job(folder).otlp
    if otlp is None or "traces" not in otlp.signals:
        return {}
    return {one.attempt: one.trace_id for one in incidents_of(folder) if one.trace_id}


def _nothing(job: str, asked: Asked) -> str:
    return f"no such output of {job}" if asked.looks else f"no output of {job}"


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
        if not _print(batches, asked, follow):
            talk(_nothing(name or "the newest job", asked))


def _written(folder: Path, asked: Asked) -> Iterator[Iterable[Line]]:
    """What is there, of one attempt after the other: of the newest, and of all where something is
    looked for, as what it was that ended an attempt stands in the log of that one."""
    attempts = sorted({attempt for attempt, _, _ in logs_below(folder / "logs")})
    if asked.attempt is not None:
        attempts = [asked.attempt]
    for attempt in attempts if asked.looks else attempts[-1:]:
        with closing(Tail(folder, rank=asked.rank, attempt=attempt, since=asked.since)) as tail:
            yield tail.drain()


def _followed(folder: Path, asked: Asked) -> Iterator[Iterable[Line]]:
    """New lines until the controller is gone; the look at it comes before the last read."""
    from holdfast.drivers.records import controller_alive

    with closing(Tail(folder, rank=asked.rank, attempt=asked.attempt, since=asked.since)) as tail:
        while controller_alive(folder):
            yield tail.tick()
            time.sleep(TICK_S)
        yield tail.drain()


def _print(batches: Iterator[Iterable[Line]], asked: Asked, follow: bool) -> int:
    """How many lines; those that are to be told once are gathered for a while where they come one
    by one, and never held where all of them are there already."""
    printed, levels, attempt = 0, Levels(), asked.attempt
    chosen = (asked.wanted.chosen(levels, lines) for lines in batches)
    for lines in _gathered(chosen) if asked.once and follow else chosen:
        for one in unique(lines) if asked.once else lines:
            line = one.line if isinstance(one, Same) else one
            if line.attempt != attempt and (attempt or asked.looks) and not asked.as_json:
                talk(f"attempt {line.attempt}:")
            attempt = line.attempt
            verbatim(_object(one, asked) if asked.as_json else _text(one))
            printed += 1
    return printed


def _text(one: Line | Same) -> str:
    return told(one) if isinstance(one, Same) else prefixed([one]).rstrip("\n")


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


def _object(one: Line | Same, asked: Asked) -> str:
    import json

    line = one.line if isinstance(one, Same) else one
    said = {"attempt": line.attempt, "rank": line.rank, "line": line.text}
    pod = {"pod": line.pod} if line.pod else {}
    trace = {"trace_id": found} if (found := asked.traces.get(line.attempt or 0)) else {}
    times = {"ranks": one.ranks, "count": one.times} if isinstance(one, Same) else {}
    return json.dumps({**said, **pod, **trace, **times})


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
