"""`holdfast scale`: train on another number of nodes, within the bounds of the job."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.cluster import Context, Namespace, On, Reach, connected, reached
from holdfast.cli.controller import Where
from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, count, json_result, result
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.spec import Job


def scale(
    name: Annotated[str, typer.Argument(help="Name of the job.", show_default=False)],
    nodes: Annotated[int, typer.Argument(help="Number of training nodes.", show_default=False)],
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Train on more or fewer nodes, from the next step boundary on."""
    reach = reached(on, context, namespace)
    name = _remote(reach, name, nodes) if reach is not None else _local(name, nodes)
    if as_json:
        json_result({"job": name, "target": nodes})
    else:
        result(f"{name} was asked to train on {count(nodes, 'node')}")


def _local(name: str, nodes: int) -> str:
    from holdfast.drivers.client import request, status
    from holdfast.drivers.records import load_job
    from holdfast.messages import ScaleJob

    folder = job_folder(name)
    require_within(load_job(folder), nodes)
    try:
        request(folder, ScaleJob(by="holdfast scale", nodes=nodes))
    except ConnectionError as error:
        if status(folder).outcome is None:
            raise _nobody(folder.name, str(error), f"holdfast resume {folder.name}") from error
    now = status(folder)
    if now.outcome is not None or now.phase == "closing":  # nobody will do it
        why = f"it has ended ({now.outcome})" if now.outcome is not None else "it is being stopped"
        raise _nobody(folder.name, why, f"holdfast why {folder.name}")
    return folder.name


def _remote(reach: Reach, name: str, nodes: int) -> str:
    """Write the request where the controller reads it."""
    from holdfast.drivers.kubernetes.remote import look, require_managed
    from holdfast.drivers.kubernetes.remote_orders import ask_to_scale

    with connected(reach) as session:
        seen = session.do(look(session.cluster, name, session.words))
        require_managed(seen, session.words)
        assert seen.job is not None, "require_managed comes first"
        require_within(seen.job, nodes)
        if seen.outcome is not None:
            why = f"it has ended ({seen.outcome})"
            raise _nobody(name, why, "holdfast submit job.yaml --replace --on kubernetes")
        session.do(ask_to_scale(session.cluster, name, nodes), f"ConfigMap {name}-job")
    return name


def require_within(job: "Job", nodes: int) -> None:
    """Raise `Error` scale-out-of-range if the job may not have so many nodes."""
    elastic, count_ = job.elasticity, job.nodes.count
    least = elastic.min_nodes if elastic is not None else count_
    most = (elastic.max_nodes or count_) if elastic is not None else count_
    if least <= nodes <= most and elastic is not None:
        return
    given = f"elasticity allows {least} to {most} nodes"
    raise Error(
        "scale-out-of-range",
        f"{job.name} cannot train on {count(nodes, 'node')}",
        why=given if elastic is not None else "the job file has no section `elasticity`",
        help=f"holdfast scale {job.name} {most}"
        if elastic is not None and least < most
        else "set elasticity.min_nodes and elasticity.max_nodes in the job file, and start the "
        "job again",
    )


def _nobody(name: str, why: str, remedy: str) -> Error:
    return Error("scale-undelivered", f"job {name!r} cannot be scaled", why=why, help=remedy)
