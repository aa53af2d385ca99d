"""One model in every layout: the same curve, resumed bit for bit, continued in any other layout."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.train.outer_steps import OuterRequest
from tests.more import MORE, long, sample
from tests.train.curves import STEPS, CurveFleet, apart

TOLERANCE = 5e-4  # of fp32, after 30 steps in which the loss falls from 3.5 to 0.8
DDP: dict[str, Any] = {"dp_replicate": -1, "dp_shard": 1}
FSDP_TP: dict[str, Any] = {"dp_shard": 2, "tp": 2}
PIPELINE: dict[str, Any] = {"pp": 2, "accumulate": 4}
OTHERS: list[tuple[int, dict[str, Any]]] = [
    (2, {"dp_shard": 2}),
    (4, {"dp_replicate": 2, "dp_shard": 2}),
    (2, {"tp": 2}),
    (2, {"tp": 2, "sequence_parallel": True}),
    (2, {"cp": 2}),
    (4, {"cp": 2, "dp_shard": 2}),
    (2, {"pp": 2, "schedule": "gpipe"}),
    (2, {"pp": 2, "schedule": "interleaved", "accumulate": 4}),
    (2, {"pp": 2, "schedule": "zero_bubble", "accumulate": 4}),
    (3, {"pp": 3, "accumulate": 4}),
    (4, {"pp": 2, "dp_shard": 2}),
    (4, {"pp": 2, "cp": 2}),
    (8, {"pp": 2, "tp": 2, "dp_shard": 2}),
    (8, {"pp": 2, "tp": 2, "dp_replicate": 2, "dp_shard": 1, "sequence_parallel": True}),
    (2, {"dp_shard": 2, "accumulate": 2, "activation_checkpointing": "full"}),
    (2, {**DDP, "accumulate": 2, "activation_checkpointing": "selective"}),
]
ROUGH: list[tuple[int, dict[str, Any], float]] = [  # and how far from the sums of fp32
    (2, {**DDP, "gradient_compression": "powersgd"}, 2.0),
    (2, {**DDP, "gradient_compression": "bf16"}, 0.25),
    (2, {**DDP, "precision": "fp16"}, 0.25),
    (2, {"dp_shard": 2, "precision": "fp16", "accumulate": 2}, 0.25),
    (2, {"dp_shard": 2, "precision": "bf16"}, 0.25),
    (2, {"tp": 2, "precision": "bf16"}, 0.25),
    (4, {"pp": 2, "dp_shard": 2, "precision": "bf16"}, 0.25),
    (2, {"pp": 2, "precision": "bf16", "activation_checkpointing": "full"}, 0.25),
    (2, {**DDP, "compile": True}, 1e-3),
    (2, {"dp_shard": 2, "compile": True}, 1e-3),
]
SIMPLE = [(2, DDP), (2, PIPELINE)]


@pytest.fixture(scope="module")
def fleet() -> Iterator[CurveFleet]:
    fleet = CurveFleet(8 if MORE else 2)
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def alone(fleet: CurveFleet) -> list[float]:
    """The curve of one rank without any layout."""
    return fleet.losses(None, 1)


@pytest.mark.parametrize(("world", "layout"), sample(SIMPLE, [(4, FSDP_TP), *OTHERS]), ids=str)
def test_a_layout_has_the_curve_of_one_rank_and_goes_on_from_a_fault_bit_for_bit(
    fleet: CurveFleet, alone: list[float], world: int, layout: dict[str, Any]
) -> None:
    undisturbed = resumes_exactly(fleet, world, layout)
    assert apart(undisturbed, alone) < TOLERANCE


@long
@pytest.mark.parametrize(("world", "layout", "tolerance"), ROUGH, ids=str)
def test_fewer_bits_have_about_the_same_curve_and_resume_bit_for_bit(
    fleet: CurveFleet, alone: list[float], world: int, layout: dict[str, Any], tolerance: float
) -> None:
    undisturbed = resumes_exactly(fleet, world, layout)
    assert apart(undisturbed, alone) < tolerance


def resumes_exactly(
    fleet: CurveFleet, world: int, layout: dict[str, Any], *, experts: bool = False
) -> list[float]:
    """The curve of a layout to which nothing happens, after one that broke off has resumed it."""
    undisturbed = fleet.losses(layout, world, experts=experts)
    assert undisturbed[-1] < undisturbed[0]
    memory, half = f"{world} {layout} {experts}", STEPS // 2
    before = fleet.losses(layout, world, until=half, arena=memory, experts=experts)
    after = fleet.losses(layout, world, seed=2, arena=memory, experts=experts)
    assert before == undisturbed[:half]
    assert after == undisturbed[-len(after) :]
    assert STEPS - half <= len(after) < STEPS
    return undisturbed


CHANGES: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (2, PIPELINE, DDP),
    (2, DDP, {"tp": 2, "sequence_parallel": True}),
    (2, {"dp_shard": 2}, PIPELINE),
    (4, FSDP_TP, {"pp": 2, "dp_shard": 2}),
    (4, {"pp": 2, "tp": 2}, {"dp_replicate": 2, "dp_shard": 1, "cp": 2}),
]


@pytest.mark.parametrize(("world", "old", "new"), sample(CHANGES[:1], CHANGES[1:]), ids=str)
def test_a_restart_in_another_layout_continues_the_curve(
    fleet: CurveFleet, alone: list[float], world: int, old: dict[str, Any], new: dict[str, Any]
) -> None:
    memory, half = f"{old} {new}", STEPS // 2
    fleet.losses(old, world, until=half, arena=memory)
    after = fleet.losses(new, world, seed=2, arena=memory)
    assert STEPS - half <= len(after) < STEPS
    assert apart(after, alone[-len(after) :]) < TOLERANCE


# ── dropout ──


@long
@pytest.mark.parametrize(
    ("world", "layout", "other"),
    [(2, {"tp": 2}, DDP), (4, FSDP_TP, {"pp": 2, "dp_shard": 2})],
    ids=str,
)
def test_ranks_that_divide_layers_drop_out_the_same_between_them_in_a_script_without_a_seed(
    fleet: CurveFleet, world: int, layout: dict[str, Any], other: dict[str, Any]
) -> None:
    """Looked at in each step, by the ranks; also after an attempt in another layout, whose ranks
    have other random numbers."""
    half = STEPS // 2
    undisturbed = fleet.losses(layout, world, dropout=0.1)
    fleet.losses(layout, world, until=half, arena=f"dropout {layout}", dropout=0.1)
    after = fleet.losses(layout, world, seed=5, arena=f"dropout {layout}", dropout=0.1)
    assert after == undisturbed[-len(after) :]
    fleet.losses(other, world, until=half, arena=f"dropout {other}", dropout=0.1)
    after = fleet.losses(layout, world, arena=f"dropout {other}", dropout=0.1)
    assert STEPS - half <= len(after) < STEPS


@pytest.mark.parametrize("schedule", sample(["1f1b"], ["interleaved", "zero_bubble"]))
def test_a_pipeline_with_dropout_goes_on_from_a_fault_bit_for_bit(
    fleet: CurveFleet, schedule: str
) -> None:
    """A forward pass on top finds out its shapes, again in each attempt."""
    layout, half = {**PIPELINE, "schedule": schedule}, STEPS // 2
    undisturbed = fleet.losses(layout, 2, dropout=0.1)
    fleet.losses(layout, 2, until=half, arena=f"dropout {schedule}", dropout=0.1)
    after = fleet.losses(layout, 2, seed=2, arena=f"dropout {schedule}", dropout=0.1)
    assert after == undisturbed[-len(after) :]


@long
@pytest.mark.parametrize(("world", "layout"), [*SIMPLE, (4, FSDP_TP)], ids=str)
def test_a_layout_goes_on_from_a_fault_in_any_step_bit_for_bit(
    fleet: CurveFleet, world: int, layout: dict[str, Any]
) -> None:
    undisturbed = fleet.losses(layout, world)
    for step in range(2, STEPS):
        memory = f"{layout} until {step}"
        fleet.losses(layout, world, until=step, arena=memory)
        after = fleet.losses(layout, world, seed=2, arena=memory)
        assert after == undisturbed[-len(after) :]
        assert len(after) >= STEPS - step


# ── plans ──

HEADS = "replicated_with_grad_allreduce"


@long
@pytest.mark.parametrize(
    ("world", "layout"),
    sample([(2, {"tp": 2})], [(2, {"tp": 2, "sequence_parallel": True}), (4, FSDP_TP)]),
    ids=str,
)
def test_norms_of_heads_learn_as_on_one_rank(
    fleet: CurveFleet, world: int, layout: dict[str, Any]
) -> None:
    alone = fleet.losses(None, 1, heads=HEADS)
    assert apart(fleet.losses(layout, world, heads=HEADS), alone) < TOLERANCE


@long
@pytest.mark.parametrize(
    ("world", "layout"), [(2, {"tp": 2}), (4, FSDP_TP), (2, {"dp_shard": 2})], ids=str
)
def test_weights_that_are_tied_stay_one_parameter(
    fleet: CurveFleet, world: int, layout: dict[str, Any]
) -> None:
    alone, memory = fleet.losses(None, 1, tied=True), f"tied {layout}"
    undisturbed = fleet.losses(layout, world, tied=True)
    assert apart(undisturbed, alone) < TOLERANCE
    fleet.losses(layout, world, tied=True, until=STEPS // 2, arena=memory)
    after = fleet.losses(layout, world, tied=True, seed=2, arena=memory)
    assert after == undisturbed[-len(after) :]


def test_a_plan_that_forgets_norms_of_heads_is_refused_before_copies_drift_apart(
    fleet: CurveFleet,
) -> None:
    with pytest.raises(AssertionError) as refused:
        fleet.losses({"tp": 2}, 2, heads="")
    said = str(refused.value)
    assert "error[layout-invalid]" in said and "query_norm.weight differs between" in said


# ── a model with experts ──────────────────────────────────────────────────────────────────────

EP: dict[str, Any] = {"dp_shard": 2, "ep": 2}
MORE_EP: list[tuple[int, dict[str, Any], float]] = [
    (2, {"cp": 2, "ep": 2}, TOLERANCE),
    (4, {"dp_shard": 4, "ep": 2}, TOLERANCE),
    (4, {"dp_shard": 4, "ep": 4}, TOLERANCE),
    (4, {"dp_replicate": 2, "dp_shard": 2, "ep": 2}, TOLERANCE),
    (4, {"cp": 2, "dp_shard": 2, "ep": 4}, TOLERANCE),
    (4, {"tp": 2, "dp_shard": 2, "ep": 2}, TOLERANCE),
    (4, {"pp": 2, "dp_shard": 2, "ep": 2}, TOLERANCE),
    (4, {"pp": 2, "schedule": "interleaved", "accumulate": 4, "cp": 2, "ep": 2}, TOLERANCE),
    (2, {**EP, "accumulate": 2, "activation_checkpointing": "full"}, TOLERANCE),
    (2, {**EP, "activation_checkpointing": "selective"}, TOLERANCE),
    (2, {**EP, "precision": "bf16"}, 0.25),
    (2, {**EP, "precision": "fp16"}, 0.25),
    (2, {**EP, "compile": True}, 1e-3),
]


@pytest.fixture(scope="module")
def experts_alone(fleet: CurveFleet) -> list[float]:
    """The curve of one rank with all experts."""
    return fleet.losses(None, 1, experts=True)


@pytest.mark.parametrize(
    ("world", "layout", "tolerance"), sample([(2, EP, TOLERANCE)], MORE_EP), ids=str
)
def test_experts_on_several_ranks_have_the_curve_of_one_and_go_on_from_a_fault_bit_for_bit(
    fleet: CurveFleet,
    experts_alone: list[float],
    world: int,
    layout: dict[str, Any],
    tolerance: float,
) -> None:
    undisturbed = resumes_exactly(fleet, world, layout, experts=True)
    assert apart(undisturbed, experts_alone) < tolerance


@long
def test_experts_go_on_from_a_fault_in_any_step_bit_for_bit(fleet: CurveFleet) -> None:
    undisturbed = fleet.losses(EP, 2, experts=True)
    for step in range(2, STEPS):
        memory = f"experts until {step}"
        fleet.losses(EP, 2, until=step, arena=memory, experts=True)
        after = fleet.losses(EP, 2, seed=2, arena=memory, experts=True)
        assert after == undisturbed[-len(after) :]
        assert len(after) >= STEPS - step


CHANGES_OF_EP: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (2, {"dp_shard": 2}, EP),
    (2, EP, {"dp_shard": 2}),
    (2, {"tp": 2}, {"cp": 2, "ep": 2}),
    (4, {"dp_shard": 4, "ep": 4}, {"dp_replicate": 2, "dp_shard": 2, "ep": 2}),
    (4, {"pp": 2, "dp_shard": 2, "ep": 2}, {"dp_shard": 4, "ep": 2}),
]


@long
@pytest.mark.parametrize(
    ("world", "old", "new"),
    sample(CHANGES_OF_EP[:1], CHANGES_OF_EP[1:]),
    ids=str,
)
def test_experts_that_are_divided_among_other_ranks_continue_the_curve(
    fleet: CurveFleet, experts_alone: list[float], world: int, old: Any, new: Any
) -> None:
    memory, half = f"experts {old} {new}", STEPS // 2
    fleet.losses(old, world, until=half, arena=memory, experts=True)
    after = fleet.losses(new, world, seed=2, arena=memory, experts=True)
    assert STEPS - half <= len(after) < STEPS
    assert apart(after, experts_alone[-len(after) :]) < TOLERANCE


# ── replicas that train by themselves, and outer steps ────────────────────────────────────────

PAIRS: dict[str, Any] = {"dp_replicate": -1, "dp_shard": 2}


@pytest.mark.parametrize(
    ("world", "layout", "each"),
    sample([(2, None, 1)], [(4, None, 2), (4, PAIRS, 2)]),
    ids=str,
)
def test_with_an_outer_step_of_sgd_after_each_step_it_is_plain_averaging(
    fleet: CurveFleet, world: int, layout: Any, each: int
) -> None:
    """What all have done is linear in the gradients, so it is the same for their mean."""
    alone = fleet.losses(None, 1, linear=True)
    averaged = fleet.losses(
        layout, world, linear=True, outer=OuterRequest(1, 1.0, 0.0), nodes_each=each
    )
    assert apart(averaged, alone) < TOLERANCE


@pytest.mark.parametrize(
    ("world", "layout", "each"),
    sample([(2, None, 1)], [(4, None, 2), (4, PAIRS, 2)]),
    ids=str,
)
def test_what_breaks_off_within_a_window_is_resumed_where_that_began_bit_for_bit(
    fleet: CurveFleet, world: int, layout: Any, each: int
) -> None:
    job: dict[str, Any] = {"outer": OuterRequest(2, 0.7, 0.9), "nodes_each": each}
    undisturbed = fleet.losses(layout, world, **job)
    what = {**job, "arena": f"outer {world} {layout}"}
    assert undisturbed[-1] < undisturbed[0]
    before = fleet.losses(layout, world, until=4, **what)  # three steps, and a part of the fourth
    after = fleet.losses(layout, world, seed=2, **what)
    assert before == undisturbed[:4]
    assert after == undisturbed[2:], "its third step was given up"


def test_a_loop_that_is_ended_within_a_window_ends_with_an_outer_step_and_stays_ended(
    fleet: CurveFleet,
) -> None:
    what: dict[str, Any] = {"outer": OuterRequest(100, 0.7, 0.9), "arena": "ended"}
    assert 2 <= len(fleet.losses(None, 2, stops=2, **what)) < STEPS
    assert fleet.losses(None, 2, seed=2, **what) == []
