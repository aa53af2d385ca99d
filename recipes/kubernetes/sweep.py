"""Run one trial of a sweep: the combination of values whose number is JOB_COMPLETION_INDEX.

    sweep.py --over lr=1e-3,3e-3 --over width=128,256 -- python train.py --steps 500

is four trials: index 0 runs `python train.py --steps 500 --lr 1e-3 --width 128`. The program takes
the place of this one, so that signals and the exit status are its own.
"""

import argparse
import itertools
import os
import sys

Values = tuple[str, list[str]]


def values(text: str) -> Values:
    """`lr=1e-3,3e-3` as the name and its values."""
    name, equals, listed = text.partition("=")
    if not (name and equals and listed):
        raise argparse.ArgumentTypeError("write NAME=VALUE,VALUE,...")
    return name, listed.split(",")


def chosen(over: list[Values], index: int) -> list[str]:
    """Options of the trial with this number; the last name varies fastest."""
    names = [name for name, _ in over]
    trials = list(itertools.product(*(listed for _, listed in over)))
    if index >= len(trials):
        sys.exit(f"there are {len(trials)} trials, so none has the number {index}")
    return [word for pair in zip(names, trials[index], strict=True) for word in _option(*pair)]


def _option(name: str, value: str) -> tuple[str, str]:
    return f"--{name}", value


def main() -> None:
    parser = argparse.ArgumentParser(description="Run one trial of a sweep.")
    parser.add_argument("--over", type=values, action="append", required=True, metavar="NAME=A,B")
    parser.add_argument("program", nargs="+", help="program and arguments, after --")
    args = parser.parse_args()
    options = chosen(args.over, int(os.environ.get("JOB_COMPLETION_INDEX", "0")))
    print("trial:", *args.program, *options, flush=True)
    os.execvp(args.program[0], [*args.program, *options])


if __name__ == "__main__":
    main()
