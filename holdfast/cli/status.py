"""`holdfast status`: how a job stands now."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import listing, story
from holdfast.cli.cluster import Context, Namespace, On, reached
from holdfast.cli.controller import Where
from holdfast.cli.locate import all_jobs
from holdfast.cli.output import AsJson, JobName, json_result, result, table
from holdfast.cli.source import job_source, marked, tell

if TYPE_CHECKING:
    from holdfast.status import JobStatus


def status(
    name: JobName = None,
    every: Annotated[bool, typer.Option("--all", help="One line for each job.")] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Show the status of a job."""
    reach = reached(on, context, namespace)
    if every:
        _all(as_json) if reach is None else listing.remote(reach, False, as_json)
        return
    with job_source(name, reach) as source:
        found, troubles = source.status(), source.troubles()
        if as_json:
            json_result(marked(found, troubles))
        else:
            result(story.labelled(story.status_lines(found, source.words)))
        tell(troubles)


def status_of(folder: Path) -> "JobStatus":
    """The status as the controller tells it, else as the journal does."""
    from holdfast.drivers.client import status as ask

    return ask(folder)


def _all(as_json: bool) -> None:
    found = [(folder.name, listing.looked_at(folder)) for folder in all_jobs()]
    if as_json:
        json_result([status for _, status in found if status is not None])
        return
    rows = [
        (s.job, s.phase, str(s.attempt), "" if s.step is None else str(s.step), story.accounts(s))
        if s is not None
        else (job, listing.UNREADABLE, "", "", "")
        for job, s in found
    ]
    result(table(("JOB", "PHASE", "ATTEMPT", "STEP", "ETTR"), rows))
