"""What `holdfast simulate --swarm` and `--seed` do and print."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from holdfast.cli.output import count, duration, json_result, result, styled, talk
from holdfast.errors import ExitStatus

if TYPE_CHECKING:
    from holdfast.simulation.swarm import Told


def swarm(first: int, worlds: int, *, hours: float, nodes: int, as_json: bool) -> None:
    """Run `worlds` worlds from seed `first` on; ends with status 1 if a referee objects."""
    outcomes: Counter[str] = Counter()
    bad: list[Told] = []
    happened = 0
    for told in _watched(first, worlds, hours, nodes):
        outcomes["foul" if told.foul else told.outcome] += 1
        happened += told.happened
        if told.foul:
            bad.append(told)
    bad.sort(key=lambda told: told.seed)
    if as_json:
        json_result({"worlds": worlds, "outcomes": _told(outcomes), "fouls": bad})
    else:
        named = {"foul": "violation"}
        ended = ", ".join(f"{n} {named.get(name, name)}" for name, n in _told(outcomes).items())
        result(f"{count(worlds, 'world')}, {count(happened, 'event')}: {ended}")
        _show_fouls(bad)
    if bad:
        raise typer.Exit(int(ExitStatus.JOB_FAILED))


def _watched(first: int, worlds: int, hours: float, nodes: int) -> Iterator["Told"]:
    """Each world as it is over, with a bar on standard error if a person looks at it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from holdfast.simulation.swarm import swarm as run_all

    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("worlds", total=worlds)
        fouls = 0
        for told in run_all(first, worlds, hours=hours, nodes=nodes):
            fouls += bool(told.foul)
            bar.update(task, advance=1, description=f"worlds, {count(fouls, 'violation')}")
            yield told


def _told(outcomes: Counter[str]) -> dict[str, int]:
    """The most frequent first, in the same order whichever world was over first."""
    return dict(sorted(outcomes.items(), key=lambda item: (-item[1], item[0])))


def _show_fouls(bad: list["Told"]) -> None:
    for told in bad:
        talk(f"{styled('violation', 'red')}: {told.foul.partition(chr(10))[0]}")
        result(told.command)


def one(seed: int, *, hours: float, nodes: int, as_json: bool) -> None:
    """Run one world and tell its story."""
    from holdfast.simulation.swarm import run

    told, lines = run(seed, hours=hours, nodes=nodes)
    journal = Path(tempfile.mkdtemp(prefix=f"holdfast-seed-{seed}-")) / "journal.jsonl"
    journal.write_bytes(lines)
    if as_json:
        json_result({"world": told, "journal": str(journal)})
    else:
        _show_story(told, lines, journal)
    if told.foul:
        raise typer.Exit(int(ExitStatus.JOB_FAILED))


def _show_story(told: "Told", lines: bytes, journal: Path) -> None:
    from holdfast.simulation.story import story

    for line in story(lines):
        result(line)
    ending = told.outcome.replace("_", " ") or "was truncated"
    result(
        f"\nseed {told.seed}: the job {ending} after {duration(told.virtual_s)} of virtual time, "
        f"{count(told.attempts, 'attempt')}, {count(told.entries, 'entry', 'entries')}"
    )
    result(f"journal: {journal}")
    if told.foul:
        result(f"{styled('violation', 'red')}: {told.foul}")
