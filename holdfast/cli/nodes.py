"""`holdfast nodes`: machines of a cluster that Holdfast keeps jobs off, why, and for how long; of a
job on this machine, its nodes, what is wrong with them, and which trouble it again and again."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, cast

import typer

from holdfast.cli.cluster import Context, Namespace, On, Reach, Session, connected
from holdfast.cli.controller import Where
from holdfast.cli.output import AsJson, duration, json_result, result, table, talk
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.drivers.kubernetes.machines import Machine

HEADER = ("MACHINE", "SIGNALS", "CORDONED BY", "LEFT", "WHY", "NOW")


def nodes(
    lift: Annotated[
        list[str] | None,
        typer.Option("--lift", metavar="MACHINE", help="Remove the cordon of this machine."),
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", help="With --on local: which job. Default: the newest.")
    ] = None,
    on: On = Where.KUBERNETES,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Show the machines that jobs have cordoned or recorded faults of within 28 days, or lift these
    cordons; with --on local, the nodes of a job on this machine and its fault history."""
    if on is not Where.KUBERNETES:
        if lift:
            raise _never_cordoned()
        from holdfast.cli.node_health import show

        show(job, as_json)
        return
    with connected(Reach(context, namespace)) as session:
        if lift:
            _lift(session, lift, as_json)
        else:
            _show(session, as_json)


def _show(session: Session, as_json: bool) -> None:
    from holdfast.cli.machine_story import history_lines
    from holdfast.drivers.kubernetes.cordons import remembered

    found = [_fields(m) for m in session.do(remembered(session.cluster), "nodes")]
    if as_json:
        json_result(found)
        return
    if not found:
        talk("no machine is cordoned by Holdfast, or has recorded faults")
        return
    result(table(HEADER, map(_row, found)))
    for fields in found:
        for line in history_lines(fields):
            result(line)
    if any(fields["cordoned"] for fields in found):
        talk(f"next: holdfast nodes --lift MACHINE{session.words}")


def _never_cordoned() -> Error:
    return Error(
        "usage",
        "--lift applies to a cluster",
        why="the nodes of a job on this machine are processes; they are never cordoned",
        help="holdfast nodes --on local   (shows the nodes of a job)",
    )


def _fields(machine: "Machine") -> dict[str, object]:
    from holdfast.cli.machine_story import fields_of
    from holdfast.drivers.kubernetes.cordons import memory_of
    from holdfast.drivers.kubernetes.machine_conditions import signs
    from holdfast.drivers.kubernetes.machines import OWNER

    now = datetime.now(UTC)
    wrong = signs(machine, us=machine.metadata.annotations.get(OWNER, ""))  # its cordon is told
    memory = memory_of(machine, now.timestamp())
    return {
        "machine": machine.metadata.name,
        **fields_of(memory, now.timestamp()),
        "conditions": [sign.detail for sign in wrong],
    }


def _row(fields: dict[str, object]) -> tuple[str, ...]:
    from holdfast.cli.machine_story import signals_text

    return (
        str(fields["machine"]),
        signals_text(fields),
        str(fields["owner"] or ""),
        _left(fields),
        str(fields["reason"] or ""),
        "; ".join(cast("list[str]", fields["conditions"])),
    )


def _left(fields: dict[str, object]) -> str:
    if not fields["cordoned"]:
        return ""
    if fields["expired"]:
        return "expired: to be checked"
    if not isinstance(fields["expires"], str):
        return "until lifted"
    left = datetime.fromisoformat(fields["expires"]) - datetime.now(UTC)
    return duration(left.total_seconds())


def _lift(session: Session, machines: list[str], as_json: bool) -> None:
    from holdfast.drivers.kubernetes.cordons import lift, remembered

    there = session.do(remembered(session.cluster), "nodes")
    known = {machine.metadata.name for machine in there if machine.cordoned}
    for machine in machines:
        if machine not in known:
            raise _not_cordoned(machine, known, session.words)
    lifted = [m for m in machines if session.do(lift(session.cluster, m), f"machine {m}")]
    if as_json:
        json_result({"lifted": lifted})
    elif lifted:
        result(f"lifted: {', '.join(lifted)}")
    if len(lifted) < len(machines):
        raise Error(
            "rights-missing",
            f"{', '.join(m for m in machines if m not in lifted)} could not be changed",
            why="the API server refused the change; see its message above",
            help="kubectl auth can-i patch nodes",
        )


def _not_cordoned(machine: str, known: set[str], words: str) -> Error:
    return Error(
        "machine-not-cordoned",
        f"Holdfast has not cordoned {machine}",
        why=f"cordoned machines: {', '.join(sorted(known))}" if known else "no machine is cordoned",
        help=f"holdfast nodes{words}",
    )
