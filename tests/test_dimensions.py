"""Layouts as numbers: what fits, what does not and what would, who is whose neighbour."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.dimensions import (
    NAMES,
    VARIABLE,
    Dimensions,
    Layout,
    across_nodes,
    layout_in,
    parsed,
    told,
)
from holdfast.errors import Error
from holdfast.spec import job_from_dict
from holdfast.spec.job import Job

JOB = {"name": "gpt", "script": "train.py"}


def job(nodes: int, workers: int, parallel: object, **more: object) -> Job:
    given_ = {"nodes": nodes, "workers_per_node": workers, "parallel": parallel, **more}
    return job_from_dict({**JOB, **given_}, where="test")


@given(*[st.integers(1, 4)] * 4, st.integers(1, 5))
def test_the_remainder_goes_to_the_dimension_that_takes_it(
    pp: int, replicate: int, cp: int, tp: int, rest: int
) -> None:
    world = pp * replicate * cp * tp * rest
    found = Layout(pp=pp, dp_replicate=replicate, cp=cp, tp=tp).resolve(world)
    assert found == Dimensions(pp, replicate, rest, cp, tp)
    assert math.prod(found) == world


def test_neighbours_share_a_layer_and_ranks_with_the_same_samples_have_one_number() -> None:
    dimensions = Dimensions(pp=2, dp_replicate=2, dp_shard=2, cp=2, tp=2)
    shares = [dimensions.data_rank(rank) for rank in range(32)]
    assert shares == [*([n for n in range(4) for _ in range(4)] * 2)]
    assert NAMES[-1] == "tp" and NAMES[0] == "pp"


@pytest.mark.parametrize(
    ("layout", "world", "said"),
    [
        ({"tp": 3}, 8, "tp 3 does not divide the 8 ranks; it would with 6 or 9 ranks"),
        (
            {"tp": 2, "pp": 4, "dp_shard": 2},
            8,
            "pp 4 x dp_shard 2 x tp 2 = 16, but there are 8 ranks; use 16 ranks",
        ),
        ({"dp_shard": 1}, 2, "all dimensions 1 = 1, but there are 2 ranks; use 1 rank, or let one"),
    ],
)
def test_a_layout_that_does_not_fit_says_the_numbers_and_what_would(
    layout: dict[str, Any], world: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Layout(**layout).resolve(world)


def test_a_job_with_a_layout_that_does_not_fit_is_refused_before_anything_starts() -> None:
    with pytest.raises(Error, match="1 problem") as refused:
        job(2, 4, {"tp": 3})
    assert "tp 3 does not divide the 8 ranks" in refused.value.why
    assert "2 nodes with 4 workers each" in refused.value.why


def test_each_size_of_an_elastic_job_has_to_fit() -> None:
    fits = job(4, 4, {"tp": 4}, elasticity={"min_nodes": 2})
    assert fits.parallel is not None
    with pytest.raises(Error) as refused:
        job(4, 2, {"tp": 4}, elasticity={"min_nodes": 2})
    assert "3 nodes with 2 workers each" in refused.value.why


def test_the_example_of_the_documentation_is_sharded_over_all_ranks() -> None:
    whole = {"dp_replicate": 1, "dp_shard": -1, "tp": 1, "pp": 1, "cp": 1, "ep": 1}
    layout = job(2, 4, whole).parallel
    assert layout is not None and layout.layout.resolve(8) == Dimensions(dp_shard=8)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"tp": -1, "cp": -1}, "cp and tp are -1; only one can be"),
        ({"tp": 0}, "tp is 0"),
        ({"ep": 0}, "ep: must be greater than or equal to 1"),
        ({"ep": -1}, "ep: must be greater than or equal to 1"),
        ({"ep": 2}, "ep 2 takes its ranks from dp_shard 1 x cp 1 = 1"),
        (
            {"ep": 2, "dp_shard": 2, "schedule": "zero_bubble"},
            "zero_bubble is incompatible with ep",
        ),
        ({"precision": "fp8"}, "'fp32', 'bf16' or 'fp16'"),
        ({"dp_shards": 2}, "unknown key; did you mean dp_shard?"),
    ],
)
def test_bad_values_are_named(section: dict[str, object], said: str) -> None:
    with pytest.raises(Error) as refused:
        job(1, 1, section)
    assert said in refused.value.why


def test_experts_are_divided_among_ranks_of_dp_shard_and_cp() -> None:
    fits = job(2, 4, {"cp": 2, "ep": 8}).parallel
    assert fits is not None and fits.layout.resolve(8) == Dimensions(dp_shard=4, cp=2)
    assert fits.layout.replica_ranks == 8
    with pytest.raises(Error) as refused:
        job(2, 4, {"dp_replicate": 2, "tp": 2, "ep": 4})
    assert "ep 4 takes its ranks from dp_shard 2 x cp 1 = 2" in refused.value.why
    assert "ep 1 or 2 would" in refused.value.why


def test_only_one_dimension_takes_the_remainder() -> None:
    section = job(2, 4, {"dp_replicate": -1, "tp": 2}).parallel
    assert section is not None
    assert section.layout.resolve(8) == Dimensions(dp_replicate=4, tp=2)


def test_workers_find_the_layout_in_their_environment() -> None:
    layout = Layout(tp=2, precision="bf16", compile=True)
    assert layout_in({VARIABLE: told(layout)}) == layout
    assert layout_in({}).resolve(6) == Dimensions(dp_replicate=6)


def test_the_command_line_has_the_keys_of_the_job_file() -> None:
    text = "tp=2, dp_shard=-1,precision=bf16,compile=true"
    assert parsed(text) == {"tp": 2, "dp_shard": -1, "precision": "bf16", "compile": True}
    for wrong in ("tp", "tp=", "=2", "tp=2,tp=4", ""):
        with pytest.raises(ValueError, match=r"not KEY=NUMBER|twice"):
            parsed(wrong)


def test_tensor_parallelism_across_nodes_is_told_with_the_reason() -> None:
    assert across_nodes(Dimensions(tp=4), 8) == ""
    why = across_nodes(Dimensions(tp=8), 4)
    assert "tp 8 spans nodes of 4 workers" in why and "1 or 2 or 4" in why
