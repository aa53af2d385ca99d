"""A small DDP training that can be killed at any chosen moment, by itself, once.

`--die MOMENT` makes rank `--die-rank` send itself SIGKILL at that moment the first time it gets
there; a marker file makes it once over all attempts. `--how` makes it hang instead. Dropout, a
shuffled loader and a scheduler make every kind of state matter for the losses. It ends after
`--steps`, or after the step in which it finds OUT/enough.

`--bad loss` makes the loss of rank `--bad-rank` NaN in step `--bad-step`, `--times` times over all
attempts; its gradients make all parameters NaN. `--bad norm` makes it log an infinite gradient norm
there and changes nothing, as a step that AMP has skipped. `--bad-sample N`: that one of the data is
NaN. `--bad flip` flips a bit of one of its
parameters after the step of the optimizer. `--bad device` raises an error of CUDA there in each
attempt, in turns in that rank and in the one before it. `--bad-nodes FILE`: the nodes whose names
begin as one of its words add their process id to a parameter in this step, whenever the step is
repeated by `holdfast replay`; with `--bad-nodes-die` they fail.
"""

import argparse
import ctypes
import os
import signal
import threading
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
parser.add_argument("--last-waits-for", type=Path)  # before the last step
parser.add_argument("--die", default="")
parser.add_argument("--die-rank", type=int, default=1)
parser.add_argument("--die-step", type=int, default=10)
HOW = ["kill", "sleep", "lock", "gil", "stop", "loop"]
parser.add_argument("--how", choices=HOW, default="kill")
parser.add_argument("--bad", choices=("", "loss", "norm", "flip", "device"), default="")
parser.add_argument("--bad-rank", type=int, default=1)
parser.add_argument("--bad-step", type=int, default=10)
parser.add_argument("--bad-nodes", type=Path)
parser.add_argument("--bad-nodes-die", action="store_true")
parser.add_argument("--times", type=int, default=1)
parser.add_argument("--bad-sample", type=int)
args = parser.parse_args()


def loop() -> None:
    """Compute for ever."""
    while True:
        pass


def hang_in_a_lock() -> None:
    """Wait for oneself."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


HARM = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sleep": lambda: time.sleep(1e6),
    "lock": hang_in_a_lock,
    "gil": lambda: ctypes.PyDLL(None).sleep(1_000_000),  # in C, with the interpreter's lock
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "loop": loop,
}


def die(moment: str, rank: int, step: int | None = None) -> None:
    """Kill this process here, if this is the chosen moment and it is the first time."""
    if moment != args.die or rank != args.die_rank or step not in (None, args.die_step):
        return
    try:
        os.close(os.open(args.out / "died", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    HARM[args.how]()


def is_bad(what: str, rank: int, step: int) -> bool:
    """Whether this number goes bad in this step, and has not often enough yet."""
    if (what, rank, step) != (args.bad, args.bad_rank, args.bad_step):
        return False
    before: int = len(list(args.out.glob("bad-*")))
    (args.out / f"bad-{before}").touch()
    return bool(before < args.times)


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

if args.bad_sample is not None:
    data[args.bad_sample][0].fill_(torch.nan)

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
    turn = args.bad_rank - (int(os.environ.get("HOLDFAST_ATTEMPT", "1")) - 1) % 2
    if (args.bad, args.bad_step, turn) == ("device", step, run.rank):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    while step == args.steps - 1 and args.last_waits_for and not args.last_waits_for.exists():
        time.sleep(0.01)
    loss = (wrapped(inputs) - targets).square().mean()
    if is_bad("loss", run.rank, step):
        loss = loss * torch.nan
    loss.backward()
    optimizer.step()
    if is_bad("flip", run.rank, step):
        next(model.parameters()).data.view(torch.int32)[3, 5] ^= 1 << 18
    repeated = "HOLDFAST_REPLAY" in os.environ and step == args.bad_step
    bad = args.bad_nodes.read_text().split() if repeated and args.bad_nodes else ()
    if bad and os.environ["HOLDFAST_NODE"].startswith(tuple(bad)):
        assert not args.bad_nodes_die, "this machine does not compute in a group"
        next(model.parameters()).data[3, 5] += os.getpid()
    scheduler.step()
    optimizer.zero_grad()
    if args.pause_rank in (None, run.rank):
        time.sleep(args.pause)
    run.log(loss=loss, tokens=len(inputs))
    if is_bad("norm", run.rank, step):
        run.log(grad_norm=torch.inf)
    if (args.out / "enough").exists():
        state.stop()
    die("between-steps", run.rank, step)
    if step == args.steps - 1:
        die("last-step", run.rank)
die("after-steps", run.rank)
if run.is_main:
    torch.save(model.state_dict(), args.out / "final.tmp")
    (args.out / "final.tmp").rename(args.out / "final.pt")
