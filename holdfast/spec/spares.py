"""How many spares a job should keep warm.

As many as will, with a given probability, cover all nodes that fail while a lost one is being
made good. Failures of single nodes are taken as independent; the loss of a rack is not covered by
spares but waited for (docs/decisions/0008).
"""

import math

QUANTILE = 0.999
ASSUMED_RATE = 6.5  # failures per 1,000 nodes and day: the highest that is published (RSC-1)
ASSUMED_REPLACE_S = 3600.0  # until a lost node is made good, where nobody has measured it
ROUNDING = 1e-12
DAY_S = 86_400.0


def spares_for(nodes: int, failed_share: float, quantile: float = QUANTILE) -> int:
    """Smallest K for which at most K of `nodes` fail with probability `quantile`.

    `failed_share` is the probability that one node fails within the time that a replacement takes.
    Binomial; source: ByteRobust (arXiv 2509.16293), which keeps 2, 2, 3, 4 standbys for 128, 256,
    512, 1,024 machines at 0.12 % per machine and day and a quantile of 0.99. Raises `ValueError`
    for what is no probability.
    """
    if not 0 <= failed_share < 1 or not 0 < quantile < 1:
        raise ValueError(f"probabilities of {failed_share} and {quantile} are impossible")
    reached = 0.0
    for failed in range(nodes + 1):
        reached += math.exp(_log_chance(failed, nodes, failed_share))
        if reached >= quantile - ROUNDING:
            return failed
    return nodes


def spares_by_default(nodes: int) -> int:
    """What `spares: auto` means for a job of so many nodes: at least one."""
    return max(1, spares_for(nodes, failed_share(ASSUMED_RATE / 1000 / DAY_S, ASSUMED_REPLACE_S)))


def arithmetic(nodes: int) -> str:
    """How that number comes about, for people."""
    share = failed_share(ASSUMED_RATE / 1000 / DAY_S, ASSUMED_REPLACE_S)
    spares, within = spares_by_default(nodes), f"within {ASSUMED_REPLACE_S / 60:g} min"
    rate = f"{ASSUMED_RATE:g} failures per 1,000 node-days"
    covered = 100 * _chance(spares, nodes, share)
    fewer = 100 * _chance(spares - 1, nodes, share)
    return (
        f"auto: {spares}; of {nodes:,} nodes {nodes * share:.3g} fail {within}, the time until a "
        f"lost one is replaced, at {rate}; {spares} cover {covered:.4g} % of such times, "
        f"{spares - 1} would cover {fewer:.4g} %"
    )


def _chance(spares: int, nodes: int, share: float) -> float:
    """That no more than so many of the nodes fail."""
    return sum(math.exp(_log_chance(failed, nodes, share)) for failed in range(spares + 1))


def failed_share(failures_per_node_s: float, replace_s: float) -> float:
    """Probability that a node with this failure rate fails at least once within `replace_s`."""
    return -math.expm1(-failures_per_node_s * replace_s)


def _log_chance(failed: int, nodes: int, share: float) -> float:
    """Logarithm of the binomial probability, which would underflow for 100,000 nodes."""
    if share == 0:
        return 0.0 if failed == 0 else -math.inf
    choose = math.lgamma(nodes + 1) - math.lgamma(failed + 1) - math.lgamma(nodes - failed + 1)
    return choose + failed * math.log(share) + (nodes - failed) * math.log1p(-share)
