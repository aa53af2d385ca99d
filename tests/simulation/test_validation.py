"""The simulator agrees with formulas where these hold, and with what was published."""

from statistics import fmean

import pytest

from holdfast.simulation import validation
from holdfast.simulation.validation import GridCell
from tests.more import long, sample


@pytest.fixture(scope="module")
def grid() -> list[GridCell]:
    return validation.grid(seeds=2, fault_count=75)


@long
def test_ettr_is_within_two_points_of_the_formula_wherever_that_is_valid(
    grid: list[GridCell],
) -> None:
    valid = [cell for cell in grid if cell.valid]
    assert len(valid) == 12
    assert not [cell for cell in valid if abs(cell.error) > 0.02]


@long
def test_the_formula_gives_the_check_values_of_the_grid(grid: list[GridCell]) -> None:
    expected = [cell.expected for cell in grid]
    assert expected[:5] == pytest.approx([0.798, 0.905, 0.971, 0.992, 0.996], abs=1e-3)
    assert expected[5:10] == pytest.approx([0.799, 0.906, 0.971, 0.992, 0.996], abs=1e-3)
    assert expected[10] is None
    assert expected[11:] == pytest.approx([0.330, 0.787, 0.934, 0.974], abs=1e-3)


@long
def test_where_faults_are_as_frequent_as_their_cost_is_long_more_is_left_than_the_formula_says(
    grid: list[GridCell],
) -> None:
    invalid = [cell for cell in grid if not cell.valid]
    assert all(cell.error > 0 and cell.found.mean > 0.2 for cell in invalid)


@long
@pytest.mark.slow
@long
@pytest.mark.parametrize("mttf_h", [6, 24])
def test_the_best_interval_of_a_sweep_is_that_of_young_and_daly(mttf_h: int) -> None:
    found = validation.optimum(300.0, mttf_h * 3600.0, 600.0, seeds=2, fault_count=300)
    assert found.found_s == pytest.approx(found.daly_s, rel=0.05)


@pytest.mark.parametrize(("nodes", "standbys"), [(128, 2), (256, 2), (512, 3), (1024, 4)])
def test_the_standbys_of_byterobust_cover_99_of_100_drawn_days_and_one_less_would_not(
    nodes: int, standbys: int
) -> None:
    failed = validation.standby_days(nodes, 0.0012, seed=1, days=40_000)
    assert fmean(count <= standbys for count in failed) >= 0.99
    assert fmean(count <= standbys - 1 for count in failed) < 0.99


@pytest.mark.parametrize(
    ("name", "published"), sample(validation.PUBLISHED[:1], validation.PUBLISHED[1:])
)
def test_what_was_published_lies_between_the_stock_way_and_holdfast(
    name: str, published: float
) -> None:
    assert validation.bracket(name, published, seeds=2).holds
