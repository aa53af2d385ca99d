"""Layouts: what is possible, what fits, what comes first, and what is said where nothing does."""

import math
from dataclasses import replace

import pytest

from holdfast.errors import Error
from holdfast.planning.hardware import A100, GPUS, PlannedCluster, cluster_file, gpu_named
from holdfast.planning.keeping import keeping
from holdfast.planning.layout import Demand, PlannedLayout, PlanRequest, possible
from holdfast.planning.memory import USABLE_SHARE, memory
from holdfast.planning.model import ModelShape
from holdfast.planning.planner import plan
from holdfast.planning.timing import step_time
from holdfast.planning.validation import LLAMA_8B, LLAMA_405B

SMALL = ModelShape(12, 768, 12, 50304, 1024, gated=False, tied=True)
EXPERTS = replace(LLAMA_8B, vocab=32000, sequence=4096, experts=8, active_experts=2)
BIG = PlanRequest(LLAMA_405B, PlannedCluster(), 512, Demand(512, 2e12), {})


def refused(request: PlanRequest) -> Error:
    with pytest.raises(Error) as caught:
        plan(request, 1)
    assert caught.value.slug == "plan-impossible"
    return caught.value


def test_every_layout_divides_gpus_batch_and_model() -> None:
    for model in (LLAMA_8B, EXPERTS):
        request = PlanRequest(model, PlannedCluster(), 64, Demand(96), {})
        layouts = list(possible(request))
        assert len(layouts) == len(set(layouts)) > 100
        for layout in layouts:
            assert layout.world == 64
            assert layout.microbatches(96) * layout.micro * layout.replicas == 96
            assert model.heads % layout.tp == 0


def test_experts_are_divided_within_a_node_or_one_on_each_gpu_or_as_somebody_asks() -> None:
    sixteen = replace(EXPERTS, experts=16)
    for model, fixed, sizes in (
        (EXPERTS, {}, {1, 8}),
        (sixteen, {}, {1, 8, 16}),
        (EXPERTS, {"ep": 4}, {4}),
        (LLAMA_8B, {}, {1}),
    ):
        request = PlanRequest(model, PlannedCluster(), 64, Demand(96), fixed)
        layouts = list(possible(request))
        assert {layout.ep for layout in layouts} == sizes
        assert all(layout.dp_shard * layout.cp % layout.ep == 0 for layout in layouts)


def test_rows_fit_are_ranked_by_time_and_differ() -> None:
    rows = plan(BIG, 8)
    room = BIG.cluster.gpu.memory_bytes * USABLE_SHARE
    assert all(row.memory.total <= room for row in rows)
    times = [row.wall_s or math.inf for row in rows]
    assert times == sorted(times)
    assert len({(r.layout.tp, r.layout.pp, r.layout.cp) for r in rows}) == len(rows)


def test_a_small_model_on_one_node_needs_data_parallelism_only() -> None:
    best = plan(PlanRequest(SMALL, PlannedCluster(), 8, Demand(512), {}), 1)[0].layout
    assert (best.tp, best.pp, best.cp, best.recompute) == (1, 1, 1, "none")


def test_recomputation_is_chosen_where_activations_do_not_fit() -> None:
    small = replace(A100, memory_bytes=24e9)
    fixed = {"dp_shard": 64}
    request = PlanRequest(LLAMA_8B, PlannedCluster(gpu=small), 64, Demand(64), fixed)
    assert plan(request, 1)[0].layout.recompute == "full"


@pytest.mark.parametrize("model", [LLAMA_405B, EXPERTS, SMALL], ids=["405b", "experts", "tied"])
def test_of_a_job_file_only_what_run_parallelize_does_is_planned(model: ModelShape) -> None:
    demand = Demand(512, 2e12, parallelized=True)
    layouts = list(possible(PlanRequest(model, PlannedCluster(), 512, demand, {})))
    assert {layout.chunks for layout in layouts} <= {1, 2}
    staged = [layout for layout in layouts if layout.pp > 1]
    for stages in (layout.pp * layout.chunks for layout in staged):
        assert not model.layers % stages or (model.layers + 2) % stages == 0 < model.layers - stages
    assert all(layout.microbatches(512) >= layout.pp for layout in staged)
    assert bool(staged) is not model.tied
    assert all((model.kv_heads or model.heads) % layout.tp == 0 for layout in layouts)
    assert not model.experts or {layout.tp for layout in layouts} == {1}


def test_a_layout_of_a_job_file_that_run_parallelize_does_not_do_says_why() -> None:
    tied = PlanRequest(SMALL, PlannedCluster(), 512, Demand(512), {"pp": 4})
    assert [*possible(tied)]
    error = refused(tied._replace(demand=Demand(512, parallelized=True)))
    assert "can be written as a job file" in error.what
    assert "not tied" in error.why and "--write" in error.help


def test_dimensions_that_were_chosen_are_kept() -> None:
    fixed = {"tp": 8, "pp": 16, "dp_shard": 4, "cp": 1}
    layout = plan(BIG._replace(fixed=fixed), 5)[0].layout
    assert {name: layout.dimensions[name] for name in fixed} == fixed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fixed": {"tp": 6}}, "heads 128 are not divisible by tp 6"),
        ({"fixed": {"tp": 16}}, "tp 16 is more than a node's 8 GPUs"),
        ({"fixed": {"pp": 5}}, "layers 126 are not divisible by pp 5"),
        ({"fixed": {"cp": 3}}, "sequence 8192 is not divisible by 2 × cp 3"),
        ({"fixed": {"ep": 2}}, "experts 0 are not divisible by ep 2"),
        ({"fixed": {"ddp": 2}}, "ddp=2 is not a dimension"),
        ({"fixed": {"tp": 0}}, "tp=0 is not a dimension"),
        ({"gpus": 100, "fixed": {"tp": 8}}, "100 GPUs are not divisible by tp 8"),
        ({"fixed": {"dp_shard": 64}, "demand": Demand(96)}, "96 sequences is not divisible by 64"),
        ({"gpus": 1, "model": LLAMA_8B}, "does not fit into 1 × h100-80gb"),
        ({"gpus": 11, "demand": Demand(3)}, "3 sequences are not divisible by 11 replicas"),
        ({"gpus": 11, "fixed": {"dp_shard": 1, "dp_replicate": 1}}, "divides no other one"),
    ],
)
def test_what_does_not_fit_is_named_with_what_would(change: dict[str, object], said: str) -> None:
    assert said in str(refused(BIG._replace(**change)))  # type: ignore[arg-type]


def test_help_for_a_model_that_is_too_large_is_a_number_of_gpus_that_fits() -> None:
    request = BIG._replace(model=LLAMA_8B, gpus=1)
    gpus = int(refused(request).help.removeprefix("it fits into ").removesuffix(" GPUs"))
    assert plan(request._replace(gpus=gpus), 1)
    refused(request._replace(gpus=gpus // 2))


def test_a_step_adds_up_and_twice_the_link_never_takes_longer() -> None:
    layout = PlannedLayout(dp_shard=4, tp=8, pp=8, cp=2, chunks=2)
    fast = replace(BIG.cluster.gpu, network_bytes_per_s=100e9)
    slow_step = step_time(BIG, layout)
    fast_step = step_time(BIG._replace(cluster=PlannedCluster(gpu=fast)), layout)
    assert slow_step.total == pytest.approx(sum(slow_step))
    assert fast_step.exposed < slow_step.exposed
    assert fast_step.compute == slow_step.compute


def test_interleaving_shortens_the_bubble_and_takes_memory() -> None:
    plain = PlannedLayout(dp_shard=4, tp=8, pp=16, chunks=1)
    pieces = replace(plain, chunks=4)
    assert step_time(BIG, pieces).bubble < step_time(BIG, plain).bubble / 3
    assert memory(LLAMA_405B, pieces, BIG.demand).activations > (
        memory(LLAMA_405B, plain, BIG.demand).activations
    )


def test_sharding_divides_state_and_replicas_need_no_buddy() -> None:
    demand, cluster = Demand(64), PlannedCluster()
    shard, mixed = PlannedLayout(dp_shard=64), PlannedLayout(dp_replicate=2, dp_shard=32)
    assert memory(LLAMA_8B, mixed, demand).optimizer == pytest.approx(
        2 * memory(LLAMA_8B, shard, demand).optimizer
    )
    alone = keeping(LLAMA_8B, shard, demand, cluster, 1.0)
    copied = keeping(LLAMA_8B, mixed, demand, cluster, 1.0)
    assert copied.snapshot_bytes == pytest.approx(2 * alone.snapshot_bytes)
    assert copied.host_bytes == pytest.approx(alone.host_bytes)  # twice as large, half as many


def test_the_ettr_falls_with_failures_and_is_unknown_where_the_formula_fails() -> None:
    layout, demand = PlannedLayout(dp_shard=64), Demand(64)
    ettrs = [
        keeping(
            LLAMA_8B, layout, demand, PlannedCluster(failures_per_1000_node_days=rate), 1.0
        ).ettr
        for rate in (0.0, 6.5, 500.0, 1e6)
    ]
    assert ettrs[0] is not None and ettrs[1] is not None and ettrs[2] is not None
    assert ettrs[0] > ettrs[1] > ettrs[2] > 0
    assert ettrs[3] is None


def test_a_cluster_file_overrides_what_is_assumed() -> None:
    data = {"price_per_gpu_hour": 2, "gpus_per_node": 4, "gpu": {"matmul_share": 0.5}}
    cluster = cluster_file(data, "c.yaml").applied(gpu_named("H100-80GB"))
    assert (cluster.price_per_gpu_hour, cluster.gpus_per_node) == (2, 4)
    assert cluster.gpu == replace(GPUS["h100-80gb"], matmul_share=0.5, calibrated=False)
    assert cluster_file({}, "none").applied(A100) == PlannedCluster(gpu=A100)


def test_all_problems_of_a_cluster_file_are_told_at_once() -> None:
    data = {
        "prize": 2,
        "link_share": 1.5,
        "gpus_per_node": 2.5,
        "lost_s": "long",
        "replace_s": 0,
        "gpu": {"peak_flops": float("nan"), "cores": 3},
    }
    with pytest.raises(Error) as caught:
        cluster_file(data, "c.yaml")
    assert caught.value.what == "c.yaml: 7 problems"
    for key in ("prize", "link_share", "gpus_per_node", "lost_s", "gpu.peak_flops", "gpu.cores"):
        assert f"\n    {key}: " in caught.value.why
    with pytest.raises(Error, match="must have keys of its own"):
        cluster_file({"gpu": "h100"}, "c.yaml")


def test_a_gpu_that_is_not_known_is_told_which_are() -> None:
    with pytest.raises(Error, match="h100-80gb"):
        gpu_named("h100")
