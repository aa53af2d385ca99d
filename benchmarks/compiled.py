"""How long the first step after a kill takes where blocks are compiled, with caches and without.

    .venv/bin/python benchmarks/compiled.py [--json] [--kills N] [--quick]

The jobs, kills and measures are those of restart.py; the model is the Llama of examples/llm, its
four blocks compiled by `parallel.compile`. `cached` is a job as it is: compiled code lies in
`$HOLDFAST_HOME/compiled`, which the first attempt has filled, and workers that wait trace the
blocks ahead. `untraced` leaves the latter out. `uncached` also has PyTorch's caches turned off, as
a machine has them that lost its temporary files. `eager` does not compile. Kills come late enough
for the next workers to be ready. `first_step_s` is the first step alone, in the rank that finishes
it first, from the body of its loop on, `first_steps` the same in steps of the attempt before.
"""

import argparse
from statistics import median

import restart
from kills import PHASES, Kill, row
from table import Row, report

COMMAND = [str(restart.BIN / "holdfast"), "run"]
JOB = str(restart.SCRIPTS / "compiled.yaml")
UNTRACED = {"HOLDFAST_TRACE_AHEAD": "0"}
CONTESTANTS = {
    "cached": restart.Contestant([*COMMAND, JOB]),
    "untraced": restart.Contestant([*COMMAND, JOB], UNTRACED),
    "uncached": restart.Contestant(
        [*COMMAND, JOB], {**UNTRACED, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    ),
    "eager": restart.Contestant([*COMMAND, "--parallel", "compile=false", JOB]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--kills", type=int, default=3, help="of each contestant")
    parser.add_argument("--quick", action="store_true", help="one kill of each")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, metavar="NAME")
    args = parser.parse_args()
    if args.quick:
        args.kills = 1
    plan = restart.Plan(
        kills=args.kills, least_steps=150, most_steps=200, limit_s=300.0, start_limit_s=600.0
    )
    names = args.only or [*CONTESTANTS]
    kills = restart.compete({name: CONTESTANTS[name] for name in names}, plan, seed=0)
    report(
        "SIGKILL of one of two ranks → first new step, compiled blocks",
        {name: {**row(kills[name]), **first_step(kills[name])} for name in names},
        as_json=args.json,
        note="Times in seconds; median and worst of the kills that were recovered from.",
    )


def first_step(kills: list[Kill]) -> Row:
    """How long the first step after the kills took, medians."""
    took = [
        (kill.phases[PHASES.index("training") + 1], kill.took_s - kill.net_s)
        for kill in kills
        if kill.phases and kill.took_s is not None and kill.net_s is not None
    ]
    return {
        "first_step_s": median(first for first, _ in took) if took else None,
        "first_steps": median(first / step for first, step in took) if took else None,
    }


if __name__ == "__main__":
    main()
