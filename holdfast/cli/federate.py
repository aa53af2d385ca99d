"""`holdfast federate`: run a job in the first of several clusters that admits it, and keep it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.output import AsJson, json_result, talk
from holdfast.errors import ExitStatus

if TYPE_CHECKING:
    from holdfast.drivers.kubernetes.cluster import Cluster
    from holdfast.operator.federation.decide import FederationState
    from holdfast.spec import Job

STATUSES = {
    "succeeded": ExitStatus.OK,
    "failed": ExitStatus.JOB_FAILED,
    "gave_up": ExitStatus.GAVE_UP,
}


def federate(
    file: Annotated[Path, typer.Argument(help="The job file.", show_default=False)],
    place: Annotated[
        bool, typer.Option("--place", help="Return as soon as a cluster runs the job.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a job in the first of its clusters that admits it; move it if that cluster is lost.

    Ctrl-C stops watching, not the job; run the same command again to continue.
    """
    import asyncio

    from holdfast.cli.render import code_of
    from holdfast.drivers.kubernetes.manifests.checks import require
    from holdfast.drivers.kubernetes.manifests.render import requested
    from holdfast.drivers.records import jobs_home
    from holdfast.operator.federation.run import Federation, locked, places_of
    from holdfast.spec.load import job_as_written

    job = job_as_written(file)
    places_of(job)
    require(requested(job, namespace="any"))
    folder = jobs_home().parent / "federations" / job.name
    with locked(folder):
        made = Federation(job, folder, connect, talk, code=code_of(file, job.code))
        state = asyncio.run(made.run(placed_only=place))
    if as_json:
        json_result(told(state, job))
    raise typer.Exit(STATUSES.get(state.outcome or "succeeded", ExitStatus.INTERRUPTED))


async def connect(context: str, namespace: str | None) -> "Cluster":
    """A client for one of the clusters. Raises `Error`."""
    from holdfast.drivers.kubernetes.api import opened

    return await opened(context, namespace)


def told(state: "FederationState", job: "Job") -> dict[str, object]:
    """How the job stands in each cluster, as JSON."""
    clusters = [
        {"context": choice.context, "role": standing.role, "since": standing.since}
        for choice, standing in zip(job.clusters, state.standings, strict=True)
    ]
    return {"outcome": state.outcome, "term": state.term, "clusters": clusters}
