"""How long the first step after a kill takes where blocks are compiled, with caches and without.

    .venv/bin/python benchmarks/compiled.py [--json] [--kills N] [--quick]

The jobs, kills and measures are those of restart.py; the model is the Llama of examples/llm, its
four blocks compiled by `parallel.compile`. `cached` is a job as it is: compiled code lies in
`$HOLDFAST_HOME/compiled`, which the first attempt has filled. `uncached` has PyTorch's caches
turned off, as a machine has them that lost its temporary files. `eager` does not compile.
"""

import argparse

import restart
from kills import row
from table import report

COMMAND = [str(restart.BIN / "holdfast"), "run"]
JOB = str(restart.SCRIPTS / "compiled.yaml")
CONTESTANTS = {
    "cached": restart.Contestant([*COMMAND, JOB]),
    "uncached": restart.Contestant([*COMMAND, JOB], {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}),
    "eager": restart.Contestant([*COMMAND, "--parallel", "compile=false", JOB]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--kills", type=int, default=3, help="of each contestant")
    parser.add_argument("--quick", action="store_true", help="one kill of each")
    args = parser.parse_args()
    if args.quick:
        args.kills = 1
    plan = restart.Plan(
        kills=args.kills, least_steps=5, most_steps=30, limit_s=300.0, start_limit_s=600.0
    )
    kills = restart.compete(CONTESTANTS, plan, seed=0)
    report(
        "SIGKILL of one of two ranks → first new step, compiled blocks",
        {name: row(kills[name]) for name in CONTESTANTS},
        as_json=args.json,
        note="Times in seconds; median and worst of the kills that were recovered from.",
    )


if __name__ == "__main__":
    main()
