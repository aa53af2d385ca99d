"""Sharded data parallel (FSDP2, HSDP): each block by itself, then the rest of the model.

The mesh has `dp_replicate` only where there are replicas, and the ranks of `cp` are sharded over,
too: they have parts of the same sequences, so their gradients are averaged like those of samples.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from holdfast.dimensions import Dimensions, Precision

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def sharding_mesh(mesh: DeviceMesh, dimensions: Dimensions) -> DeviceMesh | None:
    """The part of the mesh over which gradients are averaged; None where there is none."""
    if dimensions.data * dimensions.cp == 1:
        return None
    part = sharded_dimension(mesh, dimensions)
    if dimensions.dp_replicate == 1:
        return part
    return DeviceMesh._concatenate([mesh["dp_replicate"], part])


def sharded_dimension(mesh: DeviceMesh, dimensions: Dimensions) -> DeviceMesh:
    """Those that shard among them what one replica has."""
    if dimensions.cp > 1:
        return mesh["dp_shard", "cp"]._flatten("dp_shard_cp")
    return mesh["dp_shard"]


def shard(
    modules: Iterable[nn.Module], mesh: DeviceMesh, precision: Precision, *, regather: bool
) -> None:
    """Shard each of `modules` by itself, but for what of it is sharded already. `regather`: whole
    parameters are not kept for the backward pass."""
    dtype = DTYPES.get(precision)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    how: dict[str, Any] = {} if regather else {"reshard_after_forward": False}
    for module in modules:
        fully_shard(module, mesh=mesh, mp_policy=policy, **how)


class GradientSync:
    """Whether the backward passes of a sharded model reduce gradients, by the name that DDP has for
    it."""

    def __init__(self, model: FSDPModule) -> None:
        self._model = model

    @property
    def require_backward_grad_sync(self) -> bool:
        """Only written."""
        raise NotImplementedError

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, wanted: bool) -> None:
        """From the next backward pass on."""
        self._model.set_requires_gradient_sync(wanted)
        self._model.set_is_last_backward(wanted)
