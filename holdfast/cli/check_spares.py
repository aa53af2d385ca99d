"""`holdfast check NAME`: have the spares of a running job check their machines once more."""

from holdfast.cli.locate import job_folder
from holdfast.cli.output import json_result, result, table, talk
from holdfast.errors import Error, ExitStatus


def check_spares(name: str, *, as_json: bool) -> None:
    """Ask, show, and exit with status 1 if a machine has failed. Raises `Error`."""
    import typer

    from holdfast.drivers.client import checks as ask
    from holdfast.drivers.records import controller_alive, controller_silent

    folder = job_folder(name)
    if not controller_alive(folder):
        raise Error(
            "job-not-running",
            f"no controller is running for job {folder.name}",
            why="the controller asks the spares to check their machines",
            help=f"holdfast check --name {folder.name}   (this machine, and the disks of the job)",
        )
    try:
        told = ask(folder)
    except ConnectionError as error:
        raise controller_silent(folder.name) from error
    failed = {node: why for node, why in told.found.items() if why}
    if as_json:
        spares = [{"node": node, "ok": not why, "why": why} for node, why in told.found.items()]
        body = {"job": folder.name, "ok": not failed, "spares": spares, "missing": told.missing}
        json_result(body)
    elif told.found:
        rows = [(n, "failed" if why else "ok", why) for n, why in sorted(told.found.items())]
        result(table(("SPARE", "RESULT", "FOUND"), rows))
    else:
        talk(f"{folder.name} has no spare that can be asked")
    for node in told.missing:
        talk(f"{node} did not answer")
    if failed:
        talk("those that failed are replaced")
        raise typer.Exit(ExitStatus.JOB_FAILED)
