"""Closed formulas of the field: what share of time a job can hope to train, how often to save.

First-order models: failures are independent with a constant rate. They are wrong where a failure
is as frequent as its cost is long; the functions say so instead of returning a negative share.
"""

import math
from collections.abc import Callable

DAY_S = 86_400.0
TAIL, Z95 = 0.025, 1.959964
POISSON_EXACT, BISECTIONS = 2000, 60


def ettr(productive: float, wall: float) -> float:
    """Effective training time ratio: productive / wall, in any one unit; 0 while no time passed.

    Source: ByteRobust (arXiv 2509.16293), cumulative and over a sliding hour.
    """
    return productive / wall if wall > 0 else 0.0


def mttf_s(nodes: int, failures_per_node_s: float) -> float:
    """Mean seconds between failures of a job on `nodes` nodes: 1 / (N·r)."""
    return 1.0 / (nodes * failures_per_node_s)


def per_1000_node_days(failures: float) -> float:
    """Failures per 1,000 node-days as failures per node and second, the `r` of the formulas."""
    return failures / 1000.0 / DAY_S


def expected_ettr(
    nodes: int, failures_per_node_s: float, lost_s: float, save_s: float, interval_s: float
) -> float | None:
    """E[ETTR] ≈ (1 − N·r·(u₀ + Δt/2)) / (1 + w/Δt). None where it does not hold.

    u₀ = `lost_s` per incident besides redone work, w = `save_s` that a checkpoint blocks training,
    Δt = `interval_s` of training between two. At N·r·(u₀ + Δt/2) ≥ 1 there is no answer; simulate.
    Source: Kokolis et al., "Revisiting Reliability in Large-Scale ML Research Clusters"
    (arXiv 2410.21680).
    """
    wasted = nodes * failures_per_node_s * (lost_s + interval_s / 2)
    return (1 - wasted) / (1 + save_s / interval_s) if wasted < 1 else None


def optimal_interval_s(nodes: int, failures_per_node_s: float, save_s: float) -> float:
    """The Δt* = √(2w/(N·r)) that is about best for `expected_ettr`. Source: as there."""
    return math.sqrt(2 * save_s / (nodes * failures_per_node_s))


def young_s(save: float, mttf: float) -> float:
    """Young's interval √(2δM), in the unit of the arguments.

    Source: J. W. Young, "A first order approximation to the optimum checkpoint interval",
    CACM 17(9), 1974.
    """
    return math.sqrt(2 * save * mttf)


def daly_s(save: float, mttf: float) -> float:
    """Daly's interval √(2δM)·[1 + ⅓√(δ/2M) + (1/9)(δ/2M)] − δ; M where δ ≥ 2M.

    Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
    dumps", FGCS 22(3), 2006, equation 37.
    """
    if save >= 2 * mttf:
        return mttf
    x = save / (2 * mttf)
    return young_s(save, mttf) * (1 + math.sqrt(x) / 3 + x / 9) - save


def poisson_interval(count: int) -> tuple[float, float]:
    """The exact 95 % confidence interval of the mean of a Poisson number, of which `count` was
    seen: where so many or more, and so many or fewer, have a probability of 2.5 %.

    Source: F. Garwood, "Fiducial limits for the Poisson distribution", Biometrika 28, 1936. From
    2,000 on by the normal distribution.
    """
    if count >= POISSON_EXACT:
        half = Z95 * math.sqrt(count)
        return count - half, count + half
    most = count + 10 * math.sqrt(count + 1) + 10
    low = _solved(lambda mean: 1 - _at_most(count - 1, mean) >= TAIL, most) if count else 0.0
    return low, _solved(lambda mean: _at_most(count, mean) <= TAIL, most)


def _at_most(count: int, mean: float) -> float:
    """The probability of so many or fewer."""
    log = math.log(mean)
    return math.fsum(math.exp(n * log - mean - math.lgamma(n + 1)) for n in range(count + 1))


def _solved(holds: Callable[[float], bool], most: float) -> float:
    """The least mean for which it holds; it holds for `most`."""
    low, high = 0.0, most
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
