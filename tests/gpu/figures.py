"""Figures that tests of a GPU have measured, as one table with where and when they were taken.

Tests append one JSON line each to a file; the table is written from it once they have ended. It is
kept twice: as JSON for programs, with everything, and as Markdown for people.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

REHEARSAL = "HOLDFAST_GPU_REHEARSAL"  # set: tests marked `gpu` run on the CPU, as far as they can
FIGURES = "HOLDFAST_GPU_FIGURES"  # the file that figures are appended to
Where = Mapping[str, str]


class Figure(NamedTuple):
    """One number, or a word, that was measured."""

    group: str
    what: str
    value: float | int | str
    unit: str


def append(path: Path, figure: Figure) -> None:
    """Add this figure to those measured so far."""
    with path.open("a") as file:
        file.write(json.dumps(figure._asdict()) + "\n")


def load(path: Path) -> list[Figure]:
    """All of them, in the order in which they were measured; none where there is no file."""
    if not path.exists():
        return []
    return [Figure(**json.loads(line)) for line in path.read_text().splitlines()]


def table(figures: Sequence[Figure]) -> str:
    """All figures as one table in Markdown, those of a group together."""
    rows = [f"| {f.group} | {f.what} | {_number(f.value)} | {f.unit} |" for f in _grouped(figures)]
    return "\n".join(["| of | what | figure | unit |", "| --- | --- | ---: | --- |", *rows])


def _grouped(figures: Sequence[Figure]) -> list[Figure]:
    order = list(dict.fromkeys(figure.group for figure in figures))
    return sorted(figures, key=lambda figure: order.index(figure.group))


def _number(value: float | int | str) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def page(when: date, where: Where, outcome: str, figures: Sequence[Figure]) -> str:
    """The page that is kept: heading, machine, what the tests said, the table."""
    machine = "\n".join(f"- {name}: {value}" for name, value in where.items())
    title = f"# {where['device']}, {when.isoformat()}"
    return f"{title}\n\nBy `make gpu`. {outcome}\n\n{machine}\n\n{table(figures)}\n"


def keep(
    folder: Path, when: date, where: Where, outcome: str, figures: Sequence[Figure]
) -> list[Path]:
    """Write both files; returns where. Those of the same day and device are replaced."""
    stem = f"gpu-{when.isoformat()}-{_slug(where['device'])}"
    record: dict[str, Any] = {
        "date": when.isoformat(),
        "where": dict(where),
        "outcome": outcome,
        "figures": [figure._asdict() for figure in figures],
    }
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        folder / f"{stem}.md": page(when, where, outcome, figures),
        folder / f"{stem}.json": json.dumps(record, indent=1) + "\n",
    }
    for path, text in files.items():
        path.write_text(text)
    return [*files]


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())
