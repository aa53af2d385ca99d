"""A small DDP training that can be killed at any chosen moment, by itself, once.

`--die MOMENT` makes rank `--die-rank` send itself SIGKILL at that moment the first time it gets
there; a marker file makes it once over all attempts. Dropout, a shuffled loader and a scheduler
make every kind of state matter for the losses.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

from holdfast.checkpoint.arena import Cell
from holdfast.train import join
from holdfast.train.data import loader

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--pause", type=float, default=0.02)
parser.add_argument("--pause-rank", type=int)  # who pauses, if not everybody
parser.add_argument("--die", default="")
parser.add_argument("--die-rank", type=int, default=1)
parser.add_argument("--die-step", type=int, default=10)
args = parser.parse_args()


def die(moment: str, rank: int, step: int | None = None) -> None:
    """Kill this process here, if this is the chosen moment and it is the first time."""
    if moment != args.die or rank != args.die_rank or step not in (None, args.die_step):
        return
    try:
        os.close(os.open(args.out / "died", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(moment: str, inner, after: int = 0):  # type: ignore[no-untyped-def]
    """`inner`, but deadly at its call number `after`."""
    calls = 0

    def call(*a, **k):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls > after:
            die(moment, int(os.environ.get("RANK", "-1")))
        return inner(*a, **k)

    return call


torch.manual_seed(7)
model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.2), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
generator = torch.Generator().manual_seed(3)
data = [(x, x[:4].abs()) for x in torch.randn(256, 16, generator=generator)]

die("before-join", int(os.environ.get("RANK", "-1")))
torch.distributed.init_process_group = deadly("rendezvous", torch.distributed.init_process_group)
Cell.commit = deadly("snapshot", Cell.commit, after=20)  # type: ignore[method-assign]
run = join()
torch.manual_seed(100 + run.rank)
wrapped = run.parallelize(model)
state = run.track(
    model=wrapped,
    optimizer=optimizer,
    loader=loader(data, batch_size=8, seed=5),
    scheduler=scheduler,
)
for step, (inputs, targets) in state.steps(total=args.steps):
    if step == 0:
        die("first-step", run.rank)
    loss = (wrapped(inputs) - targets).square().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if args.pause_rank in (None, run.rank):
        time.sleep(args.pause)
    run.log(loss=loss, tokens=len(inputs))
    die("between-steps", run.rank, step)
    if step == args.steps - 1:
        die("last-step", run.rank)
die("after-steps", run.rank)
if run.is_main:
    torch.save(model.state_dict(), args.out / "final.tmp")
    (args.out / "final.tmp").rename(args.out / "final.pt")
