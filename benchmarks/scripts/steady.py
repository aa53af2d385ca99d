"""The overhead benchmark's script: the same steps in a bare loop, or in a loop of holdfast.train.

`steady.py --calibrate 0.05` prints the batch size with which a step takes that long here. Otherwise
it trains and leaves, as JSON in the file named by BENCHMARK_TIMES, the start of every step's own
work, its end, and so also what lies between two steps.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

WIDTH = 1024
LAYERS = 4  # 4.2 million parameters


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calibrate", type=float, metavar="SECONDS")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if args.calibrate:
        print(calibrate(model, optimizer, args.calibrate))
        return
    steps = bare(args.steps) if args.bare else tracked(args.steps, model, optimizer)
    inputs = torch.randn(args.batch, WIDTH)
    times = [work(model, optimizer, inputs, log) for log in steps]
    target = Path(os.environ["BENCHMARK_TIMES"])
    target.with_suffix(".unfinished").write_text(json.dumps(times))
    target.with_suffix(".unfinished").replace(target)


def work(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    log: Callable[[Tensor], None],
) -> tuple[float, float]:
    """One step; when it began and when its own arithmetic was done."""
    began = time.perf_counter()
    loss = mse_loss(model(inputs), inputs)
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()
    done = time.perf_counter()
    log(loss)
    return began, done


def bare(total: int) -> Iterator[Callable[[Tensor], None]]:
    """A loop that knows nothing of Holdfast and throws the loss away."""
    for _ in range(total):
        yield forget


def forget(_loss: Tensor) -> None:
    """What a loop without a library does with the loss."""


def tracked(
    total: int, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[Callable[[Tensor], None]]:
    """The loop of holdfast.train."""
    from holdfast.train import join

    run = join()
    state = run.track(model=run.parallelize(model), optimizer=optimizer)
    for _ in state.steps(total=total):
        yield lambda loss: run.log(loss=loss, tokens=1)


def calibrate(model: nn.Module, optimizer: torch.optim.Optimizer, wanted_s: float) -> int:
    """The batch size whose steps take about `wanted_s`, found by two measurements and a line."""
    small, large = 32, 256
    first, second = (_step_s(model, optimizer, size) for size in (small, large))
    each = max(1e-9, (second - first) / (large - small))
    return max(1, round(small + (wanted_s - first) / each))


def _step_s(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int) -> float:
    inputs = torch.randn(batch, WIDTH)
    times = sorted(
        done - began for began, done in (work(model, optimizer, inputs, forget) for _ in range(15))
    )
    return times[len(times) // 2]


if __name__ == "__main__":
    main()
