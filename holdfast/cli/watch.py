"""`holdfast watch`: a live view on a terminal, a line at each change where there is none."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.cli import story
from holdfast.cli.cluster import Context, Namespace, On, reached
from holdfast.cli.controller import Where
from holdfast.cli.live import LiveView
from holdfast.cli.output import (
    AsJson,
    JobName,
    is_terminal,
    json_text,
    printable,
    result,
    verbatim,
)
from holdfast.cli.source import Source, job_source, tell

if TYPE_CHECKING:
    from holdfast.status import JobStatus

OVER = ("ended", "away")  # nobody will have news
LINE_S = 10.0  # where there is no terminal: at least this long between two lines without news


def watch(
    name: JobName = None,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Watch a job until it ends."""
    with job_source(name, reached(on, context, namespace)) as source:
        follow(source, as_json=as_json)
        tell(source.troubles())


def follow(
    source: Source, *, as_json: bool, tick: Callable[["JobStatus"], object] = lambda _: None
) -> "JobStatus":
    """Show a job until it ends, the last status; `tick` is called at each look."""
    if is_terminal(sys.stdout) and not as_json:
        return _live(source, tick)
    return _lines(source, as_json, tick)


def _live(source: Source, tick: Callable[["JobStatus"], object]) -> "JobStatus":
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console, view = Console(), LiveView(source.words)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            status = source.status()
            live.update(Text(printable(_page(view, source, status), sys.stdout)), refresh=True)
            tick(status)
            if status.controller in OVER:
                return status
            time.sleep(source.refresh_s)


def _page(view: LiveView, source: Source, status: "JobStatus") -> str:
    return view.page(status, source.incidents(), source.course())


def _lines(source: Source, as_json: bool, tick: Callable[["JobStatus"], object]) -> "JobStatus":
    told: tuple[object, ...] | None = None
    told_at = 0.0
    while True:
        status = source.status()
        if _news(status) != told or time.monotonic() - told_at >= LINE_S:
            told, told_at = _news(status), time.monotonic()
            verbatim(json_text(status)) if as_json else result(story.one_line(status, source.words))
        tick(status)
        if status.controller in OVER:
            return status
        time.sleep(source.refresh_s)


def _news(status: "JobStatus") -> tuple[object, ...]:
    nodes = tuple((node.name, node.state, node.rank) for node in status.nodes)
    waits = status.waiting_for
    return status.phase, status.attempt, status.incidents_count, status.controller, waits, nodes
