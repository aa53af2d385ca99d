"""What comparing replicas costs; with `--loss`, what losing one costs: Holdfast beside torchft.

    .venv/bin/python benchmarks/replicas.py [--quick] [--json] [--threads N]
    .venv/bin/python benchmarks/replicas.py --loss [--quick] [--json] [--kills N] [--python PATH]

Comparing is summing the bits of a model's parameters, once.

The parameters are those of a transformer (12 tensors a layer) of some size, in bfloat16, on the GPU
where there is one, else on the CPU with N threads (1, as workers have where a node runs several).
`seconds` is the median of some turns, up to the digest on the CPU; `training_s` how long the
training thread is kept, which on a GPU only starts the kernels. `gib_s` is what was read each
second, `copy_s` the time of copying the same parameters into memory that has been touched, which is
the least that a snapshot costs. `every_10`: the share of a 50 ms step, at every tenth.

Losing is killing one of two replicas of one rank, as in benchmarks/restart.py, whose training and
columns these are: the time runs from SIGKILL to the first step that the other has done without it.
The contestants take turns, one job each. `torchft` has the DDP that it recommends and the times of
its README; `torchft_hooks` has its DDP of hooks, and a lighthouse that gives a replica up after 1 s
instead of 5 s. `--python` is the interpreter that has torchft, if it is not this one. Where it has
none, or cannot import it, a line says why, and Holdfast is measured alone.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch

import kills
from holdfast.train import replicas
from restart import CONTESTANTS, QUICK, SCRIPTS, Contestant, Plan, compete
from table import Row, report

SIZES = {"100 M": (768, 14), "1,000 M": (2048, 20), "7,000 M": (4096, 35)}  # width, layers
TURNS = 7


def main() -> None:
    args = _arguments()
    if args.loss:
        lose(args)
        return
    torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows: dict[str, Row] = {}
    for name, (width, layers) in SIZES.items():
        if args.quick and len(rows) == 1:
            break
        if device == "cpu" and layers * width**2 > 1e8:
            break
        rows[f"{name} on {device}"] = row(parameters(width, layers, device))
    report("What comparing replicas costs", rows, as_json=args.json)


def lose(args: argparse.Namespace) -> None:
    """Kill replicas of both, in turns."""
    contestants = {"replicas": CONTESTANTS["replicas"], **_theirs(args.python)}
    plan = QUICK if args.quick else Plan(args.kills, least_steps=5, most_steps=30, limit_s=60.0)
    had = compete(contestants, replace(plan, limit_s=60.0), seed=0)
    report(
        "SIGKILL of one of two replicas → first step of the other without it",
        {name: kills.row(had[name]) for name in contestants},
        as_json=args.json,
        note="Times in seconds; median and worst of the kills that were recovered from. kept: "
        "processes that have outlived it.",
    )


def _theirs(python: str) -> dict[str, Contestant]:
    """Of torchft, where there is one; else say why there is none."""
    code = "import torchft, importlib.metadata as m; print(m.version('torchft'))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if found.returncode:
        why = (found.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"skipped: torchft, which {python} cannot import: {why}", flush=True)
        return {}
    print(f"torchft {found.stdout.strip()}", flush=True)
    run = [python, str(SCRIPTS / "torchft_run.py")]
    return {
        "torchft": Contestant(run),
        "torchft_hooks": Contestant([*run, "--hooks", "--heartbeat-timeout-ms", "1000"]),
    }


def parameters(width: int, layers: int, device: str) -> list[torch.Tensor]:
    """Those of some layers: four square matrices, two that are four times as long, six vectors."""
    shapes = [(width, width)] * 4 + [(width, 4 * width)] * 2 + [(width,)] * 6
    kind = torch.bfloat16
    return [torch.ones(shape, dtype=kind, device=device) for shape in shapes * layers]


def row(tensors: list[torch.Tensor]) -> Row:
    """The figures of one model."""
    size = sum(tensor.nbytes for tensor in tensors)
    into = [torch.empty_like(tensor) for tensor in tensors]
    for target, source in zip(into, tensors, strict=True):
        target.copy_(source)
    whole = timed(lambda: replicas._digest(replicas._sums(tensors).cpu()), tensors[0])
    begun = timed(lambda: replicas._sums(tensors), tensors[0], wait=False)
    copied = timed(lambda: torch._foreach_copy_(into, tensors), tensors[0])
    return {
        "seconds": whole,
        "training_s": begun,
        "gib_s": size / whole / (1 << 30),
        "copy_s": copied,
        "every_10": whole / (10 * 0.05),
    }


def timed(work: Callable[[], object], where: torch.Tensor, *, wait: bool = True) -> float:
    """The median of some turns."""
    taken = []
    for _ in range(TURNS + 2):
        _settle(where)
        began = time.perf_counter()
        work()
        if wait:
            _settle(where)
        taken.append(time.perf_counter() - began)
    return median(taken[2:])


def _settle(where: torch.Tensor) -> None:
    if where.is_cuda:
        torch.cuda.synchronize()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--loss", action="store_true", help="lose replicas, do not compare them")
    parser.add_argument("--kills", type=int, default=6, help="of each contestant, with --loss")
    parser.add_argument("--python", default=sys.executable, metavar="PATH")
    return parser.parse_args()


if __name__ == "__main__":
    main()
