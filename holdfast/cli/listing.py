"""`holdfast list`: all jobs of this machine, of a namespace, or of a cluster."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import story
from holdfast.cli.cluster import Context, Namespace, On, Reach, connected, reached
from holdfast.cli.controller import Where
from holdfast.cli.locate import all_jobs
from holdfast.cli.output import AsJson, duration, json_result, result, table, talk
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.drivers.kubernetes.listing import ListedJob
    from holdfast.status import JobStatus

HEADER = ("JOB", "PHASE", "NODES", "ATTEMPT", "STEP", "ETTR", "AGE", "WAITING FOR")
WAITING_CHARS = 80
UNREADABLE = "unreadable"


def list_jobs(
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")
    ] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """List the jobs of this machine, or of a cluster, the newest first."""
    reach = reached(on, context, namespace)
    if reach is None:
        _local(as_json)
    else:
        remote(reach, everywhere, as_json)


def _local(as_json: bool) -> None:
    found = [(folder.name, looked_at(folder)) for folder in all_jobs()]
    if as_json:
        json_result([{"namespace": None, **_fields(job, one)} for job, one in found])
    elif found:
        now = time.time()
        result(table(HEADER, (_local_row(job, one, now) for job, one in found)))
    else:
        talk("no job has been run on this machine")


def looked_at(folder: Path) -> "JobStatus | None":
    """How a job stands; None if that cannot be found out, which is told and hinders no other."""
    from holdfast.drivers.client import status
    from holdfast.files import unusable

    try:
        return status(folder)
    except (Error, OSError) as error:
        told = error if isinstance(error, Error) else unusable(error)
        talk(f"{folder.name} cannot be read: {told}")
        return None


def _local_row(job: str, status: "JobStatus | None", now: float) -> tuple[str, ...]:
    if status is None:
        return (job, UNREADABLE, *[""] * (len(HEADER) - 2))
    return _row(status, str(len(status.nodes)), now)


def remote(reach: Reach, everywhere: bool, as_json: bool) -> None:
    """The jobs of a cluster."""
    from holdfast.drivers.kubernetes.listing import jobs

    with connected(reach) as session:
        found = session.do(jobs(session.cluster, "" if everywhere else None), "jobs")
        where = session.cluster.namespace
    if as_json:
        json_result([{"namespace": one.namespace, **_listed_fields(one)} for one in found])
    elif found:
        now = time.time()
        rows = [(one.namespace, *_listed_row(one, now)) for one in found]
        result(table(("NAMESPACE", *HEADER), rows))
    else:
        talk("no jobs in the cluster" if everywhere else f"no jobs in namespace {where}")


def _fields(job: str, status: "JobStatus | None") -> dict[str, object]:
    phase = status.phase if status is not None else UNREADABLE
    waiting = status.waiting_for if status is not None else None
    return {"job": job, "phase": phase, "waiting_for": waiting, "status": status}


def _listed_fields(one: "ListedJob") -> dict[str, object]:
    said = {"phase": one.phase, "waiting_for": one.waiting_for, "managed": one.managed}
    return {**_fields(one.job, one.status), **said, "submitted_at": one.submitted_at}


def _listed_row(one: "ListedJob", now: float) -> tuple[str, ...]:
    up = sum(pod.running for pod in one.nodes)
    nodes = f"{up}/{len(one.nodes)}"
    if one.status is not None:
        return _row(one.status, nodes, now)
    age = duration(max(0.0, now - one.submitted_at)) if one.submitted_at else ""
    return (one.job, one.phase, nodes, "", "", "", age, short(one.waiting_for))


def _row(status: "JobStatus", nodes: str, now: float) -> tuple[str, ...]:
    return (
        status.job,
        status.phase.replace("_", " "),
        nodes if status.outcome is None else "",
        str(status.attempt),
        "" if status.step is None else str(status.step),
        story.share(status.ettr),
        duration(max(0.0, now - status.started_at)),
        short(story.waits_for(status)),
    )


def short(text: str | None) -> str:
    """On one line, and cut where a column would get too wide."""
    line = " ".join((text or "").split())
    return line if len(line) <= WAITING_CHARS else f"{line[: WAITING_CHARS - 3]}..."
