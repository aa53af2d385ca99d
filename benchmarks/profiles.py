"""What `holdfast profile` costs a step of which no profile is wanted.

A worker looks at one number of its progress page where a step ends. The call that does so and an
empty call take turns, ABBA, in blocks, so that a machine that becomes busy does not favour one.
Prints a table, with `--json` its rows as JSON.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

from holdfast import step_profile
from holdfast.page import Page
from table import report

CALLS = 20_000  # of a block


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    step_profile.watch(Page(Page.create()))
    own, empty = turns(args.pairs)
    added = median(a - b for a, b in zip(own, empty, strict=True))
    row = {"pairs": args.pairs, "call_ns": median(own), "empty_ns": median(empty)}
    row = {name: round(value, 1) for name, value in {**row, "added_ns": added}.items()}
    report("A step of which no profile is wanted", {"its end": row}, as_json=args.json)


def turns(pairs: int) -> tuple[list[float], list[float]]:
    """Nanoseconds of a call in each block: ours, and an empty one."""
    found: dict[Callable[[int], None], list[float]] = {step_profile.step_ended: [], _empty: []}
    for number in range(pairs):
        order = list(found) if number % 2 else list(reversed(found))
        for call in order:
            found[call].append(_block(call))
    return found[step_profile.step_ended], found[_empty]


def _block(call: Callable[[int], None]) -> float:
    began = time.thread_time_ns()
    for step in range(CALLS):
        call(step)
    return (time.thread_time_ns() - began) / CALLS


def _empty(_step: int) -> None:
    """What a call costs that does nothing."""


if __name__ == "__main__":
    main()
