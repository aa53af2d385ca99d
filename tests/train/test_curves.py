"""One model in every layout: the same curve, resumed bit for bit, continued in any other layout."""

from collections.abc import Iterator
from typing import Any

import pytest

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
ALWAYS = [(2, DDP), (4, FSDP_TP), (2, PIPELINE)]


@pytest.fixture(scope="module")
def fleet() -> Iterator[CurveFleet]:
    fleet = CurveFleet(8 if MORE else 4)
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def alone(fleet: CurveFleet) -> list[float]:
    """The curve of one rank without any layout."""
    return fleet.losses(None, 1)


@pytest.mark.parametrize(("world", "layout"), sample(ALWAYS, OTHERS), ids=str)
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


def resumes_exactly(fleet: CurveFleet, world: int, layout: dict[str, Any]) -> list[float]:
    """The curve of a layout to which nothing happens, after one that broke off has resumed it."""
    undisturbed = fleet.losses(layout, world)
    assert undisturbed[-1] < undisturbed[0]
    memory, half = f"{world} {layout}", STEPS // 2
    before = fleet.losses(layout, world, until=half, arena=memory)
    after = fleet.losses(layout, world, seed=2, arena=memory)
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
