"""`holdfast watch`: a live view on a terminal, a line at each change where there is none."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli import story
from holdfast.cli.incidents import HEADER, incidents_of, row
from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, JobName, is_terminal, result, table
from holdfast.cli.status import status_of

if TYPE_CHECKING:
    from holdfast.status import JobStatus

REFRESH_S = 0.5
LINE_S = 10.0  # where there is no terminal: at least this long between two lines without news
INCIDENTS_SHOWN = 8


def watch(name: JobName = None, as_json: AsJson = False) -> None:
    """Watch a job until it ends."""
    folder = job_folder(name)
    if is_terminal(sys.stdout) and not as_json:
        _live(folder)
    else:
        _lines(folder, as_json)


def _live(folder: Path) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            status = status_of(folder)
            live.update(Text(_page(folder, status)), refresh=True)
            if status.controller != "alive":
                return
            time.sleep(REFRESH_S)


def _page(folder: Path, status: "JobStatus") -> str:
    """Status and the newest incidents."""
    text = story.labelled(story.status_lines(status))
    newest = incidents_of(folder)[-INCIDENTS_SHOWN:]
    return f"{text}\n\n{table(HEADER, map(row, newest))}" if newest else text


def _lines(folder: Path, as_json: bool) -> None:
    told: tuple[object, ...] | None = None
    told_at = 0.0
    while True:
        status = status_of(folder)
        if _news(status) != told or time.monotonic() - told_at >= LINE_S:
            told, told_at = _news(status), time.monotonic()
            result(_json(status) if as_json else story.one_line(status))
        if status.controller != "alive":
            return
        time.sleep(REFRESH_S)


def _news(status: "JobStatus") -> tuple[object, ...]:
    nodes = tuple((node.name, node.state, node.rank) for node in status.nodes)
    return status.phase, status.attempt, status.incidents_count, status.controller, nodes


def _json(status: "JobStatus") -> str:
    import msgspec

    return msgspec.json.encode(status).decode()
