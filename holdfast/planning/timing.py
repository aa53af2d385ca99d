"""Time of one step of a layout: computation, communication that nothing hides, pipeline bubble.

A layer takes its matrix products at a share of the GPU's peak, plus reading and writing its
activations; that alone makes small models slower per FLOP than large ones. Collectives take their
bytes over the slowest link they cross. What is calibrated and on what: docs/concepts/planning.md.
"""

import math
from typing import NamedTuple

from holdfast.planning.hardware import PlannedCluster
from holdfast.planning.layout import (
    Demand,
    PlannedLayout,
    PlanRequest,
    layers_of_a_stage,
    layers_of_an_end,
)
from holdfast.planning.memory import (
    StageParams,
    block_params,
    layer_activation_bytes,
    sharded,
    stage_params,
)
from holdfast.planning.model import ModelShape

HOP_S, FAR_HOP_S = 1e-6, 5e-6  # from GPU to GPU in a ring, within a node and to the next; assumed
HIDDEN_SHARE = 0.9  # of computation beside which a collective can run; assumed


class StepTime(NamedTuple):
    """Seconds of one step on the slowest GPU. They add up to the step."""

    compute: float
    recompute: float
    tensor: float
    context: float
    expert: float
    pipeline: float
    """Sending activations between stages."""
    data: float
    """Collectives of data parallelism that nothing hides."""
    bubble: float
    optimizer: float

    @property
    def total(self) -> float:
        """The step."""
        return sum(self)

    @property
    def exposed(self) -> float:
        """Communication that nothing hides."""
        return self.tensor + self.context + self.expert + self.pipeline + self.data


class _Stage(NamedTuple):
    """Seconds of one microbatch on one stage, forwards and backwards."""

    compute: float
    recompute: float
    tensor: float
    context: float
    expert: float
    pipeline: float


def step_time(request: PlanRequest, layout: PlannedLayout) -> StepTime:
    """Of 1F1B, plain or interleaved.

    Bubble: (p − 1)/v microbatches. Source: Narayanan et al., arXiv 2104.04473, section 2.2.
    """
    model, cluster, _, demand, _ = request
    stage = _stage(request, layout)
    count = layout.microbatches(demand.sequences)
    held = max(stage_params(model, layout, last=last) for last in (False, True))
    updated = sharded(held, layout) * 2 * (demand.optimizer_bytes + demand.gradient_bytes)
    return StepTime(
        **{name: count * part for name, part in stage._asdict().items()},
        data=_data(request, layout, held, stage.compute + stage.recompute),
        bubble=(layout.pp - 1) / layout.chunks * sum(stage),
        optimizer=updated / cluster.gpu.memory_bytes_per_s,
    )


def mfu(request: PlanRequest, step_s: float) -> float:
    """Share of the peak that goes into the model: 3 forward passes, no recomputation, and of
    attention the half that is not masked."""
    model, cluster, gpus, demand, _ = request
    flops = 3 * model.forward_flops() * demand.sequences * model.sequence
    return flops / (step_s * gpus * cluster.gpu.peak_flops)


def _stage(request: PlanRequest, layout: PlannedLayout) -> _Stage:
    """The slowest stage, which all others wait for."""
    model, cluster, _, demand, _ = request
    tokens = layout.tokens(model.sequence)
    layers = layers_of_a_stage(model, layout.pp)
    at_end = layers_of_an_end(model, layout.pp)
    forward = _layer_s(model, layout, demand, cluster)
    head = _matmul_s(2 * tokens * model.vocab * model.hidden / layout.tp, cluster)
    again = _recomputed(model, layout, demand, cluster, forward)
    passes = 3 if layout.recompute == "full" else 2
    return _Stage(
        compute=3 * max(layers * forward, at_end * forward + head),
        recompute=layers * again,
        tensor=layers * passes * _tensor_s(model, layout, cluster, tokens),
        context=layers * 3 * _context_s(model, layout, cluster),
        expert=layers * passes * _expert_s(model, layout, cluster, tokens),
        pipeline=_pipeline_s(model, layout, cluster, tokens),
    )


def _matmul_s(flops: float, cluster: PlannedCluster) -> float:
    return flops / (cluster.gpu.peak_flops * cluster.gpu.matmul_share)


def _layer_s(
    model: ModelShape, layout: PlannedLayout, demand: Demand, cluster: PlannedCluster
) -> float:
    """Forward pass of one layer and microbatch: products, and activations written and read."""
    tokens = layout.tokens(model.sequence)
    weights = model.active_params - model.vocab * model.hidden
    products = 2 * tokens * weights / model.layers + _score_flops(model, demand, tokens)
    kept = layer_activation_bytes(model, layout, demand)
    return _matmul_s(products / layout.tp, cluster) + 2 * kept / cluster.gpu.memory_bytes_per_s


def _score_flops(model: ModelShape, demand: Demand, tokens: float) -> float:
    seen = model.sequence / 2 if demand.fused_attention else model.sequence
    return 4 * tokens * seen * model.query_dim


def _recomputed(
    model: ModelShape,
    layout: PlannedLayout,
    demand: Demand,
    cluster: PlannedCluster,
    forward_s: float,
) -> float:
    """What a layer computes a second time in the backward pass."""
    if layout.recompute != "selective":
        return forward_s if layout.recompute == "full" else 0.0
    tokens = layout.tokens(model.sequence)
    scores = 2 * 5 * model.heads * model.sequence * tokens / layout.tp
    products = _matmul_s(_score_flops(model, demand, tokens) / layout.tp, cluster)
    return products + scores / cluster.gpu.memory_bytes_per_s


# ── communication ─────────────────────────────────────────────────────────────────────────────


def gather_s(
    sent_bytes: float, ranks: int, stride: int, cluster: PlannedCluster, pieces: int = 1
) -> float:
    """All-gathers or reduce-scatters of `sent_bytes`, in so many `pieces`, over `ranks` GPUs that
    are `stride` apart.

    Every GPU moves (n − 1)/n of the bytes over the slowest link of the ring; GPUs of one node share
    the way to the other nodes. Each piece goes once around, which is why rings of thousands of GPUs
    are slow however fast their links are.
    """
    if ranks == 1:
        return 0.0
    speed = link_bytes_per_s(ranks, stride, cluster)
    nodes = math.ceil(ranks * stride / cluster.gpus_per_node)
    far = min(ranks, nodes) if nodes > 1 else 0
    around_s = FAR_HOP_S * far + HOP_S * (ranks - far)
    return sent_bytes * (ranks - 1) / ranks / speed + pieces * around_s


def link_bytes_per_s(ranks: int, stride: int, cluster: PlannedCluster) -> float:
    """What a ring over these GPUs moves through each of them."""
    gpu = cluster.gpu
    if ranks * stride <= cluster.gpus_per_node:
        return gpu.node_bytes_per_s * cluster.link_share
    beside = max(1, cluster.gpus_per_node // stride)
    return min(gpu.node_bytes_per_s, beside * gpu.network_bytes_per_s) * cluster.link_share


def _tensor_s(
    model: ModelShape, layout: PlannedLayout, cluster: PlannedCluster, tokens: float
) -> float:
    """Of one layer and pass: two all-reduces, or as much gathered and scattered. Source: Shoeybi et
    al., arXiv 1909.08053, section 3; Korthikanti et al., section 4.2.2."""
    return 4 * gather_s(2 * tokens * model.hidden, layout.tp, 1, cluster)


def _context_s(model: ModelShape, layout: PlannedLayout, cluster: PlannedCluster) -> float:
    """Of one layer and pass: keys and values of the whole sequence are gathered, as Llama 3 does
    (arXiv 2407.21783, section 3.3.2)."""
    wide = max(1, model.kv_dim // layout.tp)
    sent = layout.micro * model.sequence * 2 * 2 * wide
    return gather_s(sent, layout.cp, layout.tp, cluster)


def _expert_s(
    model: ModelShape, layout: PlannedLayout, cluster: PlannedCluster, tokens: float
) -> float:
    """Of one layer and pass: tokens go to their experts and back, all to all."""
    sent = 2 * tokens * model.hidden * model.active_experts / layout.tp
    return 2 * gather_s(sent, layout.ep, layout.tp, cluster)


def _pipeline_s(
    model: ModelShape, layout: PlannedLayout, cluster: PlannedCluster, tokens: float
) -> float:
    """Of one microbatch: each piece hands on its output, and gets a gradient back."""
    if layout.pp == 1:
        return 0.0
    gpu, within = cluster.gpu, layout.world <= cluster.gpus_per_node
    link = gpu.node_bytes_per_s if within else gpu.network_bytes_per_s
    sent = 2 * tokens * model.hidden / layout.tp
    return 2 * layout.chunks * (sent / (link * cluster.link_share) + FAR_HOP_S)


def _data(
    request: PlanRequest, layout: PlannedLayout, held: StageParams, compute_s: float
) -> float:
    """Per step, beside microbatches of `compute_s` each."""
    model, cluster, _, demand, _ = request
    stride, layers = layout.tp, layers_of_a_stage(model, layout.pp)
    weights, gradients = demand.weight_bytes * held.all, demand.gradient_bytes * held.all
    gather = gather_s(weights, layout.shards, stride, cluster, layers)
    scatter = gather_s(gradients, layout.shards, stride, cluster, layers)
    copies = layout.dp_replicate * (layout.cp if layout.shards == 1 else 1)
    part = gradients / layout.shards
    across = 2 * gather_s(part, copies, stride * layout.shards, cluster, layers)
    hidden = HIDDEN_SHARE * compute_s if demand.overlapped else 0.0
    if layout.gathers_each_use:
        block = demand.weight_bytes * block_params(model, layout)
        first = gather_s(block, layout.shards, stride, cluster)
        each = max(0.0, 2 * gather + scatter - hidden) + first
        return layout.microbatches(demand.sequences) * each + max(0.0, across - hidden * 2 / 3)
    return max(0.0, scatter + across - hidden * 2 / 3) + max(0.0, gather - hidden / 3)
