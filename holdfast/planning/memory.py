"""Memory per GPU of a layout: the larger of the first and the last pipeline stage.

State follows ZeRO (Rajbhandari et al., arXiv 1910.02054), activations Korthikanti et al. (arXiv
2205.05198): their 34·s·b·h bytes of a layer are written out below, so that grouped queries, gated
MLPs and experts count as they are.
"""

from typing import NamedTuple

from holdfast.planning.layout import Demand, PlannedLayout, layers_of_an_end
from holdfast.planning.model import ModelShape

RESERVE_BYTES = 4e9  # CUDA context, NCCL's buffers, workspaces; assumed
USABLE_SHARE = 0.94  # the rest is lost to fragments of the allocator; assumed
GATHERED_BLOCKS = 2  # the block in use and the one fetched meanwhile


class StageParams(NamedTuple):
    """Parameters on one GPU before any are spread by data parallelism."""

    dense: float
    experts: float

    @property
    def all(self) -> float:
        """Both."""
        return self.dense + self.experts


class GpuMemory(NamedTuple):
    """Bytes on one GPU."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    """Gathered blocks, logits, and what CUDA and NCCL reserve."""

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)


def memory(model: ModelShape, layout: PlannedLayout, demand: Demand) -> GpuMemory:
    """What the fullest GPU holds."""
    stages = [_of_stage(model, layout, demand, last=last) for last in (False, True)]
    return max(stages, key=lambda stage: stage.total)


def stage_params(model: ModelShape, layout: PlannedLayout, *, last: bool) -> StageParams:
    """Of one GPU of the first or the last stage; of the only one, both ends."""
    pp = layout.pp
    layers = layers_of_an_end(model, pp)
    ends = model.embedding_params + model.head_params
    if pp > 1:
        ends = model.vocab * model.hidden if last else model.embedding_params
    return StageParams(
        dense=(layers * model.layer_params + ends) / layout.tp,
        experts=layers * model.expert_params / layout.tp / layout.ep,
    )


def block_params(model: ModelShape, layout: PlannedLayout) -> float:
    """Of one layer on one GPU, gathered."""
    return (model.layer_params + model.expert_params / layout.ep) / layout.tp


def _of_stage(model: ModelShape, layout: PlannedLayout, demand: Demand, *, last: bool) -> GpuMemory:
    held = stage_params(model, layout, last=last)
    spread = sharded(held, layout)
    weights = spread if layout.gathers_each_use else held.all
    block = block_params(model, layout) if layout.shards > 1 else 0.0
    gathered = GATHERED_BLOCKS * block if layout.gathers_each_use else 0.0
    logits = _logit_bytes(model, layout) if last or layout.pp == 1 else 0.0
    return GpuMemory(
        parameters=demand.weight_bytes * weights,
        gradients=demand.gradient_bytes * spread,
        optimizer=demand.optimizer_bytes * spread,
        activations=activation_bytes(model, layout, demand, last=last),
        buffers=RESERVE_BYTES
        + demand.weight_bytes * gathered
        + demand.gradient_bytes * block
        + logits,
    )


def sharded(held: StageParams, layout: PlannedLayout) -> float:
    """Parameters whose gradients and optimizer state one GPU keeps."""
    return held.dense / layout.shards + held.experts / max(1.0, layout.shards / layout.ep)


def _logit_bytes(model: ModelShape, layout: PlannedLayout) -> float:
    """Logits in bf16 and once more in fp32 for the loss."""
    tokens = layout.tokens(model.sequence)
    return tokens * model.vocab * 6 / layout.tp


def activation_bytes(
    model: ModelShape, layout: PlannedLayout, demand: Demand, *, last: bool = False
) -> float:
    """Kept for the backward pass on one GPU of the first stage, or of the last one.

    1F1B keeps pp microbatches on the first stage and one on the last; interleaving makes that
    1 + (p − 1)/(p·v) times as much on the first. Source: Korthikanti et al., section 4.2.3.
    """
    pp, chunks = layout.pp, layout.chunks
    layers = layers_of_an_end(model, pp)
    more = 1 + (pp - 1) / (pp * chunks) if chunks > 1 else 1
    in_flight = 1 if last else min(pp * more, layout.microbatches(demand.sequences))
    whole = layer_activation_bytes(model, layout, demand)
    if layout.recompute == "full":
        split = layout.tp if demand.sequence_parallel else 1
        tokens = layout.tokens(model.sequence)
        return layers * in_flight * 2 * tokens * model.hidden / split + whole
    return layers * in_flight * whole


def layer_activation_bytes(model: ModelShape, layout: PlannedLayout, demand: Demand) -> float:
    """Of one layer and microbatch on one GPU, two bytes a number: s·b·h·(34 + 5·a·s/h) of a GPT.

    Source: Korthikanti et al., equations 1 to 4; the scores fall away with fused attention and with
    selective recomputation. Dropout, one byte a number, only where the MLP is not gated.
    """
    tokens = layout.tokens(model.sequence)
    dropout = 0 if model.gated else model.hidden
    outside = 4 * model.hidden + 2 * (2 * model.hidden + dropout)  # norms; inputs; dropout
    attention = 4 * model.query_dim + 4 * model.kv_dim
    mlp = 2 * model.active_mlp_dim * model.matrices
    inside = (attention + mlp) / layout.tp
    if not demand.fused_attention and layout.recompute != "selective":
        inside += 5 * model.heads * model.sequence / layout.tp
    return tokens * (inside + outside / (layout.tp if demand.sequence_parallel else 1))
