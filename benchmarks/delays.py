"""The delays of simulation/data/detection.yaml, from the newest campaign in docs/measurements.

    .venv/bin/python benchmarks/delays.py > holdfast/simulation/data/detection.yaml

The campaign's figures say of each kind of fault how many were detected, the median of each run, and
the worst of all. Of n faults of a kind one counts with the worst, the others with the median of
their run, longer ones first, so the delays are too long rather than too short.
"""

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).parents[1] / "docs" / "measurements" / "faults-2026-11-28.json"
KINDS: dict[str, tuple[str, ...]] = {
    "device": ("exception", "SIGSEGV", "abort", "XID"),
    "node": ("agent killed", "agent stopped", "machine stopped"),
    "hang": (
        "sleep", "deadlock", "GIL held", "skipped collective", "SIGSTOP", "input stops",
        "loop in C", "loop in Python",
    ),
    "straggler": ("slow rank", "slow disk", "slow input"),
    "corruption": ("bit flip",),
    "network": ("partition",),
}  # fmt: skip
"""Of what a worker shows: all others, and what a device shows that is a worker's end, too."""
ENDS = ("exception", "SIGSEGV", "abort")
LEFT_OUT = ("memory leak", "open files", "loss spike")
"""The seconds of two include the fault, which takes its time; the third is none."""
STEPS = {"hang": 5, "network": 5, "corruption": 10, "straggler": 72}
SOURCE = """
    Written by benchmarks/delays.py from docs/measurements/faults-2026-11-28.json: a campaign of
    benchmarks/faults.py on 2026-11-28 in a job of two ranks on two cores that other processes
    shared, steps of 50 ms; from the fault to the first measure taken, by the journal. Of the n
    faults of a kind one counts with the worst delay, the others with the median of their run. One
    slow disk of 229 faults was not seen and is not in it; leaks of memory and exhausted file
    descriptors are left out, because their seconds include the fault itself.
"""
ASSUMED = """
    That a cluster is as quick as one machine. That a device that fails shows as a worker that
    fails or as an XID. Some delays are longer where steps are long, so these are at least `steps`
    steps of the job: a hang and a network that is broken five median steps (detection/hang.py),
    corruption those from one comparison of replicas to the next (ten in the campaign), a straggler
    72, which is the median of simulated trainings with steps of 10 s (docs/concepts/diagnosis.md).
"""


def spread(kind: Mapping[str, Any], rounds: Mapping[str, int]) -> list[float]:
    """The delays of one kind of fault, seconds, longest first: of `detected` faults one with the
    worst, the others with the medians of their runs, of which the longer ones are kept."""
    runs = zip(kind["median_s"], rounds.values(), strict=True)
    medians = sorted((one for one, times in runs for _ in range(times)), reverse=True)
    return [kind["worst_s"], *medians[: kind["detected"] - 1]]


def delays() -> dict[str, list[float]]:
    """By what a fault shows, in order. Raises KeyError for a kind that was not injected."""
    campaign = json.loads(MEASURED.read_text())
    faults, rounds = campaign["faults"], campaign["rounds"]
    elsewhere = {kind for kinds in KINDS.values() for kind in kinds if kind not in ENDS}
    ours = tuple(kind for kind in faults if kind not in (*elsewhere, *LEFT_OUT))
    kinds = {"worker": ours, **KINDS}
    return {
        shows: sorted(one for kind in names for one in spread(faults[kind], rounds))
        for shows, names in kinds.items()
    }


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
