"""Expert parallel: each rank has some of the experts of a layer, tokens go to where theirs are.

The ranks of `ep` are neighbours among those that have other samples or other parts of a sequence
(`dp_shard` and `cp`), as torchtitan counts, so `ep` is no dimension of the mesh but a part of these
two. What is left of them shards the experts here (FSDP2), while the rest of the model is sharded
over all of them. The gradient of an expert is the sum over the tokens of all ranks of `ep`, and is
divided by their number; FSDP2 then averages it over the ranks that have the same expert.

A module of experts has them in the first dimension of all its parameters, and is called with tokens
(count, width), the experts chosen for each (count, choices) and their weights, as those of Hugging
Face are. Around it tokens are sorted by expert, exchanged (all-to-all), given to the module with
parameters and numbers of the experts that are here, exchanged back and summed up by their weights.
A plan names such modules (`EXPERTS`), and ignores the word where `ep` is 1.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from holdfast.dimensions import Dimensions, divisors
from holdfast.errors import Error
from holdfast.train.layouts.blocks import has_parameters, wrap_forward
from holdfast.train.layouts.sharding import sharded_dimension
from holdfast.train.layouts.tensor import EXPERTS, Plan, declared_by, matching, unknown_name

_DECLARED = ("ep_plan", "_ep_plan", "base_model_ep_plan")


def experts_of(model: nn.Module, given: Plan | None, ep: int) -> list[str]:
    """Names of the modules of experts, which `ep` divides. Raises `Error` (layout-invalid)."""
    plan = declared_by(model, _DECLARED) if given is None else given
    names = [name for name, _ in model.named_modules()]
    found: list[str] = []
    for pattern in (pattern for pattern, word in plan.items() if word in EXPERTS):
        meant = matching(model, pattern, names)
        if not meant and given is not None:
            raise unknown_name(pattern, names)
        found += meant
    if not found:
        raise Error(
            "layout-invalid",
            f"parallel.ep is {ep}, but the model is not known to have experts",
            why=f"the plan that it was given or declares ({', '.join(_DECLARED)}) names none",
            help=f'run.parallelize(model, plan={{"layers.*.experts": "{EXPERTS[0]}"}}), or '
            "parallel.ep: 1",
        )
    found = list(dict.fromkeys(found))  # two patterns may mean the same
    for name in found:
        _require_divisible(name, model.get_submodule(name), ep)
    return found


def _require_divisible(name: str, module: nn.Module, ep: int) -> None:
    counts = {key: p.shape[0] if p.ndim else 0 for key, p in module.named_parameters()}
    if len({*counts.values()}) != 1:
        shapes = ", ".join(f"{key} has {count}" for key, count in counts.items())
        raise Error(
            "layout-invalid",
            f"the experts of {name} cannot be told apart",
            why="the first dimension of all parameters has to be the expert; "
            f"{shapes or 'there are no parameters'}",
            help="stack the experts: one parameter (experts, rows, columns) for each matrix",
        )
    (count,) = {*counts.values()}
    for key in (key for key, buffer in module.named_buffers() if buffer.shape[:1] == (count,)):
        raise Error(
            "layout-invalid",
            f"the buffer {key} of {name} cannot be divided",
            why=f"it has a row for each of the {count} experts, and only parameters are divided",
            help="make it a parameter (requires_grad=False), or keep it outside of that module",
        )
    if count % ep:
        fits = " or ".join(map(str, divisors(count)))
        raise Error(
            "layout-invalid",
            f"the {count} experts of {name} cannot be divided by ep {ep}",
            why="each of the ranks along ep takes the same number of experts",
            help=f"parallel.ep can be {fits}",
        )


class ExpertMesh(NamedTuple):
    """`ep` exchange tokens; `holders` have the same experts, and shard them."""

    ep: DeviceMesh
    holders: DeviceMesh


def expert_mesh(mesh: DeviceMesh, dimensions: Dimensions, ep: int) -> ExpertMesh:
    """Of a layout whose `dp_shard` and `cp` together are a multiple of `ep`."""
    over = sharded_dimension(mesh, dimensions)
    parts = over._unflatten(0, (over.size() // ep, ep), ("dp_shard_of_experts", "ep"))
    holders = parts["dp_shard_of_experts"]
    if dimensions.dp_replicate > 1:
        holders = DeviceMesh._concatenate([mesh["dp_replicate"], holders])
    return ExpertMesh(parts["ep"], holders)


class DividedExperts(NamedTuple):
    """Modules with their part of the experts, and the ranks that have the same part."""

    modules: list[nn.Module]
    holders: DeviceMesh


def divide_experts(model: nn.Module, names: Sequence[str], mesh: ExpertMesh) -> DividedExperts:
    """Leave to this rank its part of the experts: of a stage of a pipeline others are elsewhere."""
    here = {name: module for name, module in model.named_modules() if has_parameters(module)}
    found = []
    for name in filter(here.__contains__, names):
        module = here[name]
        count = next(module.parameters()).shape[0]
        for owner in module.modules():
            for key, parameter in owner.named_parameters(recurse=False):
                part = distribute_tensor(parameter, mesh.ep, [Shard(0)], src_data_rank=None)
                owner.register_parameter(key, nn.Parameter(part, parameter.requires_grad))
        _count_those_here(module, count, count // mesh.ep.size())
        place = _ExpertPlace(module, count, mesh.ep.size(), mesh.ep.get_group())
        around = torch.compiler.disable(partial(_exchanged, place))  # type: ignore[no-untyped-call]
        wrap_forward(module, around)
        found.append(module)
    return DividedExperts(found, mesh.holders)


def _count_those_here(module: nn.Module, whole: int, here: int) -> None:
    for part in module.modules():
        if part.__dict__.get("num_experts") == whole:
            part.__dict__["num_experts"] = here


class _ExpertPlace(NamedTuple):
    """A module of experts on this rank."""

    module: nn.Module
    whole: int  # experts on all ranks of the group
    size: int
    group: Any


def _exchanged(
    place: _ExpertPlace,
    forward: Any,
    tokens: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """What the module is on one rank, with experts on all."""
    choices = chosen.shape[1]
    order = chosen.flatten().argsort(stable=True)
    for_them = torch.bincount(chosen.flatten(), minlength=place.whole)
    from_them = torch.zeros_like(for_them)
    dist.all_to_all_single(from_them, for_them, group=place.group)
    sent = for_them.view(place.size, -1).sum(1).tolist()
    received = from_them.view(place.size, -1).sum(1).tolist()
    rows = tokens[:, None].expand(-1, choices, -1).flatten(0, 1)[order]
    arrived = _scaled_back(_exchange(rows, sent, received, place.group), place.size)
    experts = torch.arange(place.whole // place.size, device=chosen.device).repeat(place.size)
    numbers = experts.repeat_interleave(from_them)[:, None].to(chosen.dtype)
    with _local_parameters(place.module) as parameters:
        done = forward(arrived, numbers, torch.ones_like(numbers, dtype=weights.dtype))
        # all ranks reduce gradients, also of experts that no token has reached
        done = done + 0 * sum(part.flatten()[:1].sum() for part in parameters)
    returned = _exchange(_scaled_back(done, 1 / place.size), received, sent, place.group)
    theirs = returned[order.argsort()].view(*chosen.shape, returned.shape[1])
    out: torch.Tensor = (theirs * weights[..., None]).sum(1).to(tokens.dtype)
    return out


def _scaled_back(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The tensor, whose gradient is multiplied: small between the exchanges, for fp16."""
    if tensor.requires_grad:
        tensor.register_hook(lambda gradient: gradient * factor)  # type: ignore[no-untyped-call]
    return tensor


@contextmanager
def _local_parameters(module: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Have the module see its part of the experts as if these were all."""
    kept: list[tuple[dict[str, Any], str, Any]] = [
        (owner._parameters, key, parameter)
        for owner in module.modules()
        for key, parameter in owner.named_parameters(recurse=False)
    ]
    for parameters, key, parameter in kept:
        parameters[key] = parameter.to_local()
    try:
        yield [parameters[key] for parameters, key, _ in kept]
    finally:
        for parameters, key, parameter in kept:
            parameters[key] = parameter


class _Exchange(torch.autograd.Function):
    """Rows for each rank, one after the other, in; those from each rank out. Gradients go back."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, sent: list[int], received: list[int], group: Any
    ) -> torch.Tensor:
        ctx.back = received, sent, group
        out = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        sent, received, group = ctx.back
        back = _Exchange.apply(grads[0], sent, received, group)  # type: ignore[no-untyped-call]
        return back, None, None, None


def _exchange(rows: torch.Tensor, sent: list[int], received: list[int], group: Any) -> torch.Tensor:
    out: torch.Tensor = _Exchange.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]
    return out
