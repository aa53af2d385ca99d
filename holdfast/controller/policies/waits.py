"""How long to wait for missing nodes, and before the job grows.

Read by the rows of the ladder, and by those who set deadlines for what the ladder has chosen; so
both always rest on the same times.
"""

from holdfast.controller.policies import shrink
from holdfast.controller.policies.situation import Situation


def patience_s(s: Situation) -> float:
    """How long to wait for missing nodes before training without them."""
    if s.means.replicas:
        return 0.0
    even_s = shrink.break_even_s(s.means.size, s.means.missing, s.prices.change_s)
    return min(shrink.patience_s(even_s, s.prices.expected_s), s.means.node_wait_s)


def grow_wait_s(s: Situation) -> float:
    """How long after the last change of its size the job may grow by itself."""
    means, prices = s.means, s.prices
    if means.replicas:
        return 0.0
    growths, window_s = s.history.growths, means.window_s
    return shrink.grow_after_s(means.size, more(s), prices.change_s, growths, window_s)


def more(s: Situation) -> int:
    """How many nodes more could train."""
    return s.means.whole(min(s.means.target - s.means.size, s.means.spares))
