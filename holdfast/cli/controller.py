"""A controller without a terminal: what `--detach` leaves behind, and how it is started.

It is this same program with the hidden command `controller`, in a session of its own, its talk in
`controller.log`. Whoever starts it waits until it answers or has died.
"""

import os
import subprocess
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.output import json_result, result, talk
from holdfast.errors import Error, ExitStatus

if TYPE_CHECKING:
    from holdfast.actions import Entry, Outcome
    from holdfast.controller import State


class Where(StrEnum):
    """Where the nodes of a job are."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"
    RAY = "ray"


POLL_S = 0.05
START_TIMEOUT_S = 60.0


def drive(
    folder: Annotated[Path | None, typer.Argument()] = None,
    resume: Annotated[bool, typer.Option("--resume")] = False,
    lock: Annotated[int | None, typer.Option("--lock")] = None,
    on: Annotated[Where, typer.Option("--on")] = Where.LOCAL,
) -> None:
    """Run the controller of a job that has been created, until it ends."""
    if on is Where.KUBERNETES:
        from holdfast.cli.incluster import control

        control()
        return
    from holdfast.drivers.local import resume_job, run_job
    from holdfast.drivers.records import load_job

    if folder is None:
        raise _not_for_people()
    if lock is not None:
        os.set_inheritable(lock, False)
    if resume:
        outcome = resume_job(folder, on_event=_quiet)
    else:
        outcome = run_job(load_job(folder), folder, lock, on_event=_quiet)
    raise typer.Exit(status_of_outcome(outcome))


def _not_for_people() -> Error:
    return Error(
        "usage",
        "no job is given",
        why="`holdfast run --detach` starts this command with the folder of a job; with --on "
        "kubernetes it runs in the pod of a controller",
        help="holdfast run job.yaml --detach   (or, if the controller has died: holdfast resume)",
    )


def _quiet(_entry: "Entry", _state: "State") -> None:
    """Nobody looks."""


def status_of_outcome(outcome: "Outcome") -> ExitStatus:
    """The exit status that says how a job ended."""
    match outcome.value:
        case "succeeded":
            return ExitStatus.OK
        case "failed":
            return ExitStatus.JOB_FAILED
        case "gave_up":
            return ExitStatus.GAVE_UP
        case _:
            return ExitStatus.INTERRUPTED


def detach(folder: Path, *, lock: int | None, as_json: bool) -> None:
    """Start the controller in the background and say how to reach it.

    `lock` is that of a new job, held, which it inherits; without one it resumes. Raises `Error`
    controller-start-failed if it ends before it answers.
    """
    pid = launch(folder, lock)
    name = folder.name
    if as_json:
        json_result({"job": name, "folder": str(folder), "pid": pid})
    else:
        result(name)
        talk(f"{name} runs in the background; its record is {folder}")
        talk(f"next: holdfast watch {name}   holdfast logs -f {name}   holdfast stop {name}")


def launch(folder: Path, lock: int | None) -> int:
    """The same without a word; returns the pid of the controller."""
    process = _start(folder, lock)
    if lock is not None:
        os.close(lock)
    _await(folder, process)
    return process.pid


def _start(folder: Path, lock: int | None) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-P", "-m", "holdfast.cli", "controller", str(folder)]
    flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK  # it may be a pipe by now
    log = os.open(folder / "controller.log", flags, 0o600)
    try:
        return subprocess.Popen(
            [*words, "--resume"] if lock is None else [*words, "--lock", str(lock)],
            pass_fds=() if lock is None else (lock,),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)


def _await(folder: Path, process: "subprocess.Popen[bytes]") -> None:
    """Until the controller answers, or has already done all there was to do."""
    from holdfast.drivers.records import read_address

    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        address = read_address(folder)
        if address is not None and address.pid == process.pid:
            return
        if process.poll() is not None:
            _check_end(folder, process.returncode)
            return
        time.sleep(POLL_S)
    process.kill()
    raise _failed(folder, f"it did not respond within {START_TIMEOUT_S:.0f} s")


def _check_end(folder: Path, status: int) -> None:
    """A job can be over before anybody looked; anything else is a failed start."""
    from holdfast.drivers.records import state_of

    over = status in (ExitStatus.OK, ExitStatus.JOB_FAILED, ExitStatus.GAVE_UP)
    if not over and not (status == ExitStatus.INTERRUPTED and state_of(folder).ended):
        raise _failed(folder, f"it ended with status {status}: {_last_words(folder)}")


def _last_words(folder: Path) -> str:
    text = (folder / "controller.log").read_text(errors="replace").strip()
    return text[-2000:] or "no output"


def _failed(folder: Path, why: str) -> Error:
    return Error(
        "controller-start-failed",
        f"the controller of {folder.name} did not start",
        why=why,
        help=f"holdfast doctor   (its log is {folder / 'controller.log'})",
    )
