"""The JSON of `holdfast plan`: ranked layouts, beside everything they follow from."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from holdfast.planning.keeping import nodes_of
from holdfast.planning.layout import PlanRequest
from holdfast.planning.planner import Planned


class PlannedTier(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoints in one tier."""

    total_bytes: float
    save_s: float
    every_s: float


class PlannedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One layout. All numbers are results of a model, not measurements."""

    parallel: dict[str, int]  # the dimensions, by their names in a job file
    micro_batch: int  # sequences
    accumulate: int  # microbatches of a step
    chunks: int  # pieces of the model on a pipeline stage; more than one is interleaved
    activation_checkpointing: str
    memory_bytes: dict[str, float]  # of the fullest GPU
    memory_total_bytes: float
    step_s: dict[str, float]  # adds up to a step
    step_total_s: float
    mfu: float
    tokens_per_s: float
    train_s: float  # of steps alone
    wall_s: float | None  # with failures; null where they are too frequent for the formula
    gpu_hours: float | None
    cost: float | None  # null without a price
    snapshot_bytes: float  # of one GPU
    snapshot_host_bytes: float  # of one node
    snapshot_every_steps: int
    tiers: dict[str, PlannedTier]
    mttf_s: float
    spares: int
    ettr: float | None  # closed formula


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question, the quickest layout first."""

    params: int
    active_params: int  # that one token is multiplied with
    gpus: int
    nodes: int
    calibrated: bool  # whether the model was compared with trainings on this kind of GPU
    model: dict[str, Any]
    cluster: dict[str, Any]
    demand: dict[str, Any]
    rows: tuple[PlannedRow, ...]
    model_result: bool = True


def of_plan(request: PlanRequest, found: Sequence[Planned]) -> PlanAnswer:
    """As JSON has it."""
    return PlanAnswer(
        params=request.model.params,
        active_params=request.model.active_params,
        gpus=request.gpus,
        nodes=nodes_of(found[0].layout, request.cluster),
        calibrated=request.cluster.gpu.calibrated,
        model=asdict(request.model),
        cluster=asdict(request.cluster),
        demand=request.demand._asdict(),
        rows=tuple(row(request, planned) for planned in found),
    )


def cost(request: PlanRequest, found: Planned) -> float | None:
    """In the currency of the cluster file; None without a price."""
    price = request.cluster.price_per_gpu_hour
    return found.gpu_hours * price if price and found.gpu_hours is not None else None


def row(request: PlanRequest, found: Planned) -> PlannedRow:
    """One layout as JSON has it."""
    layout, keeping = found.layout, found.keeping
    tokens = request.demand.sequences * request.model.sequence
    return PlannedRow(
        parallel=layout.dimensions,
        micro_batch=layout.micro,
        accumulate=layout.microbatches(request.demand.sequences),
        chunks=layout.chunks,
        activation_checkpointing=layout.recompute,
        memory_bytes=found.memory._asdict(),
        memory_total_bytes=found.memory.total,
        step_s=found.step._asdict(),
        step_total_s=found.step.total,
        mfu=found.mfu,
        tokens_per_s=tokens / found.step.total,
        train_s=found.train_s,
        wall_s=found.wall_s,
        gpu_hours=found.gpu_hours,
        cost=cost(request, found),
        snapshot_bytes=keeping.snapshot_bytes,
        snapshot_host_bytes=keeping.host_bytes,
        snapshot_every_steps=keeping.snapshot_every_steps,
        tiers={tier.name.lower(): PlannedTier(**t._asdict()) for tier, t in keeping.tiers.items()},
        mttf_s=keeping.mttf_s,
        spares=keeping.spares,
        ettr=keeping.ettr,
    )
