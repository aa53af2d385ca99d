"""`holdfast submit`, and `run` in a cluster: hand a job over, and see it through if asked to.

`submit` ends when the cluster has accepted everything. `run` and `--wait` stay until the job has
ended; stopping them (Ctrl-C, SIGTERM) stops the job, first gently and the second time at once.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import placing, rehearsal, story
from holdfast.cli.cluster import Context, Namespace, On, Reach, Session, connected
from holdfast.cli.controller import Where, status_of_outcome
from holdfast.cli.order import DryRun, Order
from holdfast.cli.output import AsJson, count, json_result, result, styled, talk, want_json
from holdfast.cli.program import Flags, fresh_word, job_for_cluster
from holdfast.cli.render import EngineName, Mode, code_of, engine_named, require_sound
from holdfast.errors import Error, ExitStatus

if TYPE_CHECKING:
    from holdfast.cli.source import RemoteSource
    from holdfast.drivers.kubernetes.manifests.request import Body, Request
    from holdfast.spec import Job


Dry = Annotated[
    DryRun | None,
    typer.Option(
        "--dry-run",
        help="Create nothing. client: print the manifests; server: validate them on the API "
        "server and show what would change.",
    ),
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace an ended job of this name.")]


def submit(
    file: Annotated[Path, typer.Argument(help="The job file.", show_default=False)],
    engine: EngineName = None,
    mode: Mode = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job.")] = None,
    dry_run: Dry = None,
    replace: Replace = False,
    start_from: Annotated[
        str | None,
        typer.Option("--from", metavar="PLACE", help="Start from a checkpoint of another job."),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Start from step 0: earlier checkpoints are kept, but not restored."
        ),
    ] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Wait until the job has ended; interrupting the command stops the job."
        ),
    ] = False,
    on: On = Where.KUBERNETES,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job to a cluster: holdfast submit job.yaml. Returns when it has been accepted."""
    if on is not Where.KUBERNETES:
        raise Error(
            "usage",
            "`holdfast submit` applies to a cluster",
            why="a job on this machine is run with `holdfast run`",
            help=f"holdfast run {file} --detach",
        )
    job = job_for_cluster(file, Flags(name=name, start_from=start_from, fresh=fresh_word(fresh)))
    order = Order(dry=dry_run, replace=replace, follow=wait, as_json=as_json)
    hand_over(job, file, Reach(context, namespace), order, engine=engine, mode=mode and mode.value)


def hand_over(
    job: "Job", file: Path, reach: Reach, order: Order, *, engine: str | None = None,
    mode: Any = None,
) -> None:  # fmt: skip
    """Submit the job of a file as ordered; following it ends with the job's exit status."""
    from holdfast.drivers.kubernetes.submit import scheduled

    where = reach.namespace or job.kubernetes.namespace
    request = _request(job, file, where, engine, mode)
    if not scheduled(request):
        require_sound(request)
        if job.clusters and reach.context is None:
            placing.hand_over(request, file, order)
            return
    if order.dry is DryRun.CLIENT:
        rehearsal.print_manifests(request, order.as_json)
        return
    with connected(reach._replace(namespace=where)) as session:
        request = _there(request, session)
        if order.dry is DryRun.SERVER:
            rehearsal.on_server(session, request, order.as_json)
        else:
            _submit(session, request, order)


def _request(
    job: "Job", file: Path, namespace: str | None, engine: str | None, mode: Any
) -> "Request":
    """With the code that it ships; a job that a CronJob starts finds its code in the cluster."""
    from holdfast.drivers.kubernetes.manifests.render import requested
    from holdfast.drivers.kubernetes.submit import scheduled

    chosen = engine_named(engine) if engine is not None else None
    name = os.environ.get("HOLDFAST_CODE", "")
    found = requested(job, engine=chosen, mode=mode, namespace=namespace, code_name=name)
    if scheduled(found):
        return found
    return changed(found, code=code_of(file, job.code), code_name="")


def _there(request: "Request", session: Session) -> "Request":
    """The request for the cluster as it is: its version, and the namespace that was chosen."""
    from holdfast.drivers.kubernetes.doctor_visit import nearest, server_version
    from holdfast.drivers.kubernetes.submit import scheduled

    version = nearest(session.do(server_version(session.cluster)))
    namespace = session.cluster.namespace
    section = request.job.kubernetes.model_copy(update={"namespace": namespace})
    job = request.job.model_copy(update={"kubernetes": section})
    found = changed(request, job=job, namespace=namespace, version=version)
    if not scheduled(found):
        require_sound(found)
    return found


def _submit(session: Session, request: "Request", order: Order) -> None:
    from holdfast.drivers.kubernetes.submit import scheduled, start_scheduled
    from holdfast.drivers.kubernetes.submit import submit as make

    if order.follow:
        _can_be_followed(request)
    if scheduled(request):
        session.do(start_scheduled(session.cluster, request), f"job {request.name}")
        made: list[Body] = []
    else:
        call = make(session.cluster, request, replace=order.replace, words=session.words)
        made = session.do(call, f"job {request.name}")
    _tell(session, request, len(made), order)
    if order.follow:
        raise typer.Exit(_follow(session, request.name, order.as_json))


def _can_be_followed(request: "Request") -> None:
    if request.managed and request.engine != "cronjob":
        return
    what = "a schedule" if request.engine == "cronjob" else "a job in plain mode"
    raise Error(
        "not-managed",
        f"{what} cannot be followed",
        why="it has no controller that reports its progress",
        help="holdfast submit job.yaml   (without --wait)",
    )


def _tell(session: Session, request: "Request", made: int, order: Order) -> None:
    on = f"--on kubernetes{session.words}"
    where = f"namespace {session.cluster.namespace}, engine {request.engine}"
    if order.follow:
        talk(f"{request.name}: submitted to {where}")
        return
    if order.as_json:
        said = {"job": request.name, "namespace": session.cluster.namespace}
        json_result({**said, "engine": request.engine, "objects_count": made})
        return
    result(request.name)
    talk(f"{request.name}: {count(made, 'object')} accepted in {where}")
    if request.engine == "pods" and not request.managed:
        talk(
            "in plain mode with engine pods a lost pod is not replaced, and a machine failure is "
            "enough to lose one; with engine job Kubernetes creates another"
        )
    if request.managed and request.engine != "cronjob":
        talk(f"next: holdfast watch {request.name} {on}   holdfast logs -f {request.name} {on}")


# ── seeing it through ─────────────────────────────────────────────────────────────────────────


def _follow(session: Session, name: str, as_json: bool) -> ExitStatus:
    """Watch the job to its end; the exit status is the one a local run would have."""
    from holdfast.actions import Outcome
    from holdfast.cli.source import remote_source
    from holdfast.cli.watch import follow

    source = remote_source(session, name)
    told: set[str] = set()
    with _stopping(session, name) as pass_on:

        def tick(_status: object) -> None:
            pass_on()
            _tell_troubles(source, told)

        status = follow(source, as_json=as_json, tick=tick)
        _summary(source, as_json)
    if status.outcome is None:
        raise Error(
            "controller-start-failed",
            f"job {name} has not ended, but its controller is not running",
            why="its Deployment was scaled down or deleted",
            help=f"holdfast resume {name}{source.words}",
        )
    return status_of_outcome(Outcome(status.outcome))


def _tell_troubles(source: "RemoteSource", told: set[str]) -> None:
    """Each trouble once, as long as it is the same."""
    for trouble in source.troubles():
        if trouble.what not in told:
            told.add(trouble.what)
            talk(str(trouble))


@contextmanager
def _stopping(session: Session, name: str) -> Iterator[Callable[[], None]]:
    """While the block runs, SIGINT and SIGTERM ask to stop; the function passes new ones on."""
    from holdfast.drivers.kubernetes.remote_orders import ask_to_stop

    wishes, passed = 0, 0

    def wish(_signal: int, _frame: object) -> None:
        nonlocal wishes
        wishes += 1

    def pass_on() -> None:
        nonlocal passed
        if passed < wishes:
            passed = wishes
            now = wishes > 1
            talk(f"asking {name} to stop {'immediately' if now else '(again: immediately)'}")
            session.do(ask_to_stop(session.cluster, name, now=now), f"job {name}")

    before = {number: signal.signal(number, wish) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield pass_on
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _summary(source: "RemoteSource", as_json: bool) -> None:
    status = source.status()
    if as_json:
        want_json()
    good = status.outcome == "succeeded"
    talk(styled(story.ending(status), "green" if good else "red"))
    if not good and status.why:
        talk(f"why: {status.why}")
    talk(f"next: holdfast why {status.job}{source.words}")
