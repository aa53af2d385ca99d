"""The delays of simulation/data/detection.yaml, from the tables of docs/measurements.

    .venv/bin/python benchmarks/delays.py > holdfast/simulation/data/detection.yaml

A table says of each kind of fault how often it was injected, and the median and the worst of the
times until it was seen. Of n faults of a kind one counts with the worst and the others with the
median, so the delays are too long rather than too short. What the campaign of 2026-11-26 measured
again stands in its text, and here in `AGAIN`.
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

MEASURED = Path(__file__).parents[1] / "docs" / "measurements" / "faults-2026-11-23.md"
DIED = (
    "SIGTERM", "SIGKILL", "exception on all ranks", "exception", "disk full",
    "mismatched collective", "port taken", "import error", "SIGSEGV", "storage answers 503",
    "SIGBUS", "exception from another thread", "abort", "connection refused", "exit with status 3",
    "recursion", "host memory refused", "exit with status 0", "NaN", "forkserver killed",
    "NaN gradient", "open files", "connection cut", "read-only folder",
    "disk full, by the script", "/dev/shm full, found by a data loader",
)  # fmt: skip
KINDS: dict[str, tuple[str, ...]] = {
    "worker": DIED,
    "device": ("exception", "SIGSEGV", "abort", "XID 79 in the kernel log"),
    "node": ("agent killed", "agent stopped"),
    "hang": (
        "sleep", "deadlock", "GIL held", "skipped collective", "SIGSTOP", "input stops",
        "loop in C", "loop in Python",
    ),
    "straggler": ("slow rank", "slow disk of one rank", "slow input of one rank"),
    "corruption": ("bit flip",),
    "network": ("partition of two nodes",),
}  # fmt: skip
AGAIN: dict[str, tuple[float, ...]] = {
    "device": (0.5, 0.9),
    "node": (5.1, 5.1),
    "hang": (3.1, 3.1, 3.2, 31.0, 61.0, 61.0, 91.0),
    "straggler": (58.0, 21.5, 19.5, 19.0, 20.0),
    "network": (4.9, 5.5),
}
STEPS = {"hang": 5, "network": 5, "corruption": 10, "straggler": 72}
SOURCE = """
    Written by benchmarks/delays.py from docs/measurements/faults-2026-11-23.md and
    faults-2026-11-26.md: campaigns of benchmarks/faults.py in a job of two ranks on two cores that
    other processes shared, steps of 50 ms; from the fault to the first measure taken, by the
    journal. Of the n faults of a kind one counts with the worst delay, the others with the median.
"""
ASSUMED = """
    That a cluster is as quick as one machine. That a device that fails shows as a worker that
    fails or as an XID. Some delays are longer where steps are long, so these are at least `steps`
    steps of the job: a hang and a network that is broken five median steps (detection/hang.py),
    corruption those from one comparison of replicas to the next (ten in the campaign), a straggler
    72, which is the median of simulated trainings with steps of 10 s (docs/concepts/diagnosis.md).
"""


def table(text: str) -> Iterator[tuple[str, int, float, float]]:
    """Kind, times, median and worst of each row."""
    row = re.compile(r"\| ([^|]+) \| (\d+) \| ([\d.]+) s \| ([\d.]+) s \|")
    for kind, times, median, worst in row.findall(text):
        yield kind.strip(), int(times), float(median), float(worst)


def delays() -> dict[str, list[float]]:
    """By what a fault shows, in order. Raises KeyError if a kind is in no table."""
    rows = {kind: rest for kind, *rest in table(MEASURED.read_text())}
    found: dict[str, list[float]] = {}
    for shows, kinds in KINDS.items():
        seconds = [*AGAIN.get(shows, ())]
        for kind in kinds:
            times, median, worst = rows[_row(kind, rows)]
            seconds += [float(median)] * (int(times) - 1) + [float(worst)]
        found[shows] = sorted(seconds)
    return found


def _row(kind: str, rows: dict[str, list[float]]) -> str:
    """Some rows say more than the name of the kind."""
    return next(name for name in rows if name == kind or name.startswith(f"{kind} to "))


def written() -> str:
    """The file."""
    lines = [f"source: >-\n{_folded(SOURCE)}", f"assumed: >-\n{_folded(ASSUMED)}", "steps:"]
    lines += [f"  {shows}: {count}" for shows, count in STEPS.items()]
    lines.append("seconds:")
    for shows, seconds in delays().items():
        listed = textwrap.fill(
            ", ".join(f"{one:g}" for one in seconds),
            96,
            initial_indent=" " * 4,
            subsequent_indent=" " * 4,
        )
        lines.append(f"  {shows}: [\n{listed},\n  ]")
    return "\n".join(lines) + "\n"


def _folded(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text).strip(), "  ")


if __name__ == "__main__":
    print(written(), end="")
