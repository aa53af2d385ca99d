"""What the script of replicas trains, and the same steps by a recorded history, in one process.

For each replica of a step there is a thread with a model of its own; they add up gradients by gloo,
in one bucket as DDP does, with the last parameters first.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from holdfast.train.data import SampleOrder

BATCH, SEED, REPLICAS, SAMPLES = 4, 5, 3, 96
WAIT = timedelta(minutes=1)


def data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and what they should become."""
    generator = torch.Generator().manual_seed(3)
    return [(x, x[:4].abs()) for x in torch.randn(SAMPLES, 16, generator=generator)]


def model_and_optimizer() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """As they are at the beginning."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def mean_loss(model: Any, part: Any) -> torch.Tensor:
    """Of some samples."""
    inputs, targets = part
    loss: torch.Tensor = (model(inputs) - targets).square().mean()
    return loss


class Replica(NamedTuple):
    """One model, and what it has come to after each step."""

    model: nn.Sequential
    optimizer: torch.optim.Optimizer


def replayed(sizes: Sequence[int]) -> list[str]:
    """Digests of the parameters after each step, of so many replicas in each."""
    samples, whole = data(), BATCH * REPLICAS
    replicas = [Replica(*model_and_optimizer()) for _ in range(REPLICAS)]
    groups = {size: _groups(size) for size in set(sizes)}
    order = SampleOrder(len(samples), BATCH, SEED, shuffle=True, drop_last=True)
    at, digests = (0, 0), []
    with ThreadPoolExecutor(REPLICAS) as threads:
        for size in sizes:
            tickets = [next(order.tickets(*at, rank, size, whole)) for rank in range(size)]
            at = tickets[0].epoch, tickets[0].samples_after
            shares = [[samples[i] for i in ticket.indices] for ticket in tickets]
            done = [
                threads.submit(_step, replicas[rank], shares[rank], groups[size][rank], whole)
                for rank in range(size)
            ]
            digests.append({one.result() for one in done}.pop())
            for behind in replicas[size:]:  # they heal from one that took part
                behind.model.load_state_dict(replicas[0].model.state_dict())
                behind.optimizer.load_state_dict(deepcopy(replicas[0].optimizer.state_dict()))
    return digests


def _groups(size: int) -> list[Any]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    with ThreadPoolExecutor(size) as threads:
        made = threads.map(lambda rank: dist.ProcessGroupGloo(store, rank, size, WAIT), range(size))
        return list(made)


def _step(replica: Replica, share: list[Any], group: Any, whole: int) -> str:
    model, optimizer = replica
    optimizer.zero_grad()
    for first in range(0, len(share), BATCH):
        part = torch.utils.data.default_collate(share[first : first + BATCH])
        weight = len(part[0]) * group.size() / whole
        (mean_loss(model, part) * weight).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    bucket = torch.cat([g.flatten() for g in reversed(gradients)]) * (1 / group.size())
    group.allreduce([bucket]).wait()
    sums = bucket.split([g.numel() for g in reversed(gradients)])
    for gradient, total in zip(reversed(gradients), sums, strict=True):
        gradient.copy_(total.view_as(gradient))
    optimizer.step()
    return hashlib.sha256(
        b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    ).hexdigest()
