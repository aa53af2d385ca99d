"""`holdfast resume`: continue a job whose controller died."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import controller
from holdfast.cli.cluster import Context, Namespace, On, Reach, connected, reached
from holdfast.cli.controller import Where
from holdfast.cli.foreground import run_shown
from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, JobName, json_result, result, talk
from holdfast.cli.status import status_of

if TYPE_CHECKING:
    from holdfast.actions import Entry, Outcome
    from holdfast.controller import State


def resume(
    name: JobName = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Run in the background and return immediately.")
    ] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Resume a job whose controller died; its workers kept training in the meantime.

    On Kubernetes, where a lost controller restarts automatically: resume a job that is suspended,
    or whose controller was scaled down.
    """
    reach = reached(on, context, namespace)
    if reach is not None:
        _remote(reach, name, as_json)
        return
    from holdfast.drivers.limits import require_limits
    from holdfast.drivers.local import require_unended, resume_job
    from holdfast.drivers.records import already_running, controller_alive, load_job
    from holdfast.spec.files import require_texts

    folder = job_folder(name)
    job = load_job(folder)
    if controller_alive(folder):
        raise already_running(job.name)
    require_limits(job)
    require_texts(job)
    if detach:
        require_unended(folder)
        controller.detach(folder, lock=None, as_json=as_json)
        return
    news = f"{job.name}: a new controller takes over; record in {folder}"
    said = [news] if status_of(folder).outcome is None else []

    def run(hear: "Callable[[Entry, State], None]") -> "Outcome":
        def observe(entry: "Entry", state: "State") -> None:
            while said:  # not before: until its first decision it may still be refused
                talk(said.pop())
            hear(entry, state)

        return resume_job(folder, on_event=observe)

    raise typer.Exit(run_shown(job, folder, run, as_json=as_json, resumed=True))


def _remote(reach: Reach, name: str | None, as_json: bool) -> None:
    from holdfast.drivers.kubernetes import resuming
    from holdfast.drivers.kubernetes.remote import look, newest, require_managed

    with connected(reach) as session:
        cluster, words = session.cluster, session.words
        job = name or session.do(newest(cluster, words))
        seen = session.do(look(cluster, job, words))
        require_managed(seen, words)
        done = session.do(resuming.resume(cluster, seen, words), f"job {job}")
    if as_json:
        json_result({"job": job, "done": done})
    else:
        running = "not suspended, and its controller is running"
        result(f"{job}: {'; '.join(done) or running}")
