"""The restart benchmark's script as users write it for torchrun: torch.save every 20 steps.

Rank 0 writes parameters and optimizer whole or not at all; every rank loads them after a restart.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from network import StepLog, batch_of, network

EVERY = 20


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    path = Path(os.environ["BENCHMARK_CHECKPOINT"])
    done = load(path, model, optimizer)
    log = StepLog()
    for step in range(done, int(os.environ["BENCHMARK_TOTAL"])):
        inputs, targets = batch_of(step, rank)
        loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        log.done(step + 1)
        if rank == 0 and (step + 1) % EVERY == 0:
            save(path, step + 1, model, optimizer)


def load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Steps done according to the checkpoint; 0 if there is none yet."""
    if not path.exists():
        return 0
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def save(path: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the checkpoint by rename, so that a kill leaves the old one."""
    unfinished = path.with_suffix(".unfinished")
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, unfinished)
    unfinished.replace(path)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # below main(): what DDP holds of the group is gone by then
