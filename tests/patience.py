"""How long tests wait for what must come: as long as it takes, so only what never comes fails.

A deadline costs nothing where all is well, and a machine that is ten times slower than expected is
no fault. Whoever waits polls or blocks for an event and gives up after `PATIENCE_S`, which
HOLDFAST_TEST_PATIENCE multiplies; pytest's own limit for one test is above it.
"""

import os
import time
from collections.abc import Callable

TURN_S = 0.2  # that a turn of polling counts at most
PATIENCE_S = 300.0 * float(os.environ.get("HOLDFAST_TEST_PATIENCE", "1"))


def until(condition: Callable[[], object], deadline_s: float = PATIENCE_S) -> bool:
    """Poll `condition` until it holds or `deadline_s` have passed; the last answer. Where this
    process hardly comes to poll, others get as little of the machine: that time does not count."""
    left, seen = deadline_s, time.monotonic()
    while not condition():
        now = time.monotonic()
        left, seen = left - min(now - seen, TURN_S), now
        if left < 0:
            return bool(condition())
        time.sleep(0.02)
    return True
