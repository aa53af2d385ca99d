"""How a benchmark tells its result: a table for people, one JSON line for programs.

The JSON is always the last line of standard output and has one object per contestant, so that a
script can read `tail -n 1`. Beside it stands the machine, because a figure without it means little.
"""

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from statistics import median

Row = Mapping[str, float | int | str | None]


def machine() -> dict[str, str | int]:
    """What the figures were taken on."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": version("torch"),
        "kernel": platform.release(),
    }


def report(title: str, rows: Mapping[str, Row], *, as_json: bool, note: str = "") -> None:
    """Print `rows` (contestant → figures; all with the same keys) and, on request, the JSON."""
    print(f"\n{title}")
    print(" · ".join(f"{key} {value}" for key, value in machine().items()) + "\n")
    for line in table(rows):
        print(line)
    if note:
        print(f"\n{note}")
    if as_json:
        print(json.dumps(dict(rows), allow_nan=False))


def table(rows: Mapping[str, Row]) -> list[str]:
    """The lines of an aligned table, one row per contestant under a line of column names."""
    columns = list(dict.fromkeys(key for row in rows.values() for key in row))
    lines = [["", *columns]]
    lines += [[name, *(cell(row.get(key)) for key in columns)] for name, row in rows.items()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    ]


def cell(value: float | int | str | None) -> str:
    """One figure as text; three significant digits, a dash where there is none."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def summary(durations_s: list[float]) -> dict[str, float | None]:
    """Median and worst of some durations, None where there are none."""
    if not durations_s:
        return {"median_s": None, "worst_s": None}
    return {"median_s": round(median(durations_s), 4), "worst_s": round(max(durations_s), 4)}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
