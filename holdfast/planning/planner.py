"""Every layout that fits, the quickest first.

All that divide model, GPUs and batch are weighed by the cost model. Of those with the same tp, pp,
cp and ep only the best is kept: how data parallelism is split, the microbatch, interleaving and
recomputation would fill the table with rows that hardly differ.
"""

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.errors import Error
from holdfast.planning.keeping import Keeping, host_bytes, keeping
from holdfast.planning.layout import PlannedLayout, PlanRequest, meshes, possible, require_possible
from holdfast.planning.memory import USABLE_SHARE, GpuMemory, memory
from holdfast.planning.timing import StepTime, mfu, step_time

DOUBLINGS_MAX = 8
HOUR_S = 3600.0


class Planned(NamedTuple):
    """One layout and what the cost model says of it."""

    layout: PlannedLayout
    memory: GpuMemory
    step: StepTime
    mfu: float
    keeping: Keeping
    steps: int
    """Of the whole training."""

    @property
    def train_s(self) -> float:
        """Of steps alone."""
        return self.steps * self.step.total

    @property
    def wall_s(self) -> float | None:
        """With what failures and snapshots cost, as far as the formula knows."""
        return self.train_s / self.keeping.ettr if self.keeping.ettr else None

    @property
    def gpu_hours(self) -> float | None:
        """Of the GPUs that train, spares left out."""
        return None if self.wall_s is None else self.layout.world * self.wall_s / HOUR_S


def plan(request: PlanRequest, rows: int) -> list[Planned]:
    """The best `rows` layouts. Raises `Error` plan-impossible."""
    require_possible(request)
    best: dict[tuple[int, ...], tuple[StepTime, PlannedLayout, GpuMemory]] = {}  # by mesh
    for layout, held in _fitting(request):
        step = step_time(request, layout)
        known = best.get(_mesh(layout))
        if known is None or step.total < known[0].total:
            best[_mesh(layout)] = (step, layout, held)
    if not best:
        raise _too_large(request)
    found = [_told(request, layout, held, step) for step, layout, held in best.values()]
    return sorted(found, key=_rank)[:rows]


def _mesh(layout: PlannedLayout) -> tuple[int, ...]:
    return (layout.tp, layout.pp, layout.cp, layout.ep)


def _rank(found: Planned) -> tuple[bool, float, tuple[int, ...]]:
    """By the time to train; where the formula has none, by that of the steps, after all others."""
    unknown = found.wall_s is None
    return unknown, found.train_s if unknown else found.wall_s or 0.0, _mesh(found.layout)


def _fitting(request: PlanRequest) -> Iterator[tuple[PlannedLayout, GpuMemory]]:
    """Layouts whose fullest GPU and whose snapshots have room."""
    model, cluster, _, demand, _ = request
    room = cluster.gpu.memory_bytes * USABLE_SHARE
    for layout in possible(request):
        held = memory(model, layout, demand)
        if held.total <= room and (
            host_bytes(model, layout, demand, cluster) <= cluster.host_memory_bytes
        ):
            yield layout, held


def _told(request: PlanRequest, layout: PlannedLayout, held: GpuMemory, step: StepTime) -> Planned:
    model, cluster, _, demand, _ = request
    tokens = demand.sequences * model.sequence
    return Planned(
        layout=layout,
        memory=held,
        step=step,
        mfu=mfu(request, step.total),
        keeping=keeping(model, layout, demand, cluster, step.total),
        steps=max(1, round(demand.tokens / tokens)),
    )


def _too_large(request: PlanRequest) -> Error:
    """Which number is in the way, and what would fit."""
    model, cluster, gpus, demand, _ = request
    tried = list(possible(request))
    if not tried:
        return _indivisible(request)
    least = min(tried, key=lambda layout: memory(model, layout, demand).total)
    needs = memory(model, least, demand).total
    has = cluster.gpu.memory_bytes
    more = _enough(request)
    host = min(host_bytes(model, layout, demand, cluster) for layout in tried)
    return Error(
        "plan-impossible",
        f"the training does not fit into {gpus} × {cluster.gpu.name}",
        why=f"the smallest layout ({mesh_in_words(least)}) takes {needs / 1e9:.1f} GB of "
        f"{has * USABLE_SHARE / 1e9:.1f} GB that can be used of a GPU, and snapshots at least "
        f"{host / 1e9:.0f} GB of a node's {cluster.host_memory_bytes / 1e9:.0f} GB",
        help=f"it fits into {more} GPUs" if more else "plan with larger GPUs or a smaller model",
    )


def _indivisible(request: PlanRequest) -> Error:
    gpus, batch = request.gpus, request.demand.sequences
    fewest = min((layout.replicas for layout in meshes(request)), default=0)
    why = f"{batch} sequences are not divisible by {fewest} replicas, the fewest of {gpus} GPUs"
    remedy = f"give --batch {max(1, round(batch / max(fewest, 1))) * fewest}, for example"
    if not fewest:
        why = f"what is left of {gpus} GPUs beside the chosen dimensions divides no other one"
        remedy = "choose fewer dimensions"
    what = "no layout divides model, GPUs and batch"
    freely = request._replace(demand=request.demand._replace(parallelized=False))
    if any(True for _ in possible(freely)) and request.demand.parallelized:
        what = "no layout that divides model, GPUs and batch can be written as a job file"
        why = (
            "run.parallelize() gives one or two stages to a rank, and as many microbatches as "
            "stages; tp divides no head and no experts, pp needs weights that are not tied"
        )
        remedy = "choose a smaller tp or pp, or plan without --write"
    return Error("plan-impossible", what, why=why, help=remedy)


def _enough(request: PlanRequest) -> int | None:
    for doubled in range(1, DOUBLINGS_MAX + 1):
        more = request._replace(gpus=request.gpus << doubled)
        if any(True for _ in _fitting(more)):
            return more.gpus
    return None


def mesh_in_words(layout: PlannedLayout) -> str:
    """`tp 8, pp 4, dp_shard 16`: the dimensions that are more than one."""
    named = layout.dimensions.items()
    return ", ".join(f"{name} {size}" for name, size in named if size > 1) or "one GPU"
