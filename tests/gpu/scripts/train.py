"""A small training on one device that harms itself once, in the way that it is told.

`--fault KIND` comes in step `--at` of the last rank, once over all attempts. `assert` gives a
kernel an index that it refuses, `memory` asks for more than there is, `kernel` starts one that runs
for minutes and says so in a file, so that somebody can kill it there. On a CPU they are what comes
closest. Each worker leaves a line in `workers.jsonl`: its backend, and how long it took to make the
context and to use it first.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from holdfast.train import join
from holdfast.train.data import loader

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--device", default="cuda:0")
parser.add_argument("--backend")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--pause", type=float, default=0.02)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--fault", default="")
parser.add_argument("--at", type=int, default=10)
parser.add_argument("--sharded", action="store_true")
args = parser.parse_args()
KERNEL_CYCLES = 600 * 2_000_000_000  # ten minutes
FAR_TOO_MUCH = 1 << 50  # bytes

# What people do above join(): none of it may take the GPU, or keep a warm worker from having one.
torch.manual_seed(7)
torch.cuda.manual_seed_all(7)
seen = torch.cuda.is_available(), torch.cuda.device_count()
model = nn.Sequential(
    nn.Linear(16, args.width), nn.Dropout(0.2), nn.ReLU(), nn.Linear(args.width, 4)
)
generator = torch.Generator().manual_seed(3)
data = [(x, x[:4].abs()) for x in torch.randn(256, 16, generator=generator)]


def once() -> bool:
    """Whether this is the first time, over all attempts."""
    try:
        os.close(os.open(args.out / "harmed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def harm(device: torch.device) -> None:
    """What `--fault` says."""
    on_gpu = device.type == "cuda"
    match args.fault:
        case "assert":
            torch.zeros(4, device=device)[torch.tensor([9], device=device)].sum().item()
        case "memory" if on_gpu:
            torch.empty(FAR_TOO_MUCH, dtype=torch.uint8, device=device)
        case "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate too much.")
        case "kernel":
            if on_gpu:
                torch.cuda._sleep(KERNEL_CYCLES)  # type: ignore[no-untyped-call]
            (args.out / "in-kernel").touch()
            if on_gpu:
                torch.cuda.synchronize(device)
            while not on_gpu:
                pass


def timed_set_device(device: Any) -> None:
    """What join() chooses the device with; the first use makes the context, and is here."""
    global context_s
    began = time.monotonic()
    set_device(device)
    torch.zeros(1, device=torch.accelerator.current_accelerator()).item()
    context_s = time.monotonic() - began


context_s = 0.0
set_device = torch.accelerator.set_device_index
torch.accelerator.set_device_index = timed_set_device
run = join(backend=args.backend, device=args.device)
began = time.monotonic()
torch.zeros(1, device=run.device).item()
first_use_s = time.monotonic() - began
torch.manual_seed(100 + run.rank)
if args.sharded:
    from torch.distributed.fsdp import fully_shard

    wrapped = model.to(run.device)
    fully_shard(wrapped, mesh=run.mesh)
else:
    wrapped = run.parallelize(model)  # type: ignore[assignment]
optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
state = run.track(model=wrapped, optimizer=optimizer, loader=loader(data, batch_size=8, seed=5))
line = {
    "attempt": run.attempt,
    "rank": run.rank,
    "backend": dist.get_backend(),
    "seen": seen,
    "context_s": context_s,
    "first_use_s": first_use_s,
}
with (args.out / "workers.jsonl").open("a") as file:
    file.write(json.dumps(line) + "\n")
for step, (inputs, targets) in state.steps(total=args.steps):
    found = wrapped(inputs.to(run.device))
    loss = (found - targets.to(run.device)).square().mean()
    loss.backward()
    total = loss.detach().clone()
    dist.all_reduce(total)  # what a script does with the group by itself
    optimizer.step()
    optimizer.zero_grad()
    run.log(loss=total, tokens=len(inputs))
    if args.fault and step == args.at and run.rank == run.world_size - 1 and once():
        harm(run.device)
    time.sleep(args.pause)
if run.is_main:
    parameters = [p.to_local() if hasattr(p, "to_local") else p for p in wrapped.parameters()]
    torch.save([p.detach().cpu() for p in parameters], args.out / "final.pt")
