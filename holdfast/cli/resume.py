"""`holdfast resume`: go on with a job whose controller died."""

from typing import Annotated

import typer

from holdfast.cli import controller
from holdfast.cli.cluster import Context, Namespace, On, Reach, connected, reached
from holdfast.cli.controller import Where
from holdfast.cli.foreground import run_shown
from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, JobName, json_result, result, talk
from holdfast.cli.status import status_of


def resume(
    name: JobName = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave it running, return at once.")
    ] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a job whose controller died; its workers have trained on meanwhile.

    On Kubernetes, where a lost controller comes back by itself: with a job that is suspended, or
    whose controller was scaled down.
    """
    reach = reached(on, context, namespace)
    if reach is not None:
        _remote(reach, name, as_json)
        return
    from holdfast.drivers.limits import require_limits
    from holdfast.drivers.local import require_unended, resume_job
    from holdfast.drivers.records import already_running, controller_alive, load_job

    folder = job_folder(name)
    job = load_job(folder)
    if controller_alive(folder):
        raise already_running(job.name)
    require_limits(job)
    if detach:
        require_unended(folder)
        controller.detach(folder, lock=None, as_json=as_json)
        return
    if status_of(folder).outcome is None:
        talk(f"{job.name}: a new controller takes over; record in {folder}")
    status = run_shown(
        job, folder, lambda hear: resume_job(folder, on_event=hear), as_json=as_json, resumed=True
    )
    raise typer.Exit(status)


def _remote(reach: Reach, name: str | None, as_json: bool) -> None:
    from holdfast.drivers.kubernetes import remote_orders
    from holdfast.drivers.kubernetes.remote import look, newest, require_managed

    with connected(reach) as session:
        cluster, words = session.cluster, session.words
        job = name or session.do(newest(cluster, words))
        seen = session.do(look(cluster, job, words))
        require_managed(seen, words)
        done = session.do(remote_orders.resume(cluster, seen, words), f"job {job}")
    if as_json:
        json_result({"job": job, "done": done})
    else:
        result(f"{job}: {'; '.join(done) or 'nothing holds it back'}")
