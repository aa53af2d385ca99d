"""`holdfast incidents`: every fault of a job, its cause and its cost."""

from typing import TYPE_CHECKING

from holdfast.cli import story
from holdfast.cli.cluster import Context, Namespace, On, reached
from holdfast.cli.controller import Where
from holdfast.cli.output import AsJson, JobName, duration, json_result, result, table, talk
from holdfast.cli.source import job_source, tell

if TYPE_CHECKING:
    from holdfast.status import Incident

HEADER = ("ID", "TIME", "CAUSE", "NODE", "RANK", "STEP", "LOST", "STEPS LOST", "WHAT")


def incidents(
    name: JobName = None,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """List the incidents and notes of a job."""
    with job_source(name, reached(on, context, namespace)) as source:
        found = source.incidents()
        _show(found, source.name, as_json)
        if not as_json and (noted := story.notes(source.status())):
            result("\nnotes:\n" + "\n".join(f"  {text}" for text in noted))
        tell(source.troubles())


def _show(found: "list[Incident]", job: str, as_json: bool) -> None:
    if as_json:
        json_result(found)
    elif found:
        result(table(HEADER, map(row, found)))
    else:
        talk(f"{job} has had no incidents")


def nodes(incident: "Incident") -> str:
    """The node, and how many others; `holdfast why` names them all."""
    others = len(set(incident.nodes) - {incident.node})
    return f"{incident.node} +{others}" if others else incident.node


def row(incident: "Incident") -> tuple[str, ...]:
    """One incident as the cells of a table."""
    return (
        str(incident.id),
        story.began(incident),
        incident.cause,
        nodes(incident),
        "" if incident.rank is None else str(incident.rank),
        "" if incident.step is None else str(incident.step),
        duration(incident.lost_s) if incident.ended_at else "open",
        str(incident.steps_lost),
        incident.summary,
    )
