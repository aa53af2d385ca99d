"""Whether ranks along `tp` have the same gradient of what they all have whole.

They do, where a plan is right: what divided layers give back is the same on each. A parameter that
sees only a part of it (the norm of each head, or, with `sequence_parallel`, anything between layers
that the plan does not name) gets another gradient on each rank, and its copies would drift apart
without a word. So gradients are compared once in each attempt, before the first step of the
optimizer.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from holdfast.checkpoint.tensors import is_distributed, local_part
from holdfast.errors import Error

TOLERANCE = 1e-2  # relative; of sums in another order, in few bits


def require_same_gradients(parameters: Iterable[tuple[str, torch.Tensor]], tp: DeviceMesh) -> None:
    """Raise `Error` (layout-invalid) with the name of a parameter that is whole on the ranks of
    `tp`, and whose gradients differ there. All of them call this."""
    whole = [(name, p.grad) for name, p in parameters if p.grad is not None and _is_whole(p.grad)]
    if not whole:
        return
    norms = torch.stack([local_part(gradient).float().norm() for _, gradient in whole])
    found = [torch.empty_like(norms) for _ in range(tp.size())]
    dist.all_gather(found, norms, group=tp.get_group())
    differ = (torch.stack(found) - found[0]).abs().amax(0) > TOLERANCE * found[0]
    for name in (name for (name, _), other in zip(whole, differ.tolist(), strict=True) if other):
        raise Error(
            "layout-invalid",
            f"the gradient of {name} differs between the ranks along tp",
            why="each of them holds the whole parameter, but applies it to a part of what the "
            "divided layers compute, such as some of the heads",
            help=f'name its module in the plan: "{name.rpartition(".")[0]}": '
            '"replicated_with_grad_allreduce" if it is applied to each head (batch, places, heads, '
            'width), "sequence_parallel" if it is between layers',
        )


def _is_whole(gradient: torch.Tensor) -> bool:
    """Whether this is not divided along `tp`."""
    if not is_distributed(gradient):
        return True
    names = gradient.device_mesh.mesh_dim_names or ()  # type: ignore[attr-defined]
    placements = gradient.placements  # type: ignore[attr-defined]
    along = [place for name, place in zip(names, placements, strict=False) if name == "tp"]
    return all(place.is_replicate() for place in along)
