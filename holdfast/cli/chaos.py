"""`holdfast chaos`: do something bad to a running job, to see that it is noticed and repaired."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import story
from holdfast.cli.cluster import Context, Namespace, On, Reach, connected, reached
from holdfast.cli.controller import Where
from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, JobName, json_result, result, table, talk
from holdfast.errors import Error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.drivers.chaos import ChaosFault, Injected
    from holdfast.drivers.kubernetes.remote_chaos import RemoteFault

TICK_S = 0.1
HEADER = ("FAULT", "WHAT IS DONE", "EXPECTED CAUSE")


def chaos(
    name: JobName = None,
    fault: Annotated[str | None, typer.Option("--fault", help="Which fault; see --list.")] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, help="To which rank. Default: a random one.")
    ] = None,
    for_s: Annotated[
        float,
        typer.Option("--for", min=0.0, help="Seconds until a lasting fault is reverted."),
    ] = 10.0,
    list_: Annotated[bool, typer.Option("--list", help="List the faults.")] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Inject a fault into a running job."""
    reach = reached(on, context, namespace)
    if list_:
        _list(as_json, there=reach is not None)
        return
    _require(fault, there=reach is not None)
    assert fault is not None
    if reach is not None:
        _remote(reach, name, fault, rank, as_json=as_json)
        return
    from holdfast.drivers.chaos import inject

    injected = inject(job_folder(name), fault, rank)
    if not as_json:
        result(_told(injected))
    undone = _undone(injected, for_s)
    if as_json:
        json_result(_fields(injected, undone))
    elif undone:
        result(undone)


def _list(as_json: bool, *, there: bool) -> None:
    kinds = _kinds(there=there)
    if as_json:
        shown = ("has_rank", "lasts", "what", "causes")
        told = [(fault, kind._asdict()) for fault, kind in kinds.items()]
        json_result([{"fault": f, **{k: kind[k] for k in shown if k in kind}} for f, kind in told])
    else:
        rows = ((fault, kind.what, ", ".join(kind.causes)) for fault, kind in kinds.items())
        result(table(HEADER, rows))


def _kinds(*, there: bool) -> "Mapping[str, ChaosFault | RemoteFault]":
    """What can be done to a job here, or in a cluster."""
    if there:
        from holdfast.drivers.kubernetes.remote_chaos import REMOTE_FAULTS

        return REMOTE_FAULTS
    from holdfast.drivers.chaos import FAULTS

    return FAULTS


def _require(fault: str | None, *, there: bool) -> None:
    from holdfast.drivers.chaos import FAULTS

    kinds = _kinds(there=there)
    if fault not in kinds and not (there and fault in FAULTS):
        raise Error(
            "usage",
            "--fault is missing" if fault is None else f"there is no fault {fault!r}",
            why=f"known are: {', '.join(kinds)}",
            help=f"holdfast chaos --list{' --on kubernetes' * there}",
        )


def _remote(reach: Reach, name: str | None, fault: str, rank: int | None, *, as_json: bool) -> None:
    """To a pod of the job, or of its controller. Raises `Error`."""
    from holdfast.drivers.kubernetes import remote_chaos as faults
    from holdfast.drivers.kubernetes.remote import look, newest, require_managed

    with connected(reach) as session:
        cluster, words = session.cluster, session.words
        seen = session.do(look(cluster, name or session.do(newest(cluster, words)), words))
        require_managed(seen, words)
        if fault not in faults.REMOTE_FAULTS:
            raise faults.inside(seen, fault, rank, words)
        kind, whom = faults.REMOTE_FAULTS[fault], faults.victim(seen, fault, rank)
        pod, at = whom.pod.metadata.name, time.time()
        session.do(kind.inject(cluster, whom.pod), f"pod {pod}")
    if as_json:
        head = {"job": seen.name, "fault": fault, "what": kind.what}
        json_result({**head, "rank": whom.rank, "pod": pod, "at": at})
        return
    see = f"holdfast why {seen.name} --on kubernetes{words}"
    result(f"{story.clock(at)} {fault}: {kind.what} ({pod})\nsee what follows: {see}")


def _told(injected: "Injected") -> str:
    victim, at = injected.victim, story.clock(injected.at)
    whom = f"rank {victim.rank}, process {victim.pid}, on {victim.node.name}"
    see = f"holdfast why {victim.folder.name}"
    return f"{at} {injected.fault}: {injected.what} ({whom})\nsee what follows: {see}"


def _undone(injected: "Injected", for_s: float) -> str:
    """Wait, then take it back; Ctrl-C takes it back at once."""
    if injected.undo is None:
        return ""
    end = time.monotonic() + for_s
    talk(f"it is reverted after {for_s:g} s (Ctrl-C: now)")
    try:
        while time.monotonic() < end:
            time.sleep(TICK_S)
    finally:
        undone = injected.undo()
    return undone


def _fields(injected: "Injected", undone: str) -> dict[str, Any]:
    victim = injected.victim
    return {
        "job": victim.folder.name,
        "fault": injected.fault,
        "what": injected.what,
        "rank": victim.rank,
        "node": victim.node.name,
        "pid": victim.pid,
        "at": injected.at,
        "undone": undone or None,
    }
