"""`holdfast stop`: end a job in an orderly way, or clean up after one whose controller is gone."""

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.cluster import Context, Namespace, On, Reach, connected, reached
from holdfast.cli.controller import Where
from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, JobName, count, json_result, result, talk
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.drivers.local import Abandoned
    from holdfast.spec import Job

POLL_S = 0.1
DYING_S = 10.0  # a killed controller gives back gigabytes before its lock is free


def stop(
    name: JobName = None,
    now: Annotated[bool, typer.Option("--now", help="Immediately, without grace period.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until no process of the job is running.")] = True,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="End the job's record even if its Ray cluster is gone: nodes that still run there "
            "are not stopped.",
        ),
    ] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Stop a job, or a sweep with all its trials."""
    reach = reached(on, context, namespace)
    if reach is not None:
        if force:
            raise _for_ray(name or "NAME")
        _remote(reach, name, now, wait, as_json)
        return
    if name is not None and (sweep := _sweep(name)) is not None:
        _stop_sweep(sweep, force, as_json)
        return
    folder = job_folder(name)
    outcome = _outcome(folder)
    ended = stop_job(folder, now, force)
    while ended is None and wait and not _stopped(folder):
        ended = stop_job(folder, now, force)
    asked, killed = ended is None, ended.killed if ended else 0
    unreached = ended.unreached if ended else ""
    if as_json:
        _answer(folder.name, asked=asked, killed=killed, unreached=unreached)
    elif unreached:
        result(f"{folder.name} is recorded as stopped; whether its nodes still run is not known")
        talk(f"not reached: {unreached}")
    else:
        result(_told(folder.name, asked=asked, waited=wait, killed=killed, outcome=outcome))


def _for_ray(name: str) -> Error:
    return Error(
        "usage",
        "--force applies to jobs on Ray only",
        why="a job in a cluster without a running controller is deleted, not stopped",
        help=f"holdfast delete --force {name} --on kubernetes",
    )


def _outcome(folder: Path) -> str | None:
    """How it has ended, if it has and its record can be read."""
    from holdfast.drivers.records import state_of

    with contextlib.suppress(Error, OSError):
        return state_of(folder).outcome
    return None


def stop_job(folder: Path, now: bool, force: bool = False) -> "Abandoned | None":
    """Ask the job's controller to stop it, or do it if there is none: then what that came to. One
    that has just taken the job over is asked."""
    from holdfast.drivers.local import stop_abandoned

    by = "holdfast stop --force" if force else "holdfast stop"
    while not ask_to_stop(folder, now):
        try:
            return stop_abandoned(folder, by, force=force)
        except Error as error:
            if error.slug != "job-running":
                raise
    return None


def _sweep(name: str) -> "Job | None":
    """The sweep of this name, unless a job has it."""
    from holdfast.drivers import records, sweeps

    return None if records.job_dir(name).exists() else sweeps.found(name)


def _stop_sweep(job: "Job", force: bool, as_json: bool) -> None:
    from holdfast.cli.sweep_run import stop_sweep

    stopped = stop_sweep(job, force)
    if as_json:
        _answer(job.name, asked=stopped > 0)
    else:
        result(f"{job.name} has stopped; {count(stopped, 'trial was', 'trials were')} running")


def _remote(reach: Reach, name: str | None, now: bool, wait: bool, as_json: bool) -> None:
    """Write the request where the controller reads it."""
    from holdfast.drivers.kubernetes.remote import look, newest, require_managed
    from holdfast.drivers.kubernetes.remote_orders import ask_to_stop, until_ended

    with connected(reach) as session:
        cluster, words = session.cluster, session.words
        job = name or session.do(newest(cluster, words))
        seen = session.do(look(cluster, job, words))
        require_managed(seen, words)
        asked = seen.outcome is None
        if asked:
            session.do(ask_to_stop(cluster, job, now=now), f"ConfigMap {job}-job")
        if asked and wait and seen.kept:
            talk(f"asked {job} to stop; waiting until it has (Ctrl-C only stops waiting)")
            seen = session.do(until_ended(cluster, job, words))
    if as_json:
        _answer(job, asked=asked)
        return
    result(_told(job, asked=asked, waited=seen.outcome is not None, killed=0))
    if seen.outcome is None and not seen.kept:
        talk(
            "its controller is not running, so the stop request is pending: holdfast resume "
            f"{job} --on kubernetes{words}   (or: holdfast delete --force {job} --on "
            f"kubernetes{words})"
        )


def ask_to_stop(folder: Path, now: bool) -> bool:
    """Whether there was a controller that took the request.

    One that dies refuses calls a moment before its lock is free. The nodes of one that stays silent
    are not for us to end: raises `Error` controller-silent.
    """
    from holdfast.drivers.records import controller_alive, controller_silent

    give_up_at = time.monotonic() + DYING_S
    while controller_alive(folder):
        if _ask(folder, now):
            return True
        if time.monotonic() > give_up_at:
            raise controller_silent(folder.name)
        time.sleep(POLL_S)
    return False


def _ask(folder: Path, now: bool) -> bool:
    """Ask the controller to stop; False if it went away meanwhile."""
    from holdfast.drivers.client import request
    from holdfast.messages import StopJob

    try:
        request(folder, StopJob(by="holdfast stop", now=now))
    except ConnectionError:
        return False
    return True


def _stopped(folder: Path) -> bool:
    """Wait for the controller that was asked to end; whether it has ended the job. One that was
    killed meanwhile has left its nodes, which train on."""
    from holdfast.drivers.records import controller_alive, state_of

    talk(f"asked {folder.name} to stop; waiting until it has (Ctrl-C only stops waiting)")
    while controller_alive(folder):
        time.sleep(POLL_S)
    try:
        return state_of(folder).ended
    except FileNotFoundError:  # the record was removed: by whoever knows that it has ended
        return True
    except (Error, OSError):
        return False


def _answer(job: str, *, asked: bool, killed: int = 0, unreached: str = "") -> None:
    told = {"job": job, "asked": asked, "killed_count": killed, "unreached": unreached or None}
    json_result(told)


def _told(job: str, *, asked: bool, waited: bool, killed: int, outcome: str | None = None) -> str:
    if asked:
        return f"{job} has stopped" if waited else f"{job} was asked to stop"
    if killed:
        left = count(killed, "process", "processes")
        return f"the controller of {job} had died; killed {left} that it left behind"
    if outcome is not None:
        return f"{job} had already ended: {outcome}"
    return f"no process of {job} is running"
