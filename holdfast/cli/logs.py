"""`holdfast logs`: what the workers printed."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.cluster import Context, Namespace, On, Reach, connected, reached
from holdfast.cli.controller import Where
from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, JobName, talk, verbatim
from holdfast.cli.tail import TICK_S, Line, Tail, logs_below, prefixed
from holdfast.errors import Error


def logs(
    name: JobName = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the output until the job has ended.")
    ] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank.")] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Only this attempt. Default: the newest.")
    ] = None,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Print the output of the workers, each line with its rank."""
    reach = reached(on, context, namespace)
    if reach is not None:
        _remote(reach, name, follow, rank, attempt, as_json)
        return
    folder = job_folder(name)
    first = _newest(folder) if attempt is None and not follow else attempt
    tail = Tail(folder, rank=rank, attempt=first)
    printed = _follow(folder, tail, as_json) if follow else _print(tail.drain(), as_json)
    tail.close()
    if not printed:
        talk(f"no output of {folder.name}")


def _remote(
    reach: Reach, name: str | None, follow: bool, rank: int | None, attempt: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    from holdfast.cli import remote_logs

    if attempt is not None:
        raise Error(
            "usage",
            "--attempt applies to jobs on this machine only",
            why="the log of a pod contains all attempts in sequence",
            help="omit --attempt",
        )
    with connected(reach) as session:
        show = remote_logs.shown(session, name, follow=follow, rank=rank)
        if not _print(show, as_json):
            talk(f"no output of {name or 'the newest job'}")


def _newest(folder: Path) -> int | None:
    return max((attempt for attempt, _, _ in logs_below(folder / "logs")), default=None)


def _follow(folder: Path, tail: Tail, as_json: bool) -> int:
    """Print until the controller is gone; the look at it comes before the last read."""
    from holdfast.drivers.records import controller_alive

    printed = 0
    while controller_alive(folder):
        printed += _print(tail.tick(), as_json)
        time.sleep(TICK_S)
    return printed + _print(tail.drain(), as_json)


def _print(lines: Iterable[Line], as_json: bool) -> int:
    printed = 0
    for line in lines:
        verbatim(_object(line) if as_json else prefixed([line]).rstrip("\n"))
        printed += 1
    return printed


def _object(line: Line) -> str:
    import json

    said = {"attempt": line.attempt, "rank": line.rank, "line": line.text}
    return json.dumps({**said, **({"pod": line.pod} if line.pod else {})})
