"""A small DDP training of which one node is sick: the one that the file of `--sick` names. All wait
for that file in their first step.

`--how hang`: it never does step 35. `error`: it raises at each fifth step, once. `flip`: a bit of
its parameters flips before steps 12, 32 and 52. Where a step is repeated it computes nothing.
"""

import argparse
import os
import time
from pathlib import Path

import torch

from holdfast.train import join
from holdfast.train.data import loader

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--sick", type=Path, required=True)
parser.add_argument("--how", choices=("hang", "error", "flip"), required=True)
parser.add_argument("--steps", type=int, default=80)
parser.add_argument("--pause", type=float, default=0.05)
args = parser.parse_args()


def first_time(step: int) -> bool:
    """Whether no attempt has had its harm at this step before."""
    try:
        os.close(os.open(args.out / f"harm-{step}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def harm(step: int) -> None:
    """What this node does to itself in a step."""
    if args.how == "hang" and step == 35:
        time.sleep(1e6)
    if args.how == "error" and step % 5 == 4 and first_time(step):
        raise ValueError(step)
    if args.how == "flip" and step in (12, 32, 52) and first_time(step):
        next(model.parameters()).data.view(torch.int32)[0, 1] ^= 1 << 18


torch.manual_seed(7)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = [(x, x.abs()) for x in torch.randn(256, 8)]
run = join()
wrapped = run.parallelize(model)
state = run.track(model=wrapped, optimizer=optimizer, loader=loader(data, batch_size=8, seed=5))
for step, (inputs, targets) in state.steps(total=args.steps):
    while not args.sick.exists():
        time.sleep(0.01)
    sick = os.environ["HOLDFAST_NODE"].startswith(f"{args.sick.read_text()}-")
    assert not (sick and "HOLDFAST_REPLAY" in os.environ), "this machine does not compute"
    if sick:
        harm(step)
    loss = (wrapped(inputs) - targets).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(args.pause)
    run.log(loss=loss, tokens=len(inputs))
