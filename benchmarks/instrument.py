"""What counting the steps of a plain script costs: the same steps with the hook and without.

    .venv/bin/python benchmarks/instrument.py [--quick] [--json] [--turns N]

One process on one thread, because two processes with the same code differ by more than what is to
be measured; in CPU time of that thread, because others may want the cores. Short blocks of steps
with the hook of `holdfast.optimizer_steps` and without it take turns, ABBA, so that a machine that
becomes slower favours neither; steps are calibrated to about 50 ms and about 2 ms. `overhead` is
the median over the pairs of blocks of how much longer the median step is, `error` how far it may be
off (1.57 times the distance between the quartiles, over the root of the number of pairs: the notch
of a box plot). `hook_s` is the cost itself: how much longer a step of an optimizer of one number
takes, below a stack of 40 frames as trainers have it; `hook_share` what that is of a step. `look_s`
is what a look at a few gradients takes, `norm_s` one with the norm of all; `watch_share` what both
are of the time, as often as they are done (`holdfast.gradient_watch`). Below the table: what a
worker pays for being asked when it entered its collectives, by which stragglers are found.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch
import torch._dynamo
from torch import nn
from torch.nn.functional import mse_loss

from holdfast import flight_recorder, optimizer_steps
from holdfast.collectives import RECENT_MAX
from holdfast.gradient_watch import LOOK_SHARE, NORM_SHARE, GradientWatch
from holdfast.page import Page
from holdfast.shell.straggler_sampling import EVERY_S
from table import Row, report

LENGTHS_S = {"50 ms": 0.05, "2 ms": 0.002}
BLOCK_S = 0.15  # of one turn
STACK = 40
TINY_STEPS = 5000


class Shape(NamedTuple):
    """What makes a step as long as it is."""

    width: int
    layers: int
    batch: int


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    page = Page(Page.create())
    hook_s = _hook_s(page)
    rows: dict[str, Row] = {}
    for name, wanted_s in LENGTHS_S.items():
        print(f"steps of {name}", file=sys.stderr, flush=True)
        shape = _calibrated(wanted_s)
        found = row(*turns(page, shape, wanted_s, 20 if args.quick else args.turns), hook_s)
        rows[name] = {**found, **watching(page, shape, wanted_s)}
    asked_s = _question_s()
    note = f"A question about stragglers costs a worker {1000 * asked_s:.2f} ms"
    note = f"{note} each {EVERY_S:g} s: {asked_s / EVERY_S:.4%} of its time."
    report(
        "What counting optimizer steps and watching their gradients costs",
        rows,
        as_json=args.json,
        note=note,
    )


def watching(page: Page, shape: Shape, step_s: float) -> Row:
    """What the gradients of such a model take to be looked at."""
    optimizer = _made(shape)[1]
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    watch = GradientWatch(page)
    look_s, norm_s = (
        _block(partial(watch.look_at, optimizer, 1, 0.0, whole=whole), 200)
        for whole in (False, True)
    )
    shares = min(LOOK_SHARE, look_s / step_s), min(NORM_SHARE, norm_s / step_s)
    rounded = {"look_s": round(look_s, 7), "norm_s": round(norm_s, 7)}
    return {**rounded, "watch_share": round(sum(shares), 6)}


def turns(page: Page, shape: Shape, wanted_s: float, count: int) -> tuple[list[float], list[float]]:
    """The median step of each block, with the hook and without."""
    step = _training(shape)
    steps = max(3, round(BLOCK_S / wanted_s))
    _block(step, steps)
    found: dict[bool, list[float]] = {True: [], False: []}
    for counted in _abba(count):
        if counted:
            optimizer_steps.observe(page, flight_recorder.step_ended)
        found[counted].append(_block(step, steps))
        optimizer_steps.leave_to_the_script()
    return found[True], found[False]


def row(counted: list[float], plain: list[float], hook_s: float) -> Row:
    """One line of the table."""
    excess = [own / other - 1 for own, other in zip(counted, plain, strict=True)]
    low, _, high = quantiles(excess, n=4)
    return {
        "pairs": len(excess),
        "plain_s": round(median(plain), 6),
        "counted_s": round(median(counted), 6),
        "overhead": round(median(excess), 5),
        "error": round(1.57 * (high - low) / len(excess) ** 0.5, 5),
        "hook_s": round(hook_s, 7),
        "hook_share": round(hook_s / median(plain), 6),
    }


def _abba(count: int) -> Iterator[bool]:
    for number in range(count):
        yield from (True, False) if number % 2 else (False, True)


def _block(step: Callable[[], None], steps: int) -> float:
    return median(_length(step) for _ in range(steps))


def _shortest(shape: Shape) -> float:
    step = _training(shape)
    return min(_length(step) for _ in range(15))  # what others slow down does not count


def _length(step: Callable[[], None]) -> float:
    began = time.thread_time()
    step()
    return time.thread_time() - began


def _made(shape: Shape) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = (nn.Linear(shape.width, shape.width) for _ in range(shape.layers))
    model = nn.Sequential(*layers)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def _training(shape: Shape) -> Callable[[], None]:
    model, optimizer = _made(shape)
    inputs = torch.randn(shape.batch, shape.width)

    def step() -> None:
        torch.autograd.backward(mse_loss(model(inputs), inputs))
        optimizer.step()
        optimizer.zero_grad()

    return step


def _calibrated(wanted_s: float) -> Shape:
    """The batch with which a step takes about so long, from two measurements and a line."""
    width, layers = (1024, 4) if wanted_s > 0.01 else (128, 4)
    small, large = 16, 256
    first, second = (_shortest(Shape(width, layers, size)) for size in (small, large))
    each = max(1e-9, (second - first) / (large - small))
    return Shape(width, layers, max(1, round(small + (wanted_s - first) / each)))


def _hook_s(page: Page) -> float:
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    optimizer: Any = torch.optim.SGD([parameter], lr=0.1)
    costs = []
    for _ in range(9):
        plain = _below(STACK, lambda: _block(optimizer.step, TINY_STEPS))
        optimizer_steps.observe(page, flight_recorder.step_ended)
        costs.append(_below(STACK, lambda: _block(optimizer.step, TINY_STEPS)) - plain)
        optimizer_steps.leave_to_the_script()
    return median(costs)


def _question_s() -> float:
    """Processor time of an answer from a full recorder, with the times of its newest entries."""
    with tempfile.TemporaryDirectory() as folder:
        place = f"file://{folder}/store"
        torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
        number = torch.zeros(1)
        for _ in range(flight_recorder.ENTRIES):
            torch.distributed.all_reduce(number)
        costs = []
        for _ in range(50):
            began = time.thread_time()
            flight_recorder.read(RECENT_MAX, kinds=False)
            costs.append(time.thread_time() - began)
        torch.distributed.destroy_process_group()
    return median(costs)


def _below(frames: int, work: Callable[[], float]) -> float:
    return work() if frames == 0 else _below(frames - 1, work)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="20 pairs, half a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--turns", type=int, default=150, help="pairs of blocks of each length")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault(flight_recorder.SIZE, str(flight_recorder.ENTRIES))
    os.environ.setdefault("TORCHELASTIC_RESTART_COUNT", "1")  # it need not say what it does
    main()
