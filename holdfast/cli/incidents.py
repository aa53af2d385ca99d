"""`holdfast incidents`: every fault of a job, its cause and its cost."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli import story
from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, JobName, duration, json_result, result, table, talk

if TYPE_CHECKING:
    from holdfast.status import Incident

HEADER = ("ID", "TIME", "CAUSE", "NODE", "RANK", "STEP", "LOST", "STEPS LOST", "WHAT")


def incidents(name: JobName = None, as_json: AsJson = False) -> None:
    """List the incidents of a job."""
    folder = job_folder(name)
    found = incidents_of(folder)
    if as_json:
        json_result(found)
    elif found:
        result(table(HEADER, map(row, found)))
    else:
        talk(f"{folder.name} has had no incidents")


def incidents_of(folder: Path) -> "list[Incident]":
    """All incidents with their bills, from the journal."""
    from holdfast.drivers.records import incidents as read

    return read(folder, time.time())


def row(incident: "Incident") -> tuple[str, ...]:
    """One incident as the cells of a table."""
    return (
        str(incident.id),
        story.clock(incident.started_at),
        incident.cause,
        incident.node,
        "" if incident.rank is None else str(incident.rank),
        "" if incident.step is None else str(incident.step),
        duration(incident.lost_s) if incident.ended_at else "open",
        str(incident.steps_lost),
        incident.summary,
    )
