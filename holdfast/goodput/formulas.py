"""Closed formulas of the field: what share of time a job can hope to train, how often to save.

First-order models: failures are independent with a constant rate. They are wrong where a failure
is as frequent as its cost is long; the functions say so instead of returning a negative share.
"""

import math

DAY_S = 86_400.0


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
