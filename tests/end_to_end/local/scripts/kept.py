"""A small training whose workers can be kept: DDP (made by hand too), FSDP2 and HSDP on the CPU.

Each process leaves a file `built-PID` when it runs the script from its top, and writes the losses
of each step it has completed, bit for bit, into `rank-R.jsonl`; at the end a digest of what it has.
`--die RANK:STEP` makes a rank harm itself in that step, `--how`, once over all attempts. `--again
MOMENT` makes its successor die, too. `--gate RANK:STEP` makes a rank wait there to be killed, in
the first attempt. `--own` is what makes workers unfit to be kept. `--carry`: every other turn only
adds to gradients, which are not averaged before the next, and each ends with an evaluation; so a
turn that is discarded leaves in its process what a new one does not have.
"""

import argparse
import ctypes
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from holdfast.train import join
from holdfast.train.data import loader

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--kinds", default="ddp")
parser.add_argument("--pause", type=float, default=0.01)
parser.add_argument("--die", default="")  # RANK:STEP,...
parser.add_argument("--gate", default="")  # RANK:STEP
parser.add_argument("--how", choices=("kill", "raise", "hang"), default="kill")
parser.add_argument("--again", choices=("", "built", "joined", "tracked"), default="")
parser.add_argument("--declare", action="store_true")  # that it can be kept
parser.add_argument("--carry", action="store_true")
parser.add_argument("--undeclared-rank", default="")  # which does not declare it
parser.add_argument("--own", choices=("", "group"), default="")
parser.add_argument("--sleepy-rank", type=int, default=-1)  # does not come to the end of a step
parser.add_argument("--sleepy-step", type=int, default=-1)
parser.add_argument("--sleepy-how", choices=("sleep", "gil"), default="sleep")
args = parser.parse_args()
ASLEEP: dict[str, Callable[[], object]] = {
    "sleep": lambda: time.sleep(1e6),
    "gil": lambda: ctypes.PyDLL(None).sleep(1_000_000),  # in C, with the interpreter's lock
}
pairs = (pair.split(":") for pair in args.die.split(",") if pair)
deaths = {(int(step), int(rank)) for rank, step in pairs}
with (args.out / f"built-{os.getpid()}").open("a") as file:
    file.write("imported and built\n")


def once(name: str) -> bool:
    """Whether this is the first time, over all attempts."""
    try:
        os.close(os.open(args.out / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die_again(moment: str) -> None:
    """The successor of the one that has died, at this moment."""
    if moment == args.again and any(args.out.glob("died-*")) and once("again"):
        os.kill(os.getpid(), signal.SIGKILL)


def harm() -> None:
    """What `--how` says."""
    match args.how:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise ValueError("a bad batch")
        case "hang":
            time.sleep(1e6)


def tell(rank: int, **what: object) -> None:
    """One line about this rank."""
    with (args.out / f"rank-{rank}.jsonl").open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), **what}) + "\n")


def shard(kind: str, model: Any) -> Any:
    """As `kind` says."""
    if kind == "ddp":
        return run.parallelize(model)
    if kind == "hand":
        return DistributedDataParallel(model)
    world = run.world_size
    if kind == "fsdp":
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    else:
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def made() -> nn.Sequential:
    """A model in which random numbers matter."""
    layers = nn.Linear(16, 64), nn.Dropout(0.2), nn.ReLU(), nn.Linear(64, 4), nn.BatchNorm1d(4)
    return nn.Sequential(*layers)


def turn(model: Any, whole: bool) -> AbstractContextManager[None]:
    """For backward: unless it makes a step `whole`, ranks only add to their gradients."""
    if isinstance(model, DistributedDataParallel):
        return nullcontext() if whole else model.no_sync()
    model.set_requires_gradient_sync(whole)
    return nullcontext()


def evaluated(model: Any, inputs: Any, targets: Any) -> str:
    """A loss, without anything that backward would clear up."""
    model.eval()
    with torch.no_grad():
        loss = (model(inputs) - targets).square().mean()
    model.train()
    return float(loss).hex()


torch.manual_seed(7)
plain = {kind: made() for kind in args.kinds.split(",")}
generator = torch.Generator().manual_seed(3)
data = [(x, x[:4].abs()) for x in torch.randn(256, 16, generator=generator)]
die_again("built")
run = join(in_process=args.declare and os.environ["RANK"] != args.undeclared_rank)
die_again("joined")
said = torch.tensor(float(run.rank + 1))
dist.all_reduce(said)  # a collective above the loop, whose outcome matters
scale = float(said) / run.world_size
torch.manual_seed(100 + run.rank)
models = {kind: shard(kind, model) for kind, model in plain.items()}
never_run = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (run.world_size,)))
idle = {"never_run": never_run} if "fsdp" in models else {}
optimizers = {k: torch.optim.AdamW(model.parameters(), lr=1e-2) for k, model in models.items()}
state = run.track(
    loader=loader(data, batch_size=8, seed=5),
    **models,
    **idle,
    **{f"optimizer_{kind}": optimizer for kind, optimizer in optimizers.items()},
)
die_again("tracked")
for step, (inputs, targets) in state.steps(total=args.steps):
    if args.own == "group" and step == 3:
        dist.new_group()
    losses: dict[str, tuple[str, ...]] = {}
    whole = not args.carry or step % 2 == 1
    for kind, model in models.items():
        with turn(model, whole):
            loss = (model(inputs) - targets).square().mean() * scale
        if (step, run.rank) in deaths and once(f"died-{step}"):
            harm()
        if args.gate == f"{run.rank}:{step}" and run.attempt == 1:
            with run.section("gate"):
                time.sleep(1e6)
        with turn(model, whole):
            loss.backward()
        if (step, run.rank) == (args.sleepy_step, args.sleepy_rank) and once("slept"):
            ASLEEP[args.sleepy_how]()
        if whole:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizers[kind].step()
            optimizers[kind].zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses[kind] = (loss.item().hex(), mean.item().hex())
        if args.carry:
            losses[kind] = (*losses[kind], evaluated(model, inputs, targets))
    time.sleep(args.pause)
    run.log(loss=loss)
    tell(run.rank, attempt=run.attempt, step=step, losses=losses)
digest = hashlib.sha256()
for model in models.values():
    for value in model.state_dict().values():
        here = value.to_local() if hasattr(value, "to_local") else value
        digest.update(here.detach().numpy().tobytes())
tell(run.rank, final=digest.hexdigest())
