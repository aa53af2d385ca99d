"""`holdfast check NAME`: have the spares of a running job check their machines once more."""

from typing import TYPE_CHECKING

from holdfast.cli import question
from holdfast.cli.cluster import Reach
from holdfast.cli.locate import job_folder
from holdfast.cli.output import json_result, result, table, talk
from holdfast.cli.question import Answered
from holdfast.errors import Error, ExitStatus

if TYPE_CHECKING:
    from holdfast.messages import ChecksReply


def check_spares(name: str, reach: Reach | None, *, as_json: bool) -> None:
    """Ask, show, and exit with status 1 if a machine has failed. Raises `Error`."""
    import typer

    job, _, told = _here(name) if reach is None else _there(reach, name)
    failed = {node: why for node, why in told.found.items() if why}
    if as_json:
        spares = [{"node": node, "ok": not why, "why": why} for node, why in told.found.items()]
        json_result({"job": job, "ok": not failed, "spares": spares, "missing": told.missing})
    elif told.found:
        rows = [(n, "failed" if why else "ok", why) for n, why in sorted(told.found.items())]
        result(table(("SPARE", "RESULT", "FOUND"), rows))
    else:
        talk(f"{job} has no spare that can be asked")
    for node in told.missing:
        talk(f"{node} did not answer")
    if failed:
        talk("those that failed are replaced")
        raise typer.Exit(ExitStatus.JOB_FAILED)


def _here(name: str) -> "Answered[ChecksReply]":
    from holdfast.drivers.client import checks
    from holdfast.drivers.records import controller_alive, controller_silent

    folder = job_folder(name)
    if not controller_alive(folder):
        help_ = f"holdfast check --name {folder.name}   (this machine, and the disks of the job)"
        raise _not_running(folder.name, help_)
    try:
        return Answered(folder.name, "", checks(folder))
    except ConnectionError as error:
        raise controller_silent(folder.name) from error


def _there(reach: Reach, name: str) -> "Answered[ChecksReply]":
    from holdfast.drivers.kubernetes.published_stacks import ask_for_checks

    def ended(job: str, words: str) -> Error:
        return _not_running(job, f"holdfast why {job}{words}   (what happened last)")

    return question.ask(reach, name, ask_for_checks, ended)


def _not_running(job: str, remedy: str) -> Error:
    return Error(
        "job-not-running",
        f"no controller is running for job {job}",
        why="the controller asks the spares to check their machines",
        help=remedy,
    )
