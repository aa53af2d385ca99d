"""Whether what was restored is itself the fault: two attempts go on from the same place and fail
alike at the same step.

A snapshot or checkpoint can carry the seed of a failure (a diverged optimizer, a damaged tensor
that nobody noticed). Going on from it again and again leads to the same end; an older one may not.
"""

from collections.abc import Sequence

from holdfast.controller.state import Trial

INNOCENT = frozenset(
    (
        *("node-lost", "node-left", "orders-lost", "exited-early", "exited-silently", "hang"),
        *("checkpoint-unusable", "checkpoint-in-use", "declared-differently"),
        *("nan", "hardware-fault", "straggler"),
    )
)
"""Causes that no older checkpoint would change, or (nan) that have a way back of their own."""


def suspected(last: Trial | None, now: Trial) -> bool:
    """Whether two attempts in a row say so. What began from nothing has nothing to suspect."""
    return now.restored > 0 and last == now


def way_back(committed: Sequence[int], restored: int) -> int | None:
    """The newest committed checkpoint before what was restored; None if none is known."""
    return max((step for step in committed if step < restored), default=None)
