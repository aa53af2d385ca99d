"""The update-to-weight ratio: how far an optimizer moves the weights in a step, by their norm.

Around 1e-3 is usual; far more says that the learning rate is too high, far less that nothing is
learned. It costs a copy of the weights for that step, so it is only done where it is asked for.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from holdfast.checkpoint.tensors import local_part
from holdfast.train.layouts.clipping import norm_of


class UpdateRatio:
    """`value` is there after the block."""

    def __init__(self) -> None:
        self.value: torch.Tensor | None = None


@contextmanager
def update_ratio(*optimizers: torch.optim.Optimizer) -> Iterator[UpdateRatio]:
    """Measure the update-to-weight ratio of what happens in the block, of all parameters together.

    `with update_ratio(optimizer) as ratio: optimizer.step()`, then
    `run.log(update_ratio=ratio.value)`. The block needs memory for a copy of this rank's weights,
    so it is for some steps and not for each. Where weights are divided among ranks (FSDP, tensor
    parallel), these add up their parts: all of them measure the same steps. Of a pipeline it is the
    ratio of this stage.
    """
    weights: list[torch.Tensor] = [
        weight for one in optimizers for group in one.param_groups for weight in group["params"]
    ]
    parts = [local_part(weight).detach().clone() for weight in weights]
    measured = UpdateRatio()
    yield measured
    norm = norm_of(parts, weights, None)
    for part, weight in zip(parts, weights, strict=True):
        part.sub_(local_part(weight).detach())
    measured.value = norm_of(parts, weights, None) / norm
