"""How long trainers stand still when one of two ranks is killed: by themselves, and under Holdfast.

    .venv/bin/python benchmarks/frameworks.py [--quick] [--json] [--kills N] [--only NAME ...]

For each trainer the same script, which saves every 20 steps and resumes from that: restarted by
torchrun, with the setting under which that recovers best (`alone`); unmodified under `holdfast run`
with the integration off (`unmodified`); and with a snapshot after each step (`kept`), as Holdfast
runs it by default, or for Accelerate and DeepSpeed with the lines that their integrations need.
They take turns, one job each, as in restart.py: the same moments, the same ranks, one machine, and
the time from SIGKILL to the first step that a worker of the next attempt has finished. `faster`
compares a trainer with itself under torchrun: by the time to the first step that had not been
finished before, because steps that are repeated are lost time as well. `restarts` compares the time
to the first step of all: those who resume from the same checkpoints repeat the same steps, which
nobody who restarts them can make shorter.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from statistics import median

from kills import Kill, row
from restart import BIN, OWN_STORE, QUICK, SCRIPTS, TORCHRUN, Contestant, Plan, compete
from table import Row, report

TRAINERS = {
    "transformers": "trainer",
    "lightning": "fit",
    "accelerate": "loop",
    "deepspeed": "engine",  # in an extra of its own
}
ALONE, UNMODIFIED, KEPT = "alone", "unmodified", "kept"


def contestants() -> dict[str, Contestant]:
    """Three for each trainer."""
    found = {}
    for trainer, script in TRAINERS.items():
        run = [str(BIN / "holdfast"), "run"]
        plain = Contestant([*TORCHRUN, str(SCRIPTS / f"{script}_script.py")], OWN_STORE)
        found[f"{trainer} {ALONE}"] = plain
        found[f"{trainer} {UNMODIFIED}"] = Contestant([*run, str(SCRIPTS / f"{script}_alone.yaml")])
        found[f"{trainer} {KEPT}"] = Contestant([*run, str(SCRIPTS / f"{script}_kept.yaml")])
    return found


def main() -> None:
    args = _arguments()
    full = Plan(kills=args.kills, least_steps=5, most_steps=30, limit_s=args.limit)
    missing = [trainer for trainer in TRAINERS if find_spec(trainer) is None]
    taking_part = {n: c for n, c in contestants().items() if _takes_part(n, args.only, missing)}
    for trainer in missing:
        print(f"{trainer} is not installed", file=sys.stderr)
    kills = compete(taking_part, QUICK_TRAINERS if args.quick else full, args.seed)
    report(
        "SIGKILL of one of two ranks → first new step, by trainer",
        {name: {**row(had), **beside(name, kills), **parts(had)} for name, had in kills.items()},
        as_json=args.json,
        note="Times in seconds; `faster`, `restarts`: caught_up_median and median of the trainer "
        "alone over those of this one.",
    )


def _takes_part(name: str, only: list[str] | None, missing: list[str]) -> bool:
    return name in only if only else name.rpartition(" ")[0] not in missing


QUICK_TRAINERS = Plan(kills=QUICK.kills, least_steps=4, most_steps=8, limit_s=60.0)


def beside(name: str, kills: dict[str, list[Kill]]) -> Row:
    """How much faster this is than the same trainer alone: to a new step, and to any."""
    alone = kills.get(f"{name.rpartition(' ')[0]} {ALONE}", [])
    return {
        "faster": _ratio([k.caught_up_s for k in alone], [k.caught_up_s for k in kills[name]]),
        "restarts": _ratio([k.took_s for k in alone], [k.took_s for k in kills[name]]),
    }


def parts(kills: list[Kill]) -> Row:
    """Medians of the phases of a restart: until the script's imports are done (the failure was
    noticed, processes are there), until model and trainer are made, until training begins (process
    group, state), and the first step."""
    known = [kill.phases for kill in kills if kill.phases]
    names = ("import_s", "build_s", "begin_s", "step_s")
    return {n: median(p[at] for p in known) if known else None for at, n in enumerate(names)}


def _ratio(alone: Sequence[float | None], here: Sequence[float | None]) -> float | None:
    own, ours = ([one for one in took if one is not None] for took in (alone, here))
    return round(median(own) / median(ours), 2) if own and ours else None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one kill each")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--kills", type=int, default=6, help="of each contestant")
    parser.add_argument("--limit", type=float, default=90.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=contestants(), metavar="NAME")
    return parser.parse_args()


if __name__ == "__main__":
    main()
