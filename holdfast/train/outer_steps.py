"""Outer steps: replicas train by themselves for some steps, then are brought together (DiLoCo).

`recovery.replicas.sync_every: H` of the job. After H steps of its own optimizer each replica has
other parameters θ_i than those all began with, θ. An outer step (Douillard et al. 2023, DiLoCo,
algorithm 1) takes the mean of how far they have come from it, Δ = mean(θ - θ_i), for a gradient at
θ, and takes a step of SGD with Nesterov momentum with it. So parameters are sent once in H steps.

Here the state of the optimizers of the script is averaged at the same time, where DiLoCo keeps each
replica's own: after an outer step all replicas have the same state, all of it, so that one which
comes back gets it from any other one. Buffers of the models, such as those of a BatchNorm, become
what the first replica has, as with DDP. Snapshots are taken there and nowhere else.

The momentum is state of an optimizer of PyTorch's over the same parameters, which is tracked like
those of the script; θ is what is restored, and is not kept besides.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.optim import SGD, Optimizer

from holdfast.checkpoint.tensors import is_distributed, local_part
from holdfast.errors import Error
from holdfast.train.optimizers import distributed_like
from holdfast.train.placement import replica_nodes

VARIABLE = "HOLDFAST_OUTER_STEPS"
TRACKED = "holdfast_outer"
BUCKET_BYTES = 64 << 20  # that are sent at once


class OuterRequest(msgspec.Struct, frozen=True):
    """What the job asks for."""

    every: int
    lr: float
    momentum: float


def wish_in(environ: Mapping[str, str] = os.environ) -> OuterRequest | None:
    """None where gradients are averaged over all ranks in each step."""
    text = environ.get(VARIABLE)
    return None if text is None else msgspec.json.decode(text, type=OuterRequest)


def ranks_each(world_size: int, environ: Mapping[str, str] = os.environ) -> int:
    """Ranks that average their gradients in each step: those of a replica, else all."""
    if VARIABLE not in environ:
        return world_size
    return replica_nodes(environ) * int(environ.get("LOCAL_WORLD_SIZE", "1"))


class OuterSteps:
    """Those of one run. `_began` are the parameters of the last outer step, here."""

    def __init__(
        self, wish: OuterRequest, models: Sequence[torch.nn.Module], inner: Mapping[str, Any]
    ) -> None:
        """`models` are those of `run.parallelize()`; of the objects `inner` the optimizers train
        them. Raises `Error` (layout-invalid) if they train anything else, or nothing."""
        self._every = wish.every
        listed = {id(p): p for model in models for p in model.parameters() if p.requires_grad}
        self._models = [*models]
        self._optimizers = {n: o for n, o in inner.items() if isinstance(o, Optimizer)}
        for name, optimizer in self._optimizers.items():
            _require_known(name, optimizer, listed.keys())
        if not listed:
            raise Error(
                "layout-invalid",
                "run.track() was called before run.parallelize()",
                why="recovery.replicas.sync_every synchronizes the models of run.parallelize()",
                help="model = run.parallelize(model)",
            )
        self._parameters = [*listed.values()]
        nesterov = wish.momentum > 0
        self.optimizer = SGD(
            self._parameters, lr=wish.lr, momentum=wish.momentum, nesterov=nesterov
        )
        self._began: list[torch.Tensor] = []
        self.group: dist.ProcessGroup | None = None
        """Over which replicas meet; None: there is one."""

    def due(self, completed: int, total: int) -> bool:
        """Whether this step ends with an outer one. The last one does."""
        return completed % self._every == 0 or completed == total

    def begin(self) -> None:
        """All replicas are the same."""
        self._began = [local_part(p).detach().clone() for p in self._parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Bring all replicas together. What was to be copied of their state has been."""
        away = [
            began - local_part(parameter)
            for began, parameter in zip(self._began, self._parameters, strict=True)
        ]
        self._together(_average, away)
        self._together(_average, [*_states(self._optimizers.values())])
        self._together(_share, _buffers(self._models))
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter, began, delta in zip(self._parameters, self._began, away, strict=True):
            local_part(parameter).copy_(began)
            parameter.grad = (
                distributed_like(delta, parameter) if is_distributed(parameter) else delta
            )
        self.optimizer.step()
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        self.begin()

    def _together(
        self,
        become: Callable[[dist.ProcessGroup, torch.Tensor], None],
        tensors: Sequence[torch.Tensor],
    ) -> None:
        if self.group is None:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([one.reshape(-1) for one in bucket])
            become(self.group, flat)
            parts = torch.split(flat, [one.numel() for one in bucket])
            for one, part in zip(bucket, parts, strict=True):
                one.copy_(part.view_as(one))


def _average(group: dist.ProcessGroup, flat: torch.Tensor) -> None:
    """It becomes the mean over the replicas: in an order that never changes."""
    dist.all_reduce(flat, group=group)
    flat /= group.size()


def _share(group: dist.ProcessGroup, flat: torch.Tensor) -> None:
    """It becomes that of the first replica, bit for bit."""
    dist.broadcast(flat.view(torch.uint8), group=group, group_src=0)


def _require_known(name: str, optimizer: Optimizer, known: Iterable[int]) -> None:
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if trained - set(known):
        raise Error(
            "layout-invalid",
            f"{name} trains parameters that outer steps do not synchronize",
            why="with recovery.replicas.sync_every replicas train separately, and outer steps "
            "synchronize only the models of run.parallelize()",
            help="model = run.parallelize(model) before its optimizer is made",
        )


def _states(optimizers: Iterable[Optimizer]) -> Iterator[torch.Tensor]:
    """What optimizers keep for parameters, but for counters; a restored one has the same order."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for _, value in sorted(optimizer.state.get(parameter, {}).items()):
                    if isinstance(value, torch.Tensor) and value.ndim and value.is_floating_point():
                        yield local_part(value)


def _buffers(models: Iterable[torch.nn.Module]) -> list[torch.Tensor]:
    """Those of one type together."""
    found = (local_part(buffer) for model in models for buffer in model.buffers())
    return sorted(found, key=lambda buffer: str(buffer.dtype))


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """In their order, of one type each."""
    bucket: list[torch.Tensor] = []
    for one in tensors:
        full = sum(kept.nbytes for kept in bucket) + one.nbytes > BUCKET_BYTES
        if bucket and (full or (one.dtype, one.device) != (bucket[0].dtype, bucket[0].device)):
            yield bucket
            bucket = []
        bucket.append(one)
    if bucket:
        yield bucket
