"""`holdfast chaos`: do something bad to a running job, to see that it is noticed and repaired."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import story
from holdfast.cli.cluster import Context, Namespace, On, reached
from holdfast.cli.controller import Where
from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, JobName, json_result, result, table, talk
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.drivers.chaos import Injected

TICK_S = 0.1
HEADER = ("FAULT", "WHAT IS DONE", "EXPECTED CAUSE")


def chaos(
    name: JobName = None,
    fault: Annotated[str | None, typer.Option("--fault", help="Which fault; see --list.")] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, help="To which rank. Default: one by chance.")
    ] = None,
    for_s: Annotated[
        float,
        typer.Option("--for", min=0.0, help="Seconds until a fault that lasts is taken back."),
    ] = 10.0,
    list_: Annotated[bool, typer.Option("--list", help="List the faults.")] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Inject a fault into a running job."""
    if list_:
        _list(as_json)
        return
    if reached(on, context, namespace) is not None:
        raise _in_a_cluster()
    _require(fault)
    assert fault is not None
    from holdfast.drivers.chaos import inject

    injected = inject(job_folder(name), fault, rank)
    if not as_json:
        result(_told(injected))
    undone = _undone(injected, for_s)
    if as_json:
        json_result(_fields(injected, undone))
    elif undone:
        result(undone)


def _list(as_json: bool) -> None:
    from holdfast.drivers.chaos import FAULTS

    if as_json:
        shown = {"has_rank", "lasts", "what", "causes"}
        kinds = [(fault, kind._asdict()) for fault, kind in FAULTS.items()]
        json_result([{"fault": fault, **{k: kind[k] for k in shown}} for fault, kind in kinds])
    else:
        rows = ((fault, kind.what, ", ".join(kind.causes)) for fault, kind in FAULTS.items())
        result(table(HEADER, rows))


def _require(fault: str | None) -> None:
    from holdfast.drivers.chaos import FAULTS

    if fault not in FAULTS:
        raise Error(
            "usage",
            "--fault is missing" if fault is None else f"there is no fault {fault!r}",
            why=f"known are: {', '.join(FAULTS)}",
            help="holdfast chaos --list",
        )


def _in_a_cluster() -> Error:
    """Pods have tools of their own for that; machines there are not ours to break."""
    return Error(
        "fault-impossible",
        "no fault can be injected into a job in a cluster",
        why="every fault of the list is done to processes of this machine",
        help="kubectl delete pod NAME   (the loss of a node)",
    )


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
    talk(f"it is taken back after {for_s:g} s (Ctrl-C: now)")
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
