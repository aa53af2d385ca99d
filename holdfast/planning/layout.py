"""How a training is spread over GPUs, and which ways of it are possible.

The dimensions have the names of the job file's `parallel`. GPUs are numbered so that tp is
innermost (a node's fast links), then cp, dp_shard, dp_replicate, and pp outermost; ep takes its
part of dp_shard and cp, so it is no factor of the world size (as torchtitan counts).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from holdfast.errors import Error
from holdfast.planning.hardware import PlannedCluster
from holdfast.planning.model import ModelShape, divisors_of

Recompute = Literal["none", "selective", "full"]
DIMENSIONS = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
MICRO_MAX = 16
CP_MAX = 64
CHUNKS_MAX = 8
CHUNKS_PARALLELIZED = 2  # of `schedule: interleaved`
LOCAL_TOKENS_MIN = 1024  # a shorter piece of a sequence leaves matrix products too small


@dataclass(frozen=True)
class PlannedLayout:
    """The dimensions, and how the batch goes through them."""

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    micro: int = 1
    """Sequences of a microbatch."""
    chunks: int = 1
    """Pieces of the model on each pipeline stage (interleaved 1F1B); 1 is plain 1F1B."""
    recompute: Recompute = "none"

    @property
    def world(self) -> int:
        """GPUs."""
        return self.dp_replicate * self.dp_shard * self.tp * self.pp * self.cp

    @property
    def dimensions(self) -> dict[str, int]:
        """By the names of the job file."""
        return {name: getattr(self, name) for name in DIMENSIONS}

    @property
    def replicas(self) -> int:
        """Groups of GPUs that see different sequences."""
        return self.dp_replicate * self.dp_shard

    @property
    def shards(self) -> int:
        """GPUs over which FSDP spreads state: context parallel ones hold the same parameters."""
        return self.dp_shard * self.cp if self.dp_shard > 1 else 1

    @property
    def gathers_each_use(self) -> bool:
        """Whether parameters are spread again after each use (ZeRO-3). Under a pipeline they stay
        (ZeRO-2), as in Llama 3 and by torchtitan's default: gathering per microbatch costs more."""
        return self.shards > 1 and self.pp == 1

    def microbatches(self, sequences: int) -> int:
        """Of one step, through each pipeline."""
        return sequences // (self.replicas * self.micro)

    def tokens(self, sequence: int) -> float:
        """Of one microbatch on one GPU, its tp group together."""
        return self.micro * sequence / self.cp


class Demand(NamedTuple):
    """What is to be trained, and in which precision. Bytes per parameter: Adam in mixed precision,
    with gradients added up in fp32 as FSDP2 and Llama 3 do."""

    sequences: int
    """Sequences of one step over all GPUs."""
    tokens: float = 0.0
    """Of the whole training."""
    weight_bytes: int = 2
    gradient_bytes: int = 4
    optimizer_bytes: int = 12
    """fp32 copy, momentum, variance. Source: ZeRO, arXiv 1910.02054, section 3.1."""
    fused_attention: bool = True
    """FlashAttention: no s × s scores in memory, and the masked half is not computed."""
    sequence_parallel: bool = True
    """Norms and dropout are split along the sequence within a tp group."""
    overlapped: bool = True
    """Collectives of data parallelism run beside computation."""
    parallelized: bool = False
    """Only what `run.parallelize()` does, of which a job file can be written."""


class PlanRequest(NamedTuple):
    """What a plan is asked for."""

    model: ModelShape
    cluster: PlannedCluster
    gpus: int
    demand: Demand
    fixed: Mapping[str, int]
    """Dimensions that were chosen already."""


def layers_of_a_stage(model: ModelShape, pp: int) -> int:
    """Layers of a middle stage; 0 if they cannot be spread evenly.

    Where the layers alone cannot, embedding and output count as one each: Llama 3 leaves out one
    layer of the first and of the last stage (arXiv 2407.21783, section 3.3.2).
    """
    if model.layers % pp == 0:
        return model.layers // pp
    return (model.layers + 2) // pp if (model.layers + 2) % pp == 0 else 0


def layers_of_an_end(model: ModelShape, pp: int) -> int:
    """Layers of the first and of the last stage."""
    return layers_of_a_stage(model, pp) - (model.layers % pp != 0)


def possible(request: PlanRequest) -> Iterator[PlannedLayout]:
    """Every layout that divides the model, the GPUs and the batch; memory is not looked at.

    dp_shard is tried as nothing, a node's part, and everything, ep as nothing, a node's GPUs and
    one expert on each; more groups differ little.
    """
    for meshed in meshes(request):
        if request.demand.sequences % meshed.replicas == 0:
            for layout in _schedules(request.model, meshed, request.demand):
                if not request.demand.parallelized or _is_parallelized(request, layout):
                    yield layout


def _is_parallelized(request: PlanRequest, layout: PlannedLayout) -> bool:
    """Whether `run.parallelize()` does this: one or two stages on a rank, heads and not parts of
    one, experts whole, embedding and output of their own."""
    model, pp, tp = request.model, layout.pp, layout.tp
    whole_heads = (model.kv_heads or model.heads) % tp == 0
    staged = (
        layout.chunks <= CHUNKS_PARALLELIZED
        and layers_of_an_end(model, pp * layout.chunks) > 0
        and layout.microbatches(request.demand.sequences) >= pp
        and not model.tied
    )
    return whole_heads and (tp == 1 or not model.experts) and (pp == 1 or staged)


def meshes(request: PlanRequest) -> Iterator[PlannedLayout]:
    """Every mesh that divides the model and the GPUs; the batch is not looked at."""
    model, cluster, gpus, _, fixed = request
    for tp in _chosen("tp", fixed, range(1, cluster.gpus_per_node + 1)):
        if gpus % tp or not _tp_fits(model, tp):
            continue
        for pp in _chosen("pp", fixed, range(1, model.layers + 1)):
            if gpus // tp % pp or not layers_of_a_stage(model, pp):
                continue
            for cp in _chosen("cp", fixed, _powers(CP_MAX)):
                if gpus // tp // pp % cp or not _cp_fits(model, cp, "cp" in fixed):
                    continue
                yield from _data_parallel(request, PlannedLayout(tp=tp, pp=pp, cp=cp))


def _data_parallel(request: PlanRequest, layout: PlannedLayout) -> Iterator[PlannedLayout]:
    model, cluster, gpus, _, fixed = request
    width = gpus // layout.world
    groups = sorted({1, cluster.gpus_per_node, model.experts} - {0})
    some = [width // copies for copies in (*_powers(width), width) if width % copies == 0]
    for shard in _chosen("dp_shard", fixed, sorted(set(some))):
        copies = fixed.get("dp_replicate", width // shard if shard else 0)
        if copies * shard != width:
            continue
        for ep in _chosen("ep", fixed, groups):
            if shard * layout.cp % ep == 0 and (model.experts or 1) % ep == 0:
                yield replace(layout, dp_replicate=copies, dp_shard=shard, ep=ep)


def _schedules(model: ModelShape, meshed: PlannedLayout, demand: Demand) -> Iterator[PlannedLayout]:
    """Microbatch, interleaving and recomputation of one mesh."""
    each = demand.sequences // meshed.replicas
    kinds: tuple[Recompute, ...] = ("none", "full")
    if not demand.fused_attention:
        kinds = ("none", "selective", "full")
    for micro in _powers(min(MICRO_MAX, each)):
        if each % micro:
            continue
        for chunks in _chunks(model, meshed.pp, each // micro):
            for kind in kinds:
                yield replace(meshed, micro=micro, chunks=chunks, recompute=kind)


def _chunks(model: ModelShape, pp: int, microbatches: int) -> list[int]:
    """Interleaving needs microbatches in multiples of the stages. Source: as `bubble`."""
    stage = layers_of_a_stage(model, pp)
    if pp == 1 or microbatches % pp:
        return [1]
    return [v for v in range(1, min(CHUNKS_MAX, stage) + 1) if stage % v == 0]


def _chosen(name: str, fixed: Mapping[str, int], free: "range | list[int]") -> "range | list[int]":
    return [fixed[name]] if name in fixed else free


def _powers(most: int) -> list[int]:
    return [1 << n for n in range(max(most, 1).bit_length())]


def _tp_fits(model: ModelShape, tp: int) -> bool:
    kv = model.kv_heads or model.heads
    whole = kv % tp == 0 or tp % kv == 0  # fewer than tp: each is held by several GPUs
    return model.heads % tp == 0 and whole and model.mlp_dim % tp == 0


def _cp_fits(model: ModelShape, cp: int, chosen: bool) -> bool:
    """Each GPU gets two pieces of a sequence, an early and a late one, so that all work alike."""
    long_enough = chosen or cp == 1 or model.sequence // cp >= LOCAL_TOKENS_MIN
    return cp == 1 or (model.sequence % (2 * cp) == 0 and long_enough)


# ── why none is possible ──────────────────────────────────────────────────────────────────────


def require_possible(request: PlanRequest) -> None:
    """Raise `Error` plan-impossible for the first chosen number that divides nothing."""
    model, cluster, gpus, demand, fixed = request
    for name, value in fixed.items():
        if name not in DIMENSIONS or value < 1:
            raise _unfit(f"{name}={value} is not a dimension", f"known are {', '.join(DIMENSIONS)}")
    _require_tp(model, cluster, fixed.get("tp", 1))
    pp, cp, ep = (fixed.get(name, 1) for name in ("pp", "cp", "ep"))
    if not layers_of_a_stage(model, pp):
        fits = [str(n) for n in range(1, model.layers + 1) if layers_of_a_stage(model, n)]
        raise _unfit(
            f"layers {model.layers} are not divisible by pp {pp}, nor with embedding and output "
            f"counted as one each ({model.layers + 2})",
            f"pp that fits: {', '.join(fits)}",
        )
    if not _cp_fits(model, cp, True):
        fits = [str(n) for n in _powers(CP_MAX) if _cp_fits(model, n, True)]
        raise _unfit(
            f"sequence {model.sequence} is not divisible by 2 × cp {cp}",
            f"cp that fits: {', '.join(fits)}",
        )
    if (model.experts or 1) % ep:
        raise _unfit(
            f"experts {model.experts} are not divisible by ep {ep}",
            f"ep that fits: {divisors_of(model.experts or 1, model.experts or 1)}",
        )
    _require_gpus(gpus, demand, fixed)


def _require_tp(model: ModelShape, cluster: PlannedCluster, tp: int) -> None:
    fits = [n for n in range(1, cluster.gpus_per_node + 1) if _tp_fits(model, n)]
    told = f"tp that fits: {', '.join(map(str, fits))}"
    if model.heads % tp:
        raise _unfit(f"heads {model.heads} are not divisible by tp {tp}", told)
    if not _tp_fits(model, tp):
        kv = model.kv_heads or model.heads
        raise _unfit(f"kv_heads {kv} or the MLP's {model.mlp_dim} do not divide by tp {tp}", told)
    if tp > cluster.gpus_per_node:
        raise _unfit(f"tp {tp} is more than a node's {cluster.gpus_per_node} GPUs", told)


def _require_gpus(gpus: int, demand: Demand, fixed: Mapping[str, int]) -> None:
    given = {name: value for name, value in fixed.items() if name != "ep"}
    product = 1
    for value in given.values():
        product *= value
    said = " × ".join(f"{name} {value}" for name, value in given.items())
    if gpus % product:
        below, above = gpus // product * product, (gpus // product + 1) * product
        fits = f"numbers of GPUs that fit: {f'{below}, ' if below else ''}{above}"
        raise _unfit(f"{gpus} GPUs are not divisible by {said} = {product}", fits)
    replicas = fixed.get("dp_replicate", 1) * fixed.get("dp_shard", 1)
    if demand.sequences % replicas:
        raise _unfit(
            f"a batch of {demand.sequences} sequences is not divisible by {replicas} replicas",
            f"give --batch as a multiple of {replicas} sequences",
        )


def _unfit(why: str, remedy: str) -> Error:
    return Error("plan-impossible", "the layout does not fit", why=why, help=remedy)
