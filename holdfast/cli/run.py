"""`holdfast run`: run a job file, or a script with torchrun's flags."""

import os
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.cluster import Context, Namespace, On, reached
from holdfast.cli.controller import Where
from holdfast.cli.foreground import run_shown
from holdfast.cli.order import Order
from holdfast.cli.output import AsJson, talk
from holdfast.cli.program import (
    Flags,
    fresh_word,
    is_job_file,
    job_for_cluster,
    job_from_file,
    job_from_words,
    place_given,
    unused_name,
)
from holdfast.cli.render import EngineName
from holdfast.cli.submit import Dry, hand_over
from holdfast.cli.torchrun import environment_notes, notes, takes_torchrun_flags
from holdfast.cli.validate import size
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.spec import Job


class Terminal(StrEnum):
    """Whose output is shown."""

    ALL = "all"
    RANK0 = "rank0"
    NONE = "none"


Words = Annotated[
    list[str],
    typer.Argument(
        help="A job file (.yaml), or a script and its arguments.",
        metavar="FILE | SCRIPT [ARGS]...",
        show_default=False,
    ),
]
Nodes = Annotated[str | None, typer.Option("--nnodes", help="Nodes that train.")]
Workers = Annotated[
    str | None,
    typer.Option(
        "--nproc-per-node", "--nproc_per_node", help="Workers per node: N, auto, gpu or cpu."
    ),
]
Spares = Annotated[int | None, typer.Option("--spares", help="Warm standby nodes.")]
Restarts = Annotated[
    int | None,
    typer.Option("--max-restarts", "--max_restarts", help="Restarts allowed within an hour."),
]
Grace = Annotated[
    float | None,
    typer.Option(
        "--shutdown-timeout", "--shutdown_timeout", help="Seconds from SIGTERM to SIGKILL."
    ),
]
Module = Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a Python module.")]
NoPython = Annotated[
    bool, typer.Option("--no-python", "--no_python", help="SCRIPT is any program.")
]
Name = Annotated[str | None, typer.Option("--name", help="Name of the job.")]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="K=V", help="Environment variable for the workers."),
]
Workdir = Annotated[str | None, typer.Option("--workdir", help="Working directory of the workers.")]
Shown = Annotated[Terminal | None, typer.Option("--terminal", help="Ranks whose output to show.")]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="PLACE", help="Start from a checkpoint of another job."),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh", help="Start from step 0: earlier checkpoints are kept, but not restored."
    ),
]
Preload = Annotated[
    list[str] | None,
    typer.Option("--preload", metavar="MODULE", help="Module to import ahead of time."),
]
PreloadImports = Annotated[
    bool | None,
    typer.Option(help="Import ahead of time what the script imports at its top. Default: yes."),
]
Instrument = Annotated[
    bool | None,
    typer.Option(
        help="Count the steps of PyTorch optimizers in a script without `holdfast.train`. Default: "
        "yes."
    ),
]
Integrate = Annotated[
    bool | None,
    typer.Option(
        help="Keep the state of a known trainer in a script without `holdfast.train`. Default: yes."
    ),
]
Layout = Annotated[
    str | None,
    typer.Option(
        "--parallel",
        metavar="KEY=N,...",
        help="Layout of the ranks, as under `parallel` in a job file: tp=2,dp_shard=-1.",
    ),
]
Detach = Annotated[
    bool, typer.Option("--detach", "-d", help="Run in the background and return immediately.")
]
_WITHOUT = {Where.LOCAL: "on this machine", Where.RAY: "on Ray"}
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace the record of an earlier job of this name.")
]


@takes_torchrun_flags
def run(
    context: typer.Context,
    words: Words,
    nodes: Nodes = None,
    workers: Workers = None,
    spares: Spares = None,
    max_restarts: Restarts = None,
    shutdown_timeout: Grace = None,
    module: Module = False,
    no_python: NoPython = False,
    name: Name = None,
    env: Env = None,
    workdir: Workdir = None,
    terminal: Shown = None,
    preload: Preload = None,
    preload_imports: PreloadImports = None,
    instrument: Instrument = None,
    integrate: Integrate = None,
    parallel: Layout = None,
    detach: Detach = False,
    replace: Replace = False,
    start_from: From = None,
    fresh: Fresh = False,
    engine: EngineName = None,
    dry_run: Dry = None,
    on: On = Where.LOCAL,
    context_name: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
    torchrun: Mapping[str, str | bool] = {},
) -> None:
    """Run a job: holdfast run job.yaml, or holdfast run [torchrun flags] train.py --lr 3e-4.

    Everything after the script belongs to the script. With --on kubernetes a job file runs there,
    with --on ray in the Ray cluster that this machine belongs to.
    """
    if is_job_file(words[0]) and len(words) > 1:
        _again_with_flags_first(context, words)
        return
    flags = Flags(
        name=name,
        nodes=nodes,
        spares=spares,
        workers=workers,
        max_restarts=max_restarts,
        stop_grace_s=shutdown_timeout,
        module=module,
        no_python=no_python,
        env=tuple(env or ()),
        workdir=workdir,
        terminal=terminal.value if terminal else None,
        start_from=start_from and place_given(start_from),
        fresh=fresh_word(fresh),
        preload=tuple(preload or ()) or None,
        preload_imports=preload_imports,
        instrument=instrument,
        integrate=integrate,
        parallel=parallel,
    )
    reach = reached(on, context_name, namespace)
    if reach is None and (engine is not None or dry_run is not None):
        raise _for_clusters("--engine" if engine is not None else "--dry-run")
    if reach is not None:
        order = Order(dry=dry_run, replace=replace, follow=not detach, as_json=as_json)
        job = _job_there(words, flags, torchrun)
        hand_over(job, Path(words[0]), reach, order, engine=engine)
        return
    job = _job(words, flags, torchrun)
    begin = start if is_job_file(words[0]) or name or replace else _start_numbered
    begin(job, on, detach=detach, replace=replace, as_json=as_json)


def _again_with_flags_first(context: typer.Context, words: list[str]) -> None:
    """`run job.yaml --detach`: a job file takes no arguments, so what follows it are flags."""
    file, *flags = words
    given: list[str] = context.obj
    before = given[1 : len(given) - len(words)]
    again = context.command.make_context("run", [*before, *flags, file], parent=context.parent)
    if again.params["words"] != [file]:
        raise Error(
            "usage",
            f"{file} takes no arguments",
            why="the arguments of the script are part of the job file",
            help=f"write them into {file} under args:",
        )
    with again:
        context.command.invoke(again)


def _for_clusters(flag: str) -> Error:
    return Error(
        "usage",
        f"{flag} applies to jobs on Kubernetes only",
        why="a job on this machine has no engine and no manifests",
        help="add --on kubernetes   (or: holdfast validate job.yaml)",
    )


def _job_there(words: list[str], flags: Flags, torchrun: Mapping[str, str | bool]) -> "Job":
    """The job for a cluster, which needs a file: a command line names no image."""
    if not is_job_file(words[0]):
        raise Error(
            "usage",
            f"{words[0]} cannot be run on Kubernetes without a job file",
            why="pods need a container image, which a job file names",
            help=f"write a job file (name, image, script: {words[0]}) and run that",
        )
    job = job_for_cluster(Path(words[0]), flags)
    for note in notes(torchrun, job.nodes.count):
        talk(f"note: {note}")
    return job


def _job(words: list[str], flags: Flags, torchrun: Mapping[str, str | bool]) -> "Job":
    from_file = is_job_file(words[0])
    job = job_from_file(Path(words[0]), flags) if from_file else job_from_words(words, flags)
    said = notes(torchrun, job.nodes.count)
    for note in said if from_file else [*said, *environment_notes(os.environ)]:
        talk(f"note: {note}")
    return job


def _start_numbered(job: "Job", on: Where, *, detach: bool, replace: bool, as_json: bool) -> None:
    """Start it under a name that is free; another command may take that name first."""
    from holdfast.drivers.records import job_dir

    while True:
        name = unused_name(job.name, lambda candidate: os.path.lexists(job_dir(candidate)))
        try:
            renamed = job.model_copy(update={"name": name})
            start(renamed, on, detach=detach, replace=replace, as_json=as_json)
        except Error as error:
            if error.slug not in ("job-exists", "job-running"):
                raise
        else:
            return


def start(job: "Job", on: Where, *, detach: bool, replace: bool, as_json: bool) -> None:
    """Run a job from its creation; in the foreground this ends the command."""
    from holdfast.cli import controller
    from holdfast.drivers.engines import HERE
    from holdfast.drivers.limits import require_limits, require_loopback, require_room
    from holdfast.drivers.local import run_job
    from holdfast.drivers.otlp.telemetry import require_exporter
    from holdfast.drivers.records import create, job_dir
    from holdfast.spec.files import require_files
    from holdfast.spec.local import require_local, unused_sections, with_roles

    _require_linux()
    require_local(job)
    job = with_roles(job)
    require_limits(job)
    if on is not Where.RAY:
        require_room(job)
        require_loopback(HERE)
    require_files(job)
    require_exporter(job)
    _warn_of_this_machine()
    unused = unused_sections(job, on_ray=on is Where.RAY)
    if unused:
        talk(f"note: ignored {_WITHOUT[on]}: {', '.join(unused)}")
    if job.sweep is not None:
        from holdfast.cli.sweep_run import run_sweep

        run_sweep(job, on, detach=detach, replace=replace, as_json=as_json)
    folder = job_dir(job.name)
    address = _on_ray(job, folder, detach) if on is Where.RAY else None
    lock = create(job, folder, replace=replace, ray=address, now=time.time())
    if detach:
        controller.detach(folder, lock=lock, as_json=as_json)
        return
    talk(f"{job.name}: {size(job)}; record in {folder}")
    status = run_shown(
        job, folder, lambda hear: run_job(job, folder, lock, on_event=hear), as_json=as_json
    )
    raise typer.Exit(status)


def _on_ray(job: "Job", folder: Path, detach: bool) -> str:
    """The address of the job's Ray cluster, which answers. Raises `Error`."""
    from holdfast.drivers.engines import ray_engine

    address: str = ray_engine().reached(job.ray.address, folder, stay=not detach)
    return address


def _warn_of_this_machine() -> None:
    """It is the only one, so it trains all the same."""
    from holdfast.drivers.machine_book import memory

    try:
        failed = memory().failed
    except OSError as error:
        talk(f"note: the history of this machine cannot be read: {error.strerror}")
        return
    if failed:
        talk(f"warning: this machine failed its last check: {failed}   (holdfast check)")


def _require_linux() -> None:
    if sys.platform != "linux":
        raise Error(
            "platform-unsupported",
            f"jobs cannot run on {sys.platform}",
            why="Holdfast needs memfd, process groups and PR_SET_PDEATHSIG, which only Linux has",
            help="use a Linux machine or container",
        )
