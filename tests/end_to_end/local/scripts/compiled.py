"""Compiled blocks whose calls draw random numbers and change buffers.

Each rank tells before its first step, and after each, how often its process has compiled. A block
that goes leaves a file with its process in its name, so a copy in a warm worker is seen.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import nn

from holdfast.train import join

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--waits-for", type=Path)  # in the middle
args = parser.parse_args()


class Block(nn.Module):
    """What is repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As wide as `x`."""
        return x + nn.functional.dropout(self.norm(self.linear(x)), 0.2, self.training)

    def __del__(self) -> None:
        (args.out / f"gone-{os.getpid()}").touch()


torch.manual_seed(7)
model = nn.Sequential(Block(), Block())
run = join()
wrapped = run.parallelize(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = run.track(model=wrapped, optimizer=optimizer)


def tell(step: int) -> None:
    """How often this process has compiled."""
    frames = torch._dynamo.utils.counters["frames"]["total"]
    told = {"attempt": run.attempt, "rank": run.rank, "step": step, "frames": frames}
    with (args.out / "compiled.jsonl").open("a") as file:
        file.write(json.dumps(told) + "\n")


tell(-1)
for step, _ in state.steps(total=args.steps):
    drawn = torch.Generator().manual_seed(step * 100 + run.rank)
    inputs = torch.randn(16, 8, generator=drawn)
    loss = (wrapped(inputs) - inputs.abs()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    run.log(loss=loss)
    tell(step)
    while step == args.steps // 2 and args.waits_for and not args.waits_for.exists():
        time.sleep(0.01)
if run.is_main:
    torch.save(model.state_dict(), args.out / "final.tmp")
    (args.out / "final.tmp").rename(args.out / "final.pt")
