"""`holdfast plan`: which layout, how much memory, how long, how expensive, before anything runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.output import AsJson, json_result, talk
from holdfast.errors import Error, shown

if TYPE_CHECKING:
    from holdfast.planning.hardware import PlannedCluster
    from holdfast.planning.layout import PlanRequest
    from holdfast.planning.model import ModelShape
    from holdfast.planning.planner import Planned

BATCH_TOKENS = 1 << 22

Model = Annotated[
    str,
    typer.Argument(
        help="A Hugging Face config.json, or numbers: layers=32,hidden=4096,heads=32,vocab=32000,"
        "sequence=4096; beside them kv_heads, head_dim, ffn, gated, tied, experts, active_experts, "
        "expert_ffn, shared_ffn.",
        metavar="MODEL",
        show_default=False,
    ),
]
Gpus = Annotated[int, typer.Option("--gpus", min=1, max=1_000_000, help="Number of GPUs.")]
Kind = Annotated[str, typer.Option("--gpu", help="Kind of GPU.")]
Tokens = Annotated[float, typer.Option("--tokens", help="Tokens to train on.")]
Batch = Annotated[
    int | None,
    typer.Option(
        "--batch", min=1, max=10_000_000, help="Sequences per global batch. Default: 4 Mi tokens."
    ),
]
Length = Annotated[
    int | None,
    typer.Option(
        "--sequence", min=1, max=100_000_000, help="Tokens per sequence. Default: the model's."
    ),
]
ClusterFile = Annotated[
    Path | None,
    typer.Option(
        "--cluster", help="File with links, storage, failure rate and price of the cluster."
    ),
]
Chosen = Annotated[
    str | None,
    typer.Option("--parallel", metavar="NAME=SIZE,...", help="Dimensions with a fixed size."),
]
Rows = Annotated[int, typer.Option("--rows", min=1, max=1000, help="Layouts to show.")]
Seeds = Annotated[
    int | None,
    typer.Option("--simulate", min=1, max=1000, metavar="SEEDS",
                 help="Ask the simulator for the ETTR of the best layout, in this many worlds."),
]  # fmt: skip
Plot = Annotated[Path | None, typer.Option("--plot", help="Plot to this .png or .svg file.")]
Write = Annotated[
    Path | None,
    typer.Option("--write",
                 help="Rank what run.parallelize() does, and write the best as a new job file."),
]  # fmt: skip


def plan(
    model: Model,
    gpus: Gpus,
    gpu: Kind = "h100-80gb",
    tokens: Tokens = 1e12,
    batch: Batch = None,
    sequence: Length = None,
    cluster: ClusterFile = None,
    parallel: Chosen = None,
    rows: Rows = 10,
    simulate: Seeds = None,
    plot: Plot = None,
    write: Write = None,
    as_json: AsJson = False,
) -> None:
    """Rank parallel layouts for a model by a cost model: memory, time, MFU, checkpoints, spares.

    All numbers are results of a model, with its bounds in docs/concepts/planning.md.
    """
    from holdfast.cli import plan_text
    from holdfast.planning.answer import of_plan
    from holdfast.planning.layout import Demand, PlanRequest
    from holdfast.planning.planner import plan as ranked
    from holdfast.simulation import plots

    if plot is not None:
        plots.check(plot)
    if write is not None:
        _require_new(write)
    shape = _model(model, sequence)
    sequences = batch or max(1, BATCH_TOKENS // shape.sequence)
    demand = Demand(sequences, _positive(tokens), parallelized=write is not None)
    request = PlanRequest(shape, _cluster(cluster, gpu), gpus, demand, _chosen(parallel))
    found = ranked(request, rows)
    simulated = None if simulate is None else _simulated(request, found[0], simulate)
    if plot is not None:
        _draw(plot, request, found)
    if write is not None:
        _write(write, request, found[0])
    if as_json:
        answer = of_plan(request, found)
        json_result(answer if simulated is None else {"plan": answer, "simulated": simulated})
    else:
        plan_text.show(request, found, simulated)


# ── what is read ──


def _model(text: str, sequence: int | None) -> "ModelShape":
    from holdfast.planning.model import from_config, from_numbers

    if "=" in text:
        return from_numbers(_pairs(text, "MODEL"), sequence)
    return from_config(_file(Path(text)), sequence)


def _cluster(file: Path | None, kind: str) -> "PlannedCluster":
    from holdfast.planning import hardware

    gpu = hardware.gpu_named(kind)
    data = {} if file is None else _file(file)
    return hardware.cluster_file(data, str(file)).applied(gpu)


def _chosen(text: str | None) -> dict[str, int]:
    pairs = {} if text is None else _pairs(text, "--parallel")
    for name, value in pairs.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise _bad_pair(f"{name}={value}", "--parallel", "a dimension is a whole number")
    return pairs


def _pairs(text: str, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not value:
            raise _bad_pair(part, where, "a number is given as NAME=VALUE")
        if name in found:
            raise _bad_pair(part, where, f"{name} is given twice")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    """A whole number or a truth; anything else as it is, for the message that refuses it."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text


def _bad_pair(part: str, where: str, why: str) -> Error:
    remedy = "for example layers=32,hidden=4096" if where == "MODEL" else "for example tp=8,pp=4"
    return Error("usage", f"{where}: cannot read {shown(part)}", why=why, help=remedy)


def _positive(tokens: float) -> float:
    if 0 < tokens < 1e18:
        return tokens
    why = "it must be more than 0 and less than 1e18"
    raise Error("usage", f"--tokens {tokens:g} is impossible", why=why, help="--tokens 2e12")


def _file(path: Path) -> Mapping[str, Any]:
    """JSON or YAML; JSON is YAML, too, but for `1e-05`, which Hugging Face writes."""
    import json

    from holdfast.spec import reading

    try:
        text = reading.file_text(path)
        data = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except (reading.UnreadableError, ValueError, RecursionError) as exc:
        model = "give a config.json, or numbers as in layers=32,hidden=4096"
        cluster = "docs/concepts/planning.md describes a cluster file"
        remedy = model if path.suffix == ".json" else cluster
        raise Error("plan-invalid", f"cannot read {path}", why=str(exc), help=remedy) from None
    if not isinstance(data, dict):
        why = "`key: value` is expected at the top"
        raise Error("plan-invalid", f"cannot read {path}", why=why, help="holdfast plan --help")
    return data


def _yaml(text: str) -> Any:
    from holdfast.spec import reading

    read = reading.mapping(text)
    if read.problems:
        raise ValueError(f"{'.'.join(map(str, read.problems[0].place))}: {read.problems[0].what}")
    return read.data


# ── what else is asked for ──


def _simulated(request: "PlanRequest", best: "Planned", seeds: int) -> dict[str, float]:
    """ETTR of the production controller in a modelled cluster, for the number of nodes, steps,
    spares, failures and snapshots of this plan."""
    from holdfast.planning.keeping import nodes_of
    from holdfast.simulation.sweep import answer, question

    keeping, step_s = best.keeping, best.step.total
    numbers = {
        "nodes": nodes_of(best.layout, request.cluster),
        "seeds": seeds,
        "spares": keeping.spares,
        "step_s": step_s,
        "cluster.gpus_per_node": min(request.cluster.gpus_per_node, request.gpus),
        "failures.rate_per_1000_node_days": request.cluster.failures_per_1000_node_days,
        "checkpoint.save_s": keeping.snapshot_s,
        "checkpoint.interval_s": keeping.snapshot_every_steps * step_s,
    }
    asked = question("rsc1-8k", [f"{key}={value!r}" for key, value in numbers.items()])
    ettr = answer(asked)[1].ettr
    return {"ettr": ettr.mean, "ettr_half": ettr.half if seeds > 1 else 0.0, "seeds": seeds}


def _draw(path: Path, request: "PlanRequest", found: "Sequence[Planned]") -> None:
    from holdfast.planning.planner import mesh_in_words
    from holdfast.simulation import plots

    bars = {mesh_in_words(planned.layout): planned.step._asdict() for planned in found}
    title = f"Step of {request.model.params / 1e9:,.1f} B parameters on {request.gpus:,} GPUs"
    plots.draw_steps(path, title, bars)
    talk(f"plot written to {path}")


def _require_new(path: Path) -> None:
    if path.exists():
        raise Error(
            "usage",
            f"{path} exists already",
            why="a job file is written as a whole, and yours would be lost",
            help="give the name of a new file, and copy what you need",
        )


def _write(path: Path, request: "PlanRequest", best: "Planned") -> None:
    from holdfast.planning.job_file import job_text

    path.write_text(job_text(request, best), encoding="utf-8")
    talk(f"{path} written; put your script into it")
