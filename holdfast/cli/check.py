"""`holdfast check`: does this machine compute, remember, write and send what it is told to?"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.check_spares import check_spares
from holdfast.cli.cluster import Context, Namespace, On, reached
from holdfast.cli.controller import Where
from holdfast.cli.output import AsJson, duration, is_terminal, json_result, result, styled, talk
from holdfast.cli.output import table as aligned
from holdfast.errors import Error, ExitStatus

if TYPE_CHECKING:
    from holdfast.checks.outcome import CheckResult

STYLE = {"ok": "green", "failed": "red", "skipped": "dim"}


def check(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Check the machines of this running job's spares instead; one that fails is "
            "replaced. Only quick checks.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Check the disks in the checkpoint locations of this job."),
    ] = None,
    path: Annotated[
        list[Path] | None,
        typer.Option("--path", help="Check the disk of this folder, too. Repeatable."),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            "--against", help="Compare with what `check --json` printed elsewhere. Repeatable."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only checks that take a few seconds in total.")
    ] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Check that this machine, or those of a job's spares, compute, store and send data correctly;
    exit status 1 if not."""
    if job is not None:
        if name or path or against or quick:
            raise Error(
                "usage",
                "options of a check of this machine exclude the name of a job",
                why=f"the spares of {job} check the disks that the job saves to, quickly",
                help=f"holdfast check {job}",
            )
        check_spares(job, reached(on, context, namespace), as_json=as_json)
        return
    if reached(on, context, namespace) is not None:
        raise _nameless()
    import socket
    import sys

    from holdfast.checks.compare import compared
    from holdfast.checks.plan import groups
    from holdfast.checks.runner import run

    others = {str(file): _read(file) for file in against or ()}
    found: list[CheckResult] = []
    for group in groups(_places(name, path or ()), quick=quick):
        if is_terminal(sys.stderr) and not as_json:
            talk(f"checking {', '.join(group.names)} ...")
        found += run(group)
    found += [compared(found, file, theirs) for file, theirs in others.items()]
    bad = [f"{one.name}: {one.found}" for one in found if one.state == "failed"]
    good = not bad
    _remember("; ".join(bad))
    if as_json:
        json_result({"ok": good, "machine": socket.gethostname(), "checks": found})
    else:
        result(_table(found))
    if not good:
        raise typer.Exit(ExitStatus.JOB_FAILED)


def _nameless() -> Error:
    return Error(
        "usage",
        "a check on Kubernetes needs the name of a job",
        why="without one `holdfast check` checks the machine that it runs on",
        help="holdfast check NAME --on kubernetes   (the machines of its spares; this machine: "
        "--on local)",
    )


def _remember(failed: str) -> None:
    from holdfast.drivers.machine_book import note_check

    try:
        note_check(failed)
    except OSError as error:
        talk(f"note: the result cannot be recorded: {error.strerror}")


def _table(found: "list[CheckResult]") -> str:
    rows = [
        (one.name, one.state, duration(one.seconds) if one.seconds else "", one.found)
        for one in found
    ]
    lines = aligned(("check", "result", "time", "found"), rows).splitlines()
    for number, one in enumerate(found, 1):
        marked = styled(one.state, STYLE[one.state])
        lines[number] = lines[number].replace(f"  {one.state} ", f"  {marked} ", 1)
    helps = [f"{one.name}: {one.help}" for one in found if one.state == "failed" and one.help]
    return "\n".join([*lines, *(["", *(f"help: {line}" for line in helps)] if helps else [])])


def _read(file: Path) -> "list[CheckResult]":
    """What `check --json` has printed. Raises `Error` (usage)."""
    import msgspec

    from holdfast.checks.compare import CheckReport
    from holdfast.files import read_plain

    try:
        return list(msgspec.json.decode(read_plain(file), type=CheckReport).checks)
    except (OSError, msgspec.MsgspecError) as error:
        raise Error(
            "usage",
            f"{file} does not contain the result of a check",
            why=getattr(error, "strerror", None) or str(error),
            help="holdfast check --json > NODE.json   (on the other machine)",
        ) from None


def _places(name: str | None, paths: Iterable[Path]) -> list[str]:
    """The folders whose disks are checked: those given, else the one with all jobs."""
    from holdfast.checks.plan import nearest_folder
    from holdfast.cli.locate import job_folder
    from holdfast.cli.places import tier_places
    from holdfast.drivers.records import jobs_home

    found = [_folder(one) for one in paths]
    if name is not None:
        tiers = [one.where for one in tier_places(job_folder(name)) if "://" not in one.where]
        found += [nearest_folder(where) for where in tiers]
    return list(dict.fromkeys(found)) or [nearest_folder(str(jobs_home()))]


def _folder(path: Path) -> str:
    if path.is_dir():
        return str(path.absolute())
    raise Error(
        "usage",
        f"{path} is not a folder",
        why="--path names a folder in which a file can be written, read and removed",
        help="holdfast check --path FOLDER",
    )
