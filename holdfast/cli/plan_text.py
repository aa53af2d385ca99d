"""What `holdfast plan` prints for people: the ranked layouts, and the first one in detail."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.cli.output import count, duration, result, table
from holdfast.planning.answer import cost
from holdfast.planning.keeping import checkpoint_bytes, nodes_of
from holdfast.planning.planner import mesh_in_words

if TYPE_CHECKING:
    from holdfast.planning.layout import PlanRequest
    from holdfast.planning.planner import Planned

DAY_S = 86_400.0
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"))


def show(
    request: "PlanRequest", found: "Sequence[Planned]", simulated: Mapping[str, float] | None
) -> None:
    """All of it."""
    for line in _told(request, found, simulated):
        result(line)


def _told(
    request: "PlanRequest", found: "Sequence[Planned]", simulated: Mapping[str, float] | None
) -> Iterator[str]:
    best = found[0]
    yield _headline(request, best)
    yield ""
    yield table(
        ("LAYOUT", "MICRO", "RECOMPUTE", "MEMORY", "STEP", "MFU", "EXPOSED", "BUBBLE", "TIME"),
        [_row(planned) for planned in found],
    )
    yield ""
    yield f"The first: {mesh_in_words(best.layout)}"
    yield table(("MEMORY PER GPU", "GB"), _parts(best.memory._asdict(), 1e-9))
    yield ""
    yield table(("STEP", "SECONDS"), _parts(best.step._asdict(), 1.0))
    yield ""
    yield table(("TO TRAIN", ""), list(_training(request, best)))
    yield ""
    yield table(("KEEPING", "SIZE", "SAVED IN", "EVERY"), list(_keeping(request, best)))
    yield ""
    yield from _failures(best, simulated)
    if not request.cluster.gpu.calibrated:
        yield f"{request.cluster.gpu.name}: not compared with any published training"


def _headline(request: "PlanRequest", best: "Planned") -> str:
    model, cluster = request.model, request.cluster
    nodes = count(nodes_of(best.layout, cluster), "node")
    return (
        f"{model.params / 1e9:,.1f} B parameters on {request.gpus:,} × {cluster.gpu.name} "
        f"({nodes}), {request.demand.sequences:,} × {model.sequence:,} tokens a step "
        "(model results)"
    )


def _row(planned: "Planned") -> list[str]:
    layout, step = planned.layout, planned.step
    return [
        mesh_in_words(layout),
        f"{layout.micro}" + (f" × {layout.chunks} chunks" if layout.chunks > 1 else ""),
        layout.recompute,
        f"{planned.memory.total / 1e9:.0f} GB",
        duration(step.total),
        f"{planned.mfu:.1%}",
        f"{step.exposed / step.total:.1%}",
        f"{step.bubble / step.total:.1%}",
        "?" if planned.wall_s is None else _days(planned.wall_s),
    ]


def _parts(parts: Mapping[str, float], unit: float) -> list[tuple[str, str]]:
    rows = [(name, f"{value * unit:>9,.2f}") for name, value in parts.items() if value]
    return [*rows, ("total", f"{sum(parts.values()) * unit:>9,.2f}")]


def _training(request: "PlanRequest", best: "Planned") -> Iterator[tuple[str, str]]:
    tokens = request.demand.sequences * request.model.sequence
    yield "steps", f"{best.steps:,} for {request.demand.tokens:,.3g} tokens"
    yield "tokens a second", f"{tokens / best.step.total:,.0f}"
    yield "steps alone", _days(best.train_s)
    if best.wall_s is None or best.gpu_hours is None:
        return
    yield "with failures", _days(best.wall_s)
    yield "GPU-hours", f"{best.gpu_hours:,.0f}"
    price = cost(request, best)
    yield "cost", f"{price:,.0f}" if price is not None else "price_per_gpu_hour is not given"


def _keeping(request: "PlanRequest", best: "Planned") -> Iterator[tuple[str, str, str, str]]:
    keeping = best.keeping
    steps = count(keeping.snapshot_every_steps, "step")
    yield "snapshot of a GPU", size(keeping.snapshot_bytes), duration(keeping.snapshot_s), steps
    yield "  all of a node", size(keeping.host_bytes), "", "in its memory"
    for tier, planned in keeping.tiers.items():
        every = duration(planned.every_s)
        yield (
            f"checkpoint, {tier.name.lower()}",
            size(planned.total_bytes),
            duration(planned.save_s),
            every,
        )
    if best.layout.world > 1:
        each = checkpoint_bytes(request.model, request.demand) / nodes_of(
            best.layout, request.cluster
        )
        yield "  a node's part", size(each), "", ""


def _failures(best: "Planned", simulated: Mapping[str, float] | None) -> Iterator[str]:
    keeping = best.keeping
    yield f"Failures: one in {_days(keeping.mttf_s)} of the job; {count(keeping.spares, 'spare')}"
    if keeping.ettr is None:
        yield "ETTR: failures are too frequent for the formula; ask with --simulate 5"
    else:
        yield f"ETTR: {keeping.ettr:.2%} (model result, closed formula)"
    if simulated is not None:
        half = f" ± {simulated['ettr_half'] * 100:.2f}" if simulated["ettr_half"] else ""
        seeds = count(int(simulated["seeds"]), "seed")
        yield f"ETTR: {simulated['ettr']:.2%}{half} (model result, simulator, {seeds})"


def size(number: float) -> str:
    """Bytes as a person would say them."""
    for unit, name in UNITS:
        if number >= unit:
            return f"{number / unit:,.1f} {name}"
    return f"{number:,.0f} B"


def _days(seconds: float) -> str:
    return f"{seconds / DAY_S:,.1f} days" if seconds >= DAY_S else duration(seconds)
