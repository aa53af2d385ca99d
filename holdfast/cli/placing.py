"""A job file with `clusters`: submit it to the first of them that admits it, or say which would.

Placing is the federation's work, so `holdfast federate` goes on with what `submit` has begun, and
`run` is both. A `--context` names one cluster, which makes it a plain submission.
"""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from holdfast.cli import rehearsal
from holdfast.cli.cluster import Reach, Session, connected
from holdfast.cli.federate import STATUSES, connect, told
from holdfast.cli.order import DryRun, Order
from holdfast.cli.output import json_result, result, talk
from holdfast.errors import Error, ExitStatus

if TYPE_CHECKING:
    from holdfast.drivers.kubernetes.manifests.request import Request
    from holdfast.operator.federation.decide import FederationState
    from holdfast.operator.federation.run import Federation
    from holdfast.spec import Job
    from holdfast.spec.clusters import ClusterChoice


def hand_over(request: "Request", file: Path, order: Order) -> None:
    """Submit the job as ordered to the first cluster that admits it. Raises `Error`."""
    from holdfast.operator.federation.run import places_of

    job = _job(request)
    places_of(job)
    match order.dry:
        case DryRun.CLIENT:
            rehearsal.print_manifests(request, order.as_json)
            talk(f"--dry-run server queries the clusters: {_names(job)}")
        case DryRun.SERVER:
            _prospects(job, request, order)
        case None:
            _place(job, request, file, order)


def _job(request: "Request") -> "Job":
    """Each cluster with the namespace that options or the file name, where it has none itself."""
    job, namespace = request.job, request.namespace
    named = [
        choice.model_copy(update={"namespace": choice.namespace or namespace})
        for choice in job.clusters
    ]
    return job.model_copy(update={"clusters": tuple(named)})


def _names(job: "Job") -> str:
    return ", ".join(choice.context for choice in job.clusters)


# ── in earnest ────────────────────────────────────────────────────────────────────────────────


def _place(job: "Job", request: "Request", file: Path, order: Order) -> None:
    import asyncio

    from holdfast.drivers.records import jobs_home
    from holdfast.operator.federation.run import Federation, locked

    folder = jobs_home().parent / "federations" / job.name
    with locked(folder):
        made = Federation(job, folder, connect, talk, code=request.code, strict=True)
        state = asyncio.run(_run(made, order))
    if order.follow:
        if order.as_json:
            json_result(told(state, job))
        raise typer.Exit(STATUSES.get(state.outcome or "", ExitStatus.INTERRUPTED))
    _tell(job, request, state, file, order)


async def _run(made: "Federation", order: Order) -> "FederationState":
    """To the end, or until it is placed. Only who follows a job stops it by a signal."""
    import asyncio

    if order.follow:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, made.ask_to_stop)
    try:
        await made.begin(replace=order.replace)
    except Error:
        await made.close()
        raise
    return await made.run(placed_only=not order.follow)


def _tell(
    job: "Job", request: "Request", state: "FederationState", file: Path, order: Order
) -> None:
    """Where it runs, and what to do about it there."""
    choice = _taker(job, state)
    if order.as_json:
        said = {"job": job.name, "context": choice.context, "namespace": choice.namespace}
        json_result({**said, "engine": request.engine})
        return
    result(job.name)
    words = Reach(choice.context, choice.namespace).words
    talk(f"{job.name}: {choice.context} runs it, engine {request.engine}")
    talk(f"next: holdfast watch {job.name} --on kubernetes{words}")
    talk(f"      holdfast federate {file}   (moves it if {choice.context} is lost)")


def _taker(job: "Job", state: "FederationState") -> "ClusterChoice":
    from holdfast.operator.federation.decide import Role

    roles = zip(job.clusters, state.standings, strict=True)
    return next((choice for choice, one in roles if one.role is Role.RUNS), job.clusters[0])


# ── as a rehearsal ────────────────────────────────────────────────────────────────────────────


class Prospect(NamedTuple):
    """What one cluster would do with the job."""

    context: str
    takes: bool
    why: str


def _prospects(job: "Job", request: "Request", order: Order) -> None:
    """Ask all of them; nothing is made. Raises `Error` clusters-refuse if none would take it."""
    found = [_prospect(choice, job, request, order) for choice in job.clusters]
    taker = next((one.context for one in found if one.takes), None)
    if order.as_json:
        json_result({"takes": taker, "clusters": [one._asdict() for one in found]})
    else:
        for one in found:
            result(f"{_word(one, taker):<10} {one.context}   ({one.why})")
    if taker is None:
        raise _none(job, found)


def _word(one: Prospect, taker: str | None) -> str:
    if not one.takes:
        return "not"
    return "accepts it" if one.context == taker else "not tried"


def _none(job: "Job", found: Sequence[Prospect]) -> Error:
    return Error(
        "clusters-refuse",
        f"no cluster can accept job {job.name} now",
        why="; ".join(f"{one.context}: {one.why}" for one in found),
        help="if only machines are missing, holdfast submit waits up to each cluster's max_wait_s "
        "for them",
    )


def _prospect(choice: "ClusterChoice", job: "Job", request: "Request", order: Order) -> Prospect:
    try:
        with connected(Reach(choice.context, choice.namespace)) as session:
            against = _against(session, choice, job, request, order)
    except Error as error:
        against = f"{error.what}: {error.why}"
    fits = "has capacity for all nodes, and accepts all objects"
    return Prospect(choice.context, against is None, against or fits)


def _against(
    session: Session, choice: "ClusterChoice", job: "Job", request: "Request", order: Order
) -> str | None:
    """Why it would not take the job now; what would be refused for good comes first."""
    from holdfast.drivers.kubernetes.doctor import Patient
    from holdfast.drivers.kubernetes.doctor_room import machines, quotas
    from holdfast.drivers.kubernetes.doctor_visit import nearest, server_version
    from holdfast.drivers.kubernetes.manifests.render import requested
    from holdfast.drivers.kubernetes.submit import rehearse, standing

    cluster, do = session.cluster, session.do
    server = do(server_version(cluster))
    alone = job.model_copy(update={"clusters": ()})
    here = requested(alone, namespace=cluster.namespace, version=nearest(server), code=request.code)
    there = do(standing(cluster, here))
    if there.running or (there.exists and not order.replace):
        return (
            f"a job of this name {'is running' if there.running else 'has ended'} in this cluster"
        )
    refused = rehearsal.refusals(do(rehearse(cluster, here)), cluster.namespace, session.words)
    if refused:
        return f"{refused[0].what}: {refused[0].why}"
    patient = Patient(cluster, here, given=True, server=server, words=session.words)
    checks = [*do(quotas(patient)), *do(machines(patient))]
    short = [check.found for check in checks if not check.ok]
    return f"{short[0]}; {_patience(choice)}" if short else None


def _patience(choice: "ClusterChoice") -> str:
    if choice.max_wait_s is None:
        return "the wait would have no limit"
    return f"the wait would time out after {choice.max_wait_s} s"
