"""From a model to what trains in a layout, in the order in which the parts have to come.

Stages are cut out first, then layers are divided, then what is around `forward` (context, autocast,
recomputation, compilation), and sharding last, because it sees the parameters as they then are.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import xxhash
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from holdfast.dimensions import across_nodes
from holdfast.train.layouts import tensor
from holdfast.train.layouts.asked import AskedLayout, ModelRequirements, unsupported
from holdfast.train.layouts.blocks import Blocks, find_blocks, require_blocks, wrap_forward
from holdfast.train.layouts.context import SharedContext
from holdfast.train.layouts.experts import divide_experts, expert_mesh, experts_of
from holdfast.train.layouts.recomputation import recompute
from holdfast.train.layouts.sharding import DTYPES, GradientSync, shard, sharding_mesh
from holdfast.train.layouts.trace_ahead import compile_blocks
from holdfast.train.parallel import spread

logger = logging.getLogger(__name__)


class Built(NamedTuple):
    """A model in its layout: what the script gets, and what a step needs."""

    model: nn.Module
    pipeline: Any = None  # Pipeline
    context: SharedContext | None = None
    syncs: Sequence[Any] = ()  # what has `require_backward_grad_sync`


def build(
    model: nn.Module, asked: AskedLayout, mesh: Callable[[], DeviceMesh], wishes: ModelRequirements
) -> Built:
    """`model`, on its device, in the layout. The same on all ranks before.

    Raises `Error` (layout-invalid) for a model that does not fit the layout.
    """
    layout, dimensions = asked.layout, asked.dimensions
    blocks = find_blocks(model, wishes.blocks)
    context = _context(model, asked, blocks, wishes, mesh)
    plan = _plan(model, asked, wishes)
    named = experts_of(model, wishes.plan, layout.ep) if layout.ep > 1 else []
    if dist.is_initialized() and not dimensions.replicates_only:
        spread_if_different(model)
    built = Built(model, context=context)
    if dimensions.pp > 1:
        built, blocks = _staged(model, asked, blocks, mesh())
        built = built._replace(context=context)
    if plan:
        tensor.divide(built.model, mesh()["tp"], plan)
    experts = None
    if named:
        experts = divide_experts(built.model, named, expert_mesh(mesh(), dimensions, layout.ep))
    if context is not None:
        roots = [stage.module for stage in built.pipeline.stages] if built.pipeline else [model]
        context.adopt(roots, blocks.modules)
    around(built, blocks, asked, sharded=not dimensions.replicates_only)
    over = sharding_mesh(mesh(), dimensions) if not dimensions.replicates_only else None
    if experts is not None:
        regather = built.pipeline is None
        shard(experts.modules, experts.holders, layout.precision, regather=regather)
    return _sharded(built, blocks, over, layout.precision) if over is not None else built


def _plan(
    model: nn.Module, asked: AskedLayout, wishes: ModelRequirements
) -> dict[str, ParallelStyle]:
    if asked.dimensions.tp == 1:
        return {}
    plan = tensor.plan_of(model, wishes.plan)
    found = tensor.styles(model, plan, sequence=asked.layout.sequence_parallel)
    tensor.require_divisible(model, found, asked.dimensions.tp)
    return found


def _context(
    model: nn.Module,
    asked: AskedLayout,
    blocks: Blocks,
    wishes: ModelRequirements,
    mesh: Callable[[], DeviceMesh],
) -> SharedContext | None:
    if asked.dimensions.cp == 1:
        return None
    require_blocks(blocks, "context parallelism")
    if asked.layout.compile:
        raise unsupported(
            "context parallelism cannot be compiled",
            "torch.compile does not see where attention is gathered",
            "parallel.compile: false, or parallel.cp: 1",
        )
    if wishes.places is None:
        raise unsupported(
            "it is not known what in the model depends on the position in a sequence",
            "parallel.cp divides sequences, so a rank has positions from the middle",
            'run.parallelize(model, places=["rope"]): names of buffers whose first dimension is '
            "the position; places=[] if there are none",
        )
    return SharedContext(mesh()["cp"], model, wishes.places)


def _staged(
    model: nn.Module, asked: AskedLayout, blocks: Blocks, mesh: DeviceMesh
) -> tuple[Built, Blocks]:
    # imports a tracer, 2.8 s of a core: preloaded where the job has stages
    from holdfast.train.layouts.pipeline import Pipeline, chain_of

    pipeline = Pipeline(model, chain_of(model, blocks), mesh["pp"], asked.layout)
    return Built(pipeline.model, pipeline), Blocks(blocks.path, pipeline.blocks)


def around(built: Built, blocks: Blocks, asked: AskedLayout, *, sharded: bool) -> None:
    """Recomputation and compilation of blocks; autocast where sharding does not set the type."""
    layout, dimensions = asked.layout, asked.dimensions
    if layout.activation_checkpointing != "none":
        require_blocks(blocks, "activation_checkpointing")
    recompute(blocks.modules, layout.activation_checkpointing)
    if layout.compile:
        parts = blocks.modules or [built.model]
        compile_blocks(built.model, parts, noted=dimensions.replicates_only)
    averaged = sharded and dimensions.data * dimensions.cp > 1
    if layout.precision in DTYPES and not averaged:
        roots = [s.module for s in built.pipeline.stages] if built.pipeline else [built.model]
        for root in roots:
            wrap_forward(root, partial(_autocast, DTYPES[layout.precision]))


def _autocast(dtype: torch.dtype, forward: Any, *args: Any, **kwargs: Any) -> Any:
    device = next((a.device.type for a in args if isinstance(a, torch.Tensor)), "cpu")
    with torch.autocast(device, dtype=dtype):
        return forward(*args, **kwargs)


def _sharded(built: Built, blocks: Blocks, mesh: DeviceMesh, precision: Any) -> Built:
    if built.pipeline is None:
        shard([*blocks.modules, built.model], mesh, precision, regather=True)
        roots: list[Any] = [built.model]
    else:
        # the backward pass of one micro-batch is followed by the forward pass of another
        for stage in built.pipeline.stages:
            shard([*stage.parts, stage.module], mesh, precision, regather=False)
        roots = [stage.module for stage in built.pipeline.stages]
    return built._replace(syncs=[GradientSync(root) for root in roots])


def spread_if_different(model: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0, unless all have the same already."""
    digest = xxhash.xxh3_64()
    for part in [*model.parameters(), *model.buffers()]:
        flat = part.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    mine = torch.tensor([digest.intdigest() >> 1])
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(found, mine)
    if any(int(other) != int(mine) for other in found):
        spread(model)


def warn_of_slow_links(asked: AskedLayout, rank: int, local_world_size: int) -> None:
    """Said once, by rank 0."""
    why = across_nodes(asked.dimensions, local_world_size)
    if why and rank == 0:
        logger.warning("layout: %s", why)
