"""`holdfast top`: the jobs that run, one line each, kept up to date on a terminal.

What `holdfast list` looks at, looked at again and again; where there is no terminal, once.
"""

import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from holdfast.cli import story
from holdfast.cli.cluster import Context, Namespace, On, connected, reached
from holdfast.cli.controller import Where
from holdfast.cli.listing import looked_at, short
from holdfast.cli.locate import all_jobs
from holdfast.cli.output import AsJson, is_terminal, json_result, printable, result, table
from holdfast.cli.trend import can_draw, filled

if TYPE_CHECKING:
    from holdfast.cli.cluster import Session
    from holdfast.status import JobStatus

HEADER = ("JOB", "PHASE", "NODES", "STEP", "PROGRESS", "LEFT", "LOSS", "STEPS/S", "ETTR",
          "INCIDENTS", "WAITING FOR")  # fmt: skip
LOCAL_S = 1.0
REMOTE_S = 5.0  # a whole cluster is listed each time
BAR_CHARS = 12


class Shown(NamedTuple):
    """One job."""

    namespace: str | None
    status: "JobStatus"

    @property
    def over(self) -> bool:
        """Nobody will have news of it."""
        return self.status.outcome is not None


def top(
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")
    ] = False,
    ended: Annotated[bool, typer.Option("--ended", help="Jobs that have ended, too.")] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Show the jobs that run, with progress, speed and ETTR; live on a terminal."""
    reach = reached(on, context, namespace)
    live = is_terminal(sys.stdout) and not as_json

    def show(look: Callable[[], Iterable[Shown]], every_s: float) -> None:
        def found() -> list[Shown]:
            return [one for one in look() if ended or not one.over]

        if live:
            _live(found, every_s)
        elif as_json:
            json_result([{"namespace": one.namespace, "status": one.status} for one in found()])
        else:
            result(page(found()))

    if reach is None:
        show(_local, LOCAL_S)
        return
    with connected(reach) as session:
        show(lambda: _listed(session, everywhere), REMOTE_S)


def _local() -> Iterable[Shown]:
    for folder in all_jobs():
        status = looked_at(folder)
        if status is not None:
            yield Shown(None, status)


def _listed(session: "Session", everywhere: bool) -> Iterable[Shown]:
    """Jobs with a record; one that has none yet, or runs in plain mode, is in `holdfast list`."""
    from holdfast.drivers.kubernetes.listing import jobs

    found = session.do(jobs(session.cluster, "" if everywhere else None), "jobs")
    return [Shown(one.namespace, one.status) for one in found if one.status is not None]


def _live(found: Callable[[], list[Shown]], every_s: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False, screen=True) as live:
        while True:
            now = story.clock(time.time())
            text = f"{now}   every {every_s:g} s, Ctrl-C ends\n\n{page(found())}"
            live.update(Text(printable(text, sys.stdout)), refresh=True)
            time.sleep(every_s)


def page(jobs: list[Shown]) -> str:
    """One line for each job, those that wait for something first."""
    if not jobs:
        return "no job is running   (holdfast list shows all)"
    spaces = {one.namespace for one in jobs}
    several = len(spaces) > 1
    rows = [
        ((one.namespace or "",) if several else ()) + _row(one.status)
        for one in sorted(jobs, key=_urgency)
    ]
    return table(("NAMESPACE", *HEADER) if several else HEADER, rows)


def _urgency(one: Shown) -> tuple[bool, bool, float]:
    return one.over, story.waits_for(one.status) is None, -one.status.started_at


def _row(status: "JobStatus") -> tuple[str, ...]:
    step, total, pace_s = status.step, status.steps_total, status.step_time_s
    running = status.outcome is None
    return (
        status.job,
        story.headline(status).partition(",")[0] if running else str(status.outcome),
        str(status.training_count or len(status.nodes)) if running else "",
        "" if step is None else str(step),
        _progress(step / total) if step is not None and total else "",
        story.time_left(status).partition(" left")[0] if running else "",
        _loss(status),
        f"{1 / pace_s:.3g}" if pace_s and running else "",
        story.share(status.ettr),
        str(status.incidents_count),
        short(story.waits_for(status)),
    )


def _progress(share: float) -> str:
    bar = f"{filled(share, BAR_CHARS)} " if can_draw() else ""
    return f"{bar}{share * 100:.0f} %"


def _loss(status: "JobStatus") -> str:
    return status.loss_is or ("" if status.loss is None else f"{status.loss:.4g}")
