"""When to train on with fewer nodes instead of waiting for missing ones, and when to grow again.

With k of N nodes missing, waiting `wait` seconds yields nothing. Shrinking costs a change of the
size now and another one once the nodes are back, and in between trains at the share of the nodes
that are left. So it pays when (wait - change)·(N - k)/N > change, all in seconds of the whole job:
the break-even is change·(1 + N/(N - k)). Nobody knows how long a wait will be, so one waits until
the break-even, as who rents skis until they would have paid for them: that costs at most twice
what knowing would have. Where nodes are known to take longer, nobody waits at all.
"""

RECENT_MAX = 10  # growths after which the time between two of them doubles no more


def break_even_s(nodes: int, missing: int, change_s: float) -> float:
    """The wait (seconds) from which on shrinking pays; infinite without a node left.

    `change_s` is what one change of the size costs.
    """
    left = nodes - missing
    return change_s * (1 + nodes / left) if left > 0 else float("inf")


def patience_s(even_s: float, expected_s: float | None) -> float:
    """How long to wait for missing nodes before shrinking: not at all where they are expected to
    take longer than the break-even."""
    return 0.0 if expected_s is not None and expected_s > even_s else even_s


def grow_after_s(nodes: int, more: int, change_s: float, recent: int, most_s: float) -> float:
    """How long after the last change of its size a job of `nodes` may grow by `more` by itself: the
    break-even of what it would have shrunk by, doubled for each of its `recent` growths, so that a
    node that comes and goes costs less and less. At most `most_s`."""
    even_s = break_even_s(nodes + more, more, change_s)
    return float(min(most_s, even_s * 2 ** min(recent, RECENT_MAX)))
