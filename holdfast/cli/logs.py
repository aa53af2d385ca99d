"""`holdfast logs`: what the workers printed."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, JobName, result, talk
from holdfast.cli.tail import TICK_S, Line, Tail, logs_below, prefixed


def logs(
    name: JobName = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")
    ] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank.")] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Only this attempt. Default: the newest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the output of the workers, each line with its rank."""
    folder = job_folder(name)
    first = _newest(folder) if attempt is None and not follow else attempt
    tail = Tail(folder, rank=rank, attempt=first)
    printed = _follow(folder, tail, as_json) if follow else _print(tail.drain(), as_json)
    tail.close()
    if not printed:
        talk(f"no output of {folder.name}")


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
        result(_object(line) if as_json else prefixed([line]).rstrip("\n"))
        printed += 1
    return printed


def _object(line: Line) -> str:
    import json

    return json.dumps({"attempt": line.attempt, "rank": line.rank, "line": line.text})
