"""Real excerpts of logs for each known problem, with where they come from."""

import re
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parent / "excerpts.txt"
HEAD, SOURCE = "== ", "from "
THREAD = re.compile(r"[\w.-]+/[\w.-]+#\d+")


class Excerpt(NamedTuple):
    """Lines of one log. `source` is one of

    - `OWNER/REPOSITORY#NUMBER`: a public thread on GitHub,
    - `OWNER/REPOSITORY PATH`: a public source that prints them,
    - `LIBRARY PATH`: an installed library that prints them, by a pattern of its path,
    - `recorded FILE`: below `tests/diagnosis/recorded`, of a process that failed,
    - `provoked NAME`: a function of `tests/diagnosis/provoked.py`,
    - `ran: COMMAND (VERSION)`: printed by that command.
    """

    source: str
    lines: list[str]


def excerpts() -> dict[str, list[Excerpt]]:
    """By slug of the problem."""
    found: dict[str, list[Excerpt]] = {}
    for line in FILE.read_text().splitlines():
        if line.startswith(HEAD):
            of_slug = found.setdefault(line.removeprefix(HEAD), [])
        elif line.startswith(SOURCE):
            of_slug.append(Excerpt(line.removeprefix(SOURCE), []))
        else:
            of_slug[-1].lines.append(line)
    return found
