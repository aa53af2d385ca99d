"""The formulas give the values printed in the literature."""

import pytest

from holdfast.goodput import formulas as f

RATES = {1200: 6.50, 2048: 3.79, 12800: 6.50}  # nodes of 8 GPUs → failures per 1,000 node-days
COSTS = ((20, 60.0), (10, 10.0), (3, 1.0), (1, 0.04), (0.33, 0.02))  # u₀ minutes, w seconds
PRINTED: dict[int, tuple[float | None, ...]] = {
    1200: (0.798, 0.905, 0.971, 0.992, 0.996),
    2048: (0.799, 0.906, 0.971, 0.992, 0.996),
    12800: (None, 0.330, 0.787, 0.934, 0.974),
}
CASES = [
    (nodes, lost_min, save_s, printed)
    for nodes, row in PRINTED.items()
    for (lost_min, save_s), printed in zip(COSTS, row, strict=True)
]


@pytest.mark.parametrize(("nodes", "lost_min", "save_s", "printed"), CASES)
def test_expected_ettr_at_the_optimal_interval(
    nodes: int, lost_min: float, save_s: float, printed: float | None
) -> None:
    rate = f.per_1000_node_days(RATES[nodes])
    interval = max(10.0, f.optimal_interval_s(nodes, rate, save_s))
    found = f.expected_ettr(nodes, rate, lost_min * 60, save_s, interval)
    assert found == (None if printed is None else pytest.approx(printed, abs=0.0006))


def test_optimal_interval_is_about_best() -> None:
    rate = f.per_1000_node_days(6.5)
    best = f.optimal_interval_s(1200, rate, 10.0)
    at = [f.expected_ettr(1200, rate, 0.0, 10.0, best * k) or 0.0 for k in (0.5, 1.0, 2.0)]
    assert max(at) == at[1]


@pytest.mark.parametrize(("mttf_min", "printed"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_daly_gives_his_printed_optima(mttf_min: float, printed: float) -> None:
    assert f.daly_s(5, mttf_min) == pytest.approx(printed, abs=0.5 if printed > 10 else 0.05)


def test_daly_never_saves_more_often_than_it_fails_when_saving_takes_that_long() -> None:
    assert f.daly_s(20, 10) == f.daly_s(30, 10) == 10


def test_young_is_the_first_term_of_daly() -> None:
    assert f.young_s(5, 24 * 60) == pytest.approx(120)


@pytest.mark.parametrize(
    ("save", "detect", "restart", "load", "printed"),
    [(300, 600, 300, 120, 0.708), (10, 600, 300, 120, 0.867), (10, 60, 30, 60, 0.945)],
)
def test_goodput_with_detection_and_restart(
    save: float, detect: float, restart: float, load: float, printed: float
) -> None:
    mttf = 3.05 * 3600
    interval = f.young_s(save, mttf)
    found = f.expected_ettr(1, 1 / mttf, detect + restart + load, save, interval)
    assert found == pytest.approx(printed, abs=0.002)


@pytest.mark.parametrize(("gpus", "hours"), [(16_384, 1.8), (131_072, 0.23)])
def test_mean_time_to_failure(gpus: int, hours: float) -> None:
    found = f.mttf_s(gpus // 8, f.per_1000_node_days(6.50)) / 3600
    assert found == pytest.approx(hours, abs=0.02)


def test_ettr_of_no_time_is_zero() -> None:
    assert f.ettr(0, 0) == 0.0
    assert f.ettr(9, 10) == 0.9


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(0, 0.0, 3.69), (1, 0.0253, 5.572), (10, 4.795, 18.39), (100, 81.36, 121.6)],
)
def test_the_interval_of_a_number_of_faults(count: int, low: float, high: float) -> None:
    """As Garwood's table has it."""
    assert f.poisson_interval(count) == pytest.approx((low, high), rel=1e-3)


def test_the_interval_of_many_faults_goes_on_where_the_exact_one_ends() -> None:
    exact, normal = f.poisson_interval(f.POISSON_EXACT - 1), f.poisson_interval(f.POISSON_EXACT)
    assert exact == pytest.approx(normal, rel=2e-3)
