"""When to train on with fewer nodes instead of waiting for missing ones.

A calculation, not yet an order: the controller cannot shrink a job before training is elastic.
"""


def should_shrink(nodes: int, missing: int, wait_s: float, change_s: float) -> bool:
    """Whether `wait_s` of training on the nodes that are left is worth two changes of the world.

    Waiting yields nothing for `wait_s`. Shrinking costs `change_s` now, and again once the missing
    nodes are back; in between it yields the share of the nodes that are left:
    (wait − change)·(N − k)/N > change, all in seconds of the whole job.
    """
    left = nodes - missing
    if missing <= 0 or left <= 0 or wait_s <= change_s:
        return False
    return (wait_s - change_s) * left / nodes > change_s


def break_even_s(nodes: int, missing: int, change_s: float) -> float:
    """The wait (seconds) from which on shrinking pays; infinite without a node left."""
    left = nodes - missing
    return change_s * (1 + nodes / left) if left > 0 else float("inf")
