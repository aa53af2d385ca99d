"""A job file with what a plan has found out: size, layout, spares, failures.

Keys of `parallel` are those of the job file; the microbatch, which follows from the batch size that
the script gives its loader, stands above as a comment. The plan is one of `Demand.parallelized`.
"""

from typing import Any

from holdfast.planning.keeping import nodes_of
from holdfast.planning.layout import PlanRequest
from holdfast.planning.planner import Planned, mesh_in_words
from holdfast.spec import job_from_dict
from holdfast.spec.load import to_yaml

HOUR_S = 3600.0
MTTF_H_MAX = 1_000_000


def job_text(request: PlanRequest, found: Planned) -> str:
    """A job file that is valid but for the name of its script."""
    layout, keeping = found.layout, found.keeping
    workers = min(request.cluster.gpus_per_node, request.gpus)
    data: dict[str, Any] = {
        "name": "planned",
        "script": "train.py",
        "nodes": {"count": nodes_of(layout, request.cluster), "spares": keeping.spares},
        "workers_per_node": workers,
        "parallel": {
            **{name: size for name, size in layout.dimensions.items() if size > 1},
            "dp_shard": layout.dp_shard,
            "schedule": "interleaved" if layout.chunks > 1 else "1f1b",
            "precision": "bf16",
            "activation_checkpointing": layout.recompute,
            "accumulate": layout.microbatches(request.demand.sequences),
        },
        "recovery": {"mttf_h": min(MTTF_H_MAX, float(f"{keeping.mttf_s / HOUR_S:.3g}"))},
        "resources": {
            "gpus": workers,
            "state": f"{-(-keeping.snapshot_bytes // (1 << 20)):.0f}Mi",
        },
    }
    job = job_from_dict(data, where="the planned job")
    return f"{_comment(request, found)}{to_yaml(job)}"


def _comment(request: PlanRequest, found: Planned) -> str:
    layout, model = found.layout, request.model
    return (
        f"# Planned for {model.params / 1e9:,.1f} B parameters on {request.gpus} × "
        f"{request.cluster.gpu.name}: {mesh_in_words(layout)}.\n"
        f"# {request.demand.sequences} sequences of {model.sequence} tokens a step, microbatches "
        f"of {layout.micro}, {layout.chunks} piece(s) of the model on a pipeline stage;\n"
        f"# model results: {found.step.total:.2f} s a step, MFU {found.mfu:.1%}, "
        f"{found.memory.total / 1e9:.0f} GB of a GPU.\n"
    )
