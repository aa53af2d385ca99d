"""The norm of all gradients of a model, and scaling them to one, in any layout.

A parameter may lie whole on each rank, in parts along some dimensions of a mesh, or on one stage of
a pipeline only. Each rank sums what lies here by the groups that hold the other parts, each sum is
reduced over its groups, and the sum of all is reduced over the stages. So what is replicated counts
once and what is divided counts in full, and all ranks have the same norm in every bit.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from holdfast.checkpoint.tensors import is_distributed, local_part

_Groups = tuple[Any, ...]


def gradients_of(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those that there are. Summands that are still on several ranks, such as those of a norm that
    saw a part of each sequence, are added up first."""
    found = []
    for parameter in parameters:
        grad: Any = parameter.grad
        if is_distributed(grad) and any(place.is_partial() for place in grad.placements):
            placements = parameter.placements  # type: ignore[attr-defined]
            grad = parameter.grad = grad.redistribute(placements=placements)
        if grad is not None:
            found.append(grad)
    return found


def total_norm(gradients: list[torch.Tensor], stages: DeviceMesh | None) -> torch.Tensor:
    """The 2-norm of all gradients together, in fp32. `stages` is the dimension `pp` of the mesh."""
    return norm_of([local_part(gradient) for gradient in gradients], gradients, stages)


def norm_of(
    parts: Sequence[torch.Tensor], divided: Sequence[torch.Tensor], stages: DeviceMesh | None
) -> torch.Tensor:
    """The same of parts that lie here, of tensors that are divided among ranks as these are."""
    by_groups: dict[_Groups, list[torch.Tensor]] = {}
    for part, like in zip(parts, divided, strict=True):
        by_groups.setdefault(_groups_of(like), []).append(part)
    device = parts[0].device if parts else "cpu"
    total = torch.zeros((), dtype=torch.float32, device=device)
    for groups, summands in by_groups.items():
        norms = torch._foreach_norm([part.float() for part in summands])
        squares = torch.stack([*norms]).square().sum()
        for group in groups:
            dist.all_reduce(squares, group=group)
        total += squares
    if stages is not None:
        dist.all_reduce(total, group=stages.get_group())
    return total.sqrt()


def _groups_of(gradient: Any) -> _Groups:
    """The groups over which it is divided."""
    if not is_distributed(gradient):
        return ()
    mesh = gradient.device_mesh
    return tuple(
        mesh.get_group(number)
        for number, placement in enumerate(gradient.placements)
        if not placement.is_replicate()
    )


def scale(gradients: list[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply them in place."""
    for gradient in gradients:
        local_part(gradient).mul_(factor)


def clip(gradients: list[torch.Tensor], norm: torch.Tensor, highest: float) -> None:
    """Scale them, in place, so that their norm is at most `highest`: as PyTorch does."""
    scale(gradients, torch.clamp(highest / (norm + 1e-6), max=1.0))
