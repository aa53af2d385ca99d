"""What the script of replicas trains, and the same steps by a recorded history, in one process.

For each replica of a step there is a thread with a model of its own; they add up gradients by gloo,
in one bucket as DDP does, with the last parameters first. Replicas of two ranks (`replayed_pairs`),
of which each has half of every parameter, are as many models, whose gradients are added in pairs:
of two numbers the order does not matter, and they are divided by powers of two, which is exact.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
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
    whole = BATCH * REPLICAS
    replicas = [Replica(*model_and_optimizer()) for _ in range(REPLICAS)]
    groups = {size: _groups(size) for size in set(sizes)}
    digests = []
    with ThreadPoolExecutor(REPLICAS) as threads:
        for size, shares in zip(sizes, dealt(sizes, whole), strict=True):
            done = [
                threads.submit(_step, replicas[rank], shares[rank], groups[size][rank], whole)
                for rank in range(size)
            ]
            digests.append({one.result() for one in done}.pop())
            for behind in replicas[size:]:  # they heal from one that took part
                behind.model.load_state_dict(replicas[0].model.state_dict())
                behind.optimizer.load_state_dict(deepcopy(replicas[0].optimizer.state_dict()))
    return digests


def dealt(sizes: Sequence[int], whole: int) -> Iterator[list[list[Any]]]:
    """The samples of each rank, step by step, with so many ranks in each and `whole` samples."""
    samples, at = data(), (0, 0)
    order = SampleOrder(len(samples), BATCH, SEED, shuffle=True, drop_last=True)
    for size in sizes:
        tickets = [next(order.tickets(*at, rank, size, whole)) for rank in range(size)]
        at = tickets[0].epoch, tickets[0].samples_after
        yield [[samples[i] for i in ticket.indices] for ticket in tickets]


def replayed_pairs(sizes: Sequence[int], whole: int) -> list[tuple[str, str]]:
    """Digests of the halves of the parameters after each step, of so many ranks in each."""
    model, optimizer = model_and_optimizer()
    digests = []
    for size, shares in zip(sizes, dealt(sizes, whole), strict=True):
        found = []
        for share in shares:
            model.zero_grad()
            backward(model, share, size / whole)
            found.append([p.grad for p in model.parameters() if p.grad is not None])
        pairs = [map(torch.add, *found[first : first + 2]) for first in range(0, size, 2)]
        for parameter, *sums in zip(model.parameters(), *pairs, strict=True):
            parameter.grad = torch.stack(sums).sum(0) / size
        optimizer.step()
        halves = zip(*(p.detach().chunk(2) for p in model.parameters()), strict=True)
        first, second = map(digest, halves)
        digests.append((first, second))
    return digests


class OuterStep(NamedTuple):
    """How replicas are brought together."""

    every: int
    lr: float
    momentum: float


def replayed_windows(sizes: Sequence[int], outer: OuterStep) -> list[list[str]]:
    """Digests of the parameters of each replica after each step, which they take by themselves,
    before the outer step that may follow; of so many replicas in each."""
    replicas = [Replica(*model_and_optimizer()) for _ in range(REPLICAS)]
    began = [p.detach().clone() for p in replicas[0].model.parameters()]
    moving, digests = [torch.zeros_like(one) for one in began], []
    for step, (size, shares) in enumerate(zip(sizes, dealt(sizes, BATCH * REPLICAS), strict=True)):
        for (model, optimizer), share in zip(replicas[:size], shares, strict=True):
            optimizer.zero_grad()
            backward(model, share, 1 / len(share))
            optimizer.step()
        digests.append([digest(model.parameters()) for model, _ in replicas[:size]])
        if (step + 1) % outer.every and step + 1 < len(sizes):
            continue
        models = [[*model.parameters()] for model, _ in replicas[:size]]
        away = _mean([[b - p.detach() for b, p in zip(began, m, strict=True)] for m in models])
        states = _mean([[*_moments(optimizer)] for _, optimizer in replicas[:size]])
        moving = [m.mul(outer.momentum).add(d) for m, d in zip(moving, away, strict=True)]
        ahead = [d.add(m, alpha=outer.momentum) for d, m in zip(away, moving, strict=True)]
        began = [b.add(a, alpha=-outer.lr) for b, a in zip(began, ahead, strict=True)]
        for model, optimizer in replicas:
            model.load_state_dict(dict(zip(model.state_dict(), began, strict=True)))
            optimizer.load_state_dict(deepcopy(replicas[0].optimizer.state_dict()))
            for moment, state in zip(_moments(optimizer), states, strict=True):
                moment.copy_(state)
    return digests


def _moments(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for state in optimizer.state.values():
        yield from (state["exp_avg"], state["exp_avg_sq"])


def _mean(told: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """Of what each replica has, which is sent at once."""
    flat = [torch.cat([one.reshape(-1) for one in mine]) for mine in told]
    if len(flat) > 1:
        with ThreadPoolExecutor(len(flat)) as threads:
            sent = zip(_groups(len(flat)), flat, strict=True)
            list(threads.map(lambda one: one[0].allreduce([one[1]]).wait(), sent))
        flat[0] /= len(flat)
    parts = torch.split(flat[0], [one.numel() for one in told[0]])
    return [part.view_as(one) for part, one in zip(parts, told[0], strict=True)]


def _groups(size: int) -> list[Any]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    with ThreadPoolExecutor(size) as threads:
        made = threads.map(lambda rank: dist.ProcessGroupGloo(store, rank, size, WAIT), range(size))
        return list(made)


def _step(replica: Replica, share: list[Any], group: Any, whole: int) -> str:
    model, optimizer = replica
    optimizer.zero_grad()
    backward(model, share, group.size() / whole)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    bucket = torch.cat([g.flatten() for g in reversed(gradients)]) * (1 / group.size())
    group.allreduce([bucket]).wait()
    sums = bucket.split([g.numel() for g in reversed(gradients)])
    for gradient, total in zip(reversed(gradients), sums, strict=True):
        gradient.copy_(total.view_as(gradient))
    optimizer.step()
    return digest(model.parameters())


def backward(model: nn.Module, share: Sequence[Any], scale: float) -> None:
    """Of the samples of a rank, in parts; each sample counts `scale`."""
    for first in range(0, len(share), BATCH):
        part = torch.utils.data.default_collate(list(share[first : first + BATCH]))
        (mean_loss(model, part) * (len(part[0]) * scale)).backward()  # type: ignore[no-untyped-call]


def digest(parts: Iterable[torch.Tensor]) -> str:
    """Of what a rank has of the parameters."""
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in parts)).hexdigest()
