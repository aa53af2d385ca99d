"""The cost model against published trainings: tables with known answers.

Tests hold each row within a stated bound; `python benchmarks/planning.py` prints them. Two numbers
of the model are calibrated, each on one row: the share of the peak that matrix products reach on
A100 (row 145.6 B of Megatron-LM's table) and on H100 (first row of Llama 3's). All other rows are
predictions.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from holdfast.planning.hardware import A100, GIB, H100, PlannedCluster
from holdfast.planning.keeping import checkpoint_bytes
from holdfast.planning.layout import Demand, PlannedLayout, PlanRequest, Recompute, possible
from holdfast.planning.memory import USABLE_SHARE, layer_activation_bytes, memory
from holdfast.planning.model import ModelShape
from holdfast.planning.timing import StepTime, mfu, step_time

TERA = 1e12
SEQUENCE = 2048
MEGATRON = (
    # billions of parameters, heads, hidden, layers, tp, pp, GPUs, batch, TFLOP/s per GPU
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 138),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138),
    (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148),
    (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163),
    (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163),
)
"""Narayanan et al., arXiv 2104.04473, table 1: A100 80 GB, full recomputation, sequences of 2,048
tokens, 51,200 words. The microbatch is not printed; the paper says that the best one was used."""
LLAMA_405B = ModelShape(126, 16384, 128, 128256, 8192, kv_heads=8, ffn=53248)
LLAMA_8B = ModelShape(32, 4096, 32, 128256, 8192, kv_heads=8, ffn=14336)
LLAMA = (
    # GPUs, cp, dp, tokens of a sequence, sequences of a step, MFU
    (8192, 1, 64, 8192, 2048, 0.43),
    (16384, 1, 128, 8192, 2048, 0.41),
    (16384, 16, 8, 131072, 128, 0.38),
)
"""Llama 3 405B, arXiv 2407.21783, table 4: tp 8, pp 16, H100 80 GB, no recomputation at 8,192."""
RECOMPUTATION: tuple[tuple[Recompute, bool, float], ...] = (
    ("full", False, 0.421),
    ("selective", True, 0.542),
)
"""Korthikanti et al., arXiv 2205.05198, abstract: MFU of a 530 B model on 2,240 A100, with full
recomputation, and with selective recomputation and sequence parallelism."""
ZERO = (
    ("Baseline", 120.0, PlannedLayout(dp_replicate=64)),
    ("Pos+g", 16.6, PlannedLayout(dp_shard=64, pp=2)),
    ("Pos+g+p", 1.9, PlannedLayout(dp_shard=64)),
)
"""Rajbhandari et al., arXiv 1910.02054, figure 1: GB of state per GPU, 7.5 B parameters over 64.
Its second stage is what we do under a pipeline; its first one no layout here does."""
CHECKPOINT = (128, 25600, 160, 13.8)
"""Layers, hidden, heads and TB: Narayanan et al., section 5.10."""
KINDS: tuple[Recompute, ...] = ("none", "full")
TORCHTITAN = ((8, 16, 6667.0), (128, 256, 6514.0))
"""GPUs, sequences of a step, tokens per GPU and second: Llama 3.1 8B, FSDP2, torch.compile, bf16,
selective recomputation, H100 limited to 500 W. torchtitan,
benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3."""


class Compared(NamedTuple):
    """One published figure and ours."""

    name: str
    published: float
    found: float

    @property
    def error(self) -> float:
        """Relative to the published one."""
        return self.found / self.published - 1


def megatron() -> Iterator[Compared]:
    """TFLOP/s per GPU as the paper counts them: four forward passes, attention without a mask."""
    for billions, heads, hidden, layers, tp, pp, gpus, batch, published in MEGATRON:
        request = PlanRequest(
            _gpt(layers, hidden, heads),
            PlannedCluster(gpu=A100),
            gpus,
            _demand_of_2021(batch),
            {"tp": tp, "pp": pp, "cp": 1, "dp_shard": 1},
        )
        step = _best(request, "full")
        flops = 4 * request.model.forward_flops(causal=False) * batch * SEQUENCE
        yield Compared(f"{billions:g} B", published, flops / step.total / gpus / TERA)


def _gpt(layers: int, hidden: int, heads: int) -> ModelShape:
    return ModelShape(layers, hidden, heads, 51200, SEQUENCE, gated=False, tied=True)


def _demand_of_2021(batch: int) -> Demand:
    return Demand(batch, fused_attention=False, sequence_parallel=False, overlapped=False)


def _best(request: PlanRequest, recompute: str) -> StepTime:
    room = request.cluster.gpu.memory_bytes * USABLE_SHARE
    fits = (
        layout
        for layout in possible(request)
        if layout.recompute == recompute
        and memory(request.model, layout, request.demand).total <= room
    )
    return min((step_time(request, layout) for layout in fits), key=lambda step: step.total)


def llama() -> Iterator[Compared]:
    """MFU; of attention the half that is not masked counts."""
    for gpus, cp, dp, sequence, batch, published in LLAMA:
        request = PlanRequest(
            replace(LLAMA_405B, sequence=sequence),
            PlannedCluster(gpu=H100),
            gpus,
            Demand(batch),
            {"tp": 8, "pp": 16, "cp": cp, "dp_shard": dp},
        )
        found = mfu(request, _best(request, "none").total)
        yield Compared(f"{gpus:,} GPUs, {sequence:,} tokens", published, found)


def recomputation() -> Iterator[Compared]:
    """MFU as that paper counts it: attention without a mask."""
    model, batch, gpus = _gpt(105, 20480, 128), 2240, 2240
    layout = PlannedLayout(dp_replicate=8, tp=8, pp=35, chunks=3)
    for kind, split, published in RECOMPUTATION:
        demand = _demand_of_2021(batch)._replace(sequence_parallel=split)
        request = PlanRequest(model, PlannedCluster(gpu=A100), gpus, demand, {"tp": 8, "pp": 35})
        step = step_time(request, replace(layout, recompute=kind))
        flops = 3 * model.forward_flops(causal=False) * batch * SEQUENCE
        found = flops / step.total / gpus / A100.peak_flops
        yield Compared(f"530 B, {kind}", published, found)


def torchtitan() -> Iterator[Compared]:
    """Tokens per GPU and second without and with full recomputation; what was measured, with a
    selective one, is slower than both."""
    gpu = replace(H100, memory_bytes=96 * GIB, memory_bytes_per_s=2.4e12)
    for gpus, batch, published in TORCHTITAN:
        request = PlanRequest(LLAMA_8B, PlannedCluster(gpu=gpu), gpus, Demand(batch), {})
        for kind in KINDS:
            layout = PlannedLayout(dp_shard=gpus, micro=2, recompute=kind)
            tokens = batch * LLAMA_8B.sequence / gpus / step_time(request, layout).total
            yield Compared(f"8 B on {gpus} GPUs, recomputing {kind}", published, tokens)


def zero() -> Iterator[Compared]:
    """GB of parameters, gradients and optimizer state of all stages of a GPU's pipeline."""
    model, demand = _gpt(36, 4096, 32), Demand(64, gradient_bytes=2)
    for name, published, layout in ZERO:
        held = memory(model, layout, demand)
        state = layout.pp * (held.parameters + held.gradients + held.optimizer)
        yield Compared(name, published, state / 1e9)


def gpt3() -> Iterator[Compared]:
    """Bytes of activations of a layer per token and hidden number, with scores and without; and
    parameters."""
    model, layout = _gpt(96, 12288, 96), PlannedLayout()
    yield Compared("billions of parameters", 174.6, model.params / 1e9)
    for fused, published in ((False, 34 + 80.0), (True, 34.0)):
        found = layer_activation_bytes(model, layout, Demand(1, fused_attention=fused))
        yield Compared("bytes per s·b·h", published, found / SEQUENCE / model.hidden)
    shape = _gpt(*CHECKPOINT[:3])
    size = checkpoint_bytes(shape, Demand(1)) / TERA
    yield Compared("TB of a checkpoint of 1,008 B", CHECKPOINT[3], size)
