"""A training whose ranks each have much that nobody else has, and notice when it is wrong.

Every step writes its number into all of this rank's own state; the next one looks whether it is
still there. A rank that went on with somebody else's state, an older or a torn one would end the
job with an assertion. It ends after `--steps`, or after the step in which it finds OUT/enough.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from holdfast.train import join

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--pause", type=float, default=0.05)
parser.add_argument("--mib", type=int, default=20)
parser.add_argument("--poison", type=int, default=0, help="step in which what was saved is spoilt")
parser.add_argument("--fails", type=int, default=0, help="step in which that shows")
parser.add_argument("--width", type=int, default=8, help="of what the model gives")
args = parser.parse_args()


class Own:
    """What this rank alone has."""

    def __init__(self) -> None:
        self.data = torch.zeros(args.mib << 18)
        self.spoilt = torch.zeros(1)

    def state_dict(self) -> dict[str, Any]:
        return {"data": self.data, "spoilt": self.spoilt}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.data.copy_(state["data"])
        self.spoilt.copy_(state["spoilt"])


model = torch.nn.Linear(8, args.width)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run = join()
torch.manual_seed(3)
wrapped = run.parallelize(model)
own = Own()
state = run.track(model=wrapped, optimizer=optimizer, own=own)
for step, _ in state.steps(total=args.steps):
    if step:
        expected = float(step * 100 + run.rank)
        assert bool((own.data == expected).all()), (step, own.data[:4], own.data[-4:])
    if args.fails and step == args.fails:
        assert not own.spoilt.any(), "a seed of doom"
    inputs = torch.ones(4, 8) * (step % 7)  # so that the loss stays finite
    loss = wrapped(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    own.data.fill_(float((step + 1) * 100 + run.rank))
    if args.poison and step == args.poison and not (args.out / "spoilt").exists():
        own.spoilt.fill_(1.0)
    time.sleep(args.pause)
    run.log(loss=loss, tokens=1)
    if args.fails and step == args.fails - 1:
        (args.out / "spoilt").touch()
    if (args.out / "enough").exists():
        state.stop()
if run.is_main:
    (args.out / "final").touch()
