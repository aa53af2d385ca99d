"""`holdfast resume`: go on with a job whose controller died."""

from typing import Annotated

import typer

from holdfast.cli import controller
from holdfast.cli.foreground import run_shown
from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, JobName, talk
from holdfast.cli.status import status_of


def resume(
    name: JobName = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave it running, return at once.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a job whose controller died; its workers have trained on meanwhile."""
    from holdfast.drivers.local import resume_job
    from holdfast.drivers.records import already_running, controller_alive, load_job

    folder = job_folder(name)
    job = load_job(folder)
    if controller_alive(folder):
        raise already_running(job.name)
    if detach:
        controller.detach(folder, resume=True, as_json=as_json)
        return
    if status_of(folder).outcome is None:
        talk(f"{job.name}: a new controller takes over; record in {folder}")
    status = run_shown(
        job, folder, lambda hear: resume_job(folder, on_event=hear), as_json=as_json, resumed=True
    )
    raise typer.Exit(status)
