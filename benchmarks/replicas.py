"""What comparing replicas costs: summing the bits of a model's parameters, once.

    .venv/bin/python benchmarks/replicas.py [--quick] [--json] [--threads N]

The parameters are those of a transformer (12 tensors a layer) of some size, in bfloat16, on the GPU
where there is one, else on the CPU with N threads (1, as workers have where a node runs several).
`seconds` is the median of some turns, up to the digest on the CPU; `training_s` how long the
training thread is kept, which on a GPU only starts the kernels. `gib_s` is what was read each
second, `copy_s` the time of copying the same parameters into memory that has been touched, which is
the least that a snapshot costs. `every_10`: the share of a 50 ms step, at every tenth.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

from holdfast.train import replicas
from table import Row, report

SIZES = {"100 M": (768, 14), "1,000 M": (2048, 20), "7,000 M": (4096, 35)}  # width, layers
TURNS = 7


def main() -> None:
    args = _arguments()
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
    return parser.parse_args()


if __name__ == "__main__":
    main()
