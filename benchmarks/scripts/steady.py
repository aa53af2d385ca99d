"""The overhead benchmark's script: the same steps in a bare loop and in a loop of holdfast.train.

`steady.py --calibrate 0.05` prints the batch size with which a step takes that long here. Otherwise
it trains, a few steps of one loop and a few of the other in turns (or with `--bare` only one of
them), and leaves a list as JSON in the file named by BENCHMARK_TIMES: for every step its loop, when
its own work began and when that was done.

The loops take turns in one process because two processes with the same code differ by several per
cent in speed, by the luck of where their memory lies; that is twenty times what is to be measured.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

WIDTH = 1024
LAYERS = 4  # 4.2 million parameters
TURN = 8  # steps of one loop before it is the other's turn


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
    inputs = torch.randn(args.batch, WIDTH)
    loops = {"plain": bare(args.steps)}
    if not args.bare:
        loops["holdfast"] = tracked(args.steps, model, optimizer)
    times = [
        (name, *work(model, optimizer, inputs, log)) for name, log in taking_turns(loops, TURN)
    ]
    target = Path(os.environ["BENCHMARK_TIMES"])
    target.with_suffix(".unfinished").write_text(json.dumps(times))
    target.with_suffix(".unfinished").replace(target)


def taking_turns(
    loops: Mapping[str, Iterator[Callable[[Tensor], None]]], turn: int
) -> Iterator[tuple[str, Callable[[Tensor], None]]]:
    """`turn` steps of each loop in turn, until all are at their end."""
    going = dict(loops)
    while going:
        for name, loop in list(going.items()):
            left = turn
            for log in islice(loop, turn):
                left -= 1
                yield name, log
            if left:
                del going[name]


def work(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    log: Callable[[Tensor], None],
) -> tuple[float, float]:
    """One step; when it began and when its own arithmetic was done."""
    began = time.perf_counter()
    loss = mse_loss(model(inputs), inputs)
    optimizer.zero_grad(set_to_none=False)
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
    steps = (work(model, optimizer, inputs, forget) for _ in range(15))
    return min(done - began for began, done in steps)  # what others take away does not count


if __name__ == "__main__":
    main()
