"""How long tests wait for what must come: as long as it takes, so only what never comes fails.

A deadline costs nothing where all is well, and a machine that is ten times slower than expected is
no fault. Who waits polls (`until`, `Patience`): time in which those that are waited for were ready
to run and got no processor hardly counts. Who can only block gives up after `PATIENCE_S`; pytest's
own limit for one test (`tests.limit`) counts like `until` and comes before that on an idle machine.
HOLDFAST_TEST_PATIENCE multiplies all of them.

Jobs of tests say `MAY_BE_SILENT` as well, unless they are about silence.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

TURN_S = 0.2  # that a turn of polling counts at most
LOOK_S = 5.0  # between two looks at who got no processor: each takes some milliseconds
LEAST = 0.1  # of the time that passes counts whatever happens: ten times the load, and no more
ENOUGH_S = 300.0 * float(os.environ.get("HOLDFAST_TEST_PATIENCE", "1"))
PATIENCE_S = ENOUGH_S / LEAST
MAY_BE_SILENT = {"heartbeat_timeout_s": 120.0}
"""Of the section `recovery`: an agent that gets no processor for some seconds is not lost."""

_NANOSECOND = 1e-9


class Patience:
    """Runs out once those that are waited for, our own process and all below it, have had
    `seconds` in which they got the processor that they wanted, or wanted none."""

    def __init__(self, seconds: float = ENOUGH_S, turn_s: float = TURN_S) -> None:
        """`turn_s`: that the time between two questions counts at most, as where this process
        itself hardly comes to ask."""
        self._left, self._turn_s = seconds, turn_s
        self._seen = self._looked_at = time.monotonic()
        self._counted = 0.0  # since the last look
        self._waits: Mapping[int, float] | None = None  # as of the last look

    @property
    def is_over(self) -> bool:
        """To be asked again and again."""
        now = time.monotonic()
        self._counted += min(now - self._seen, self._turn_s)
        self._seen = now
        if now - self._looked_at >= LOOK_S:
            self._look(now - self._looked_at)
            self._looked_at = now
        return self._left - self._counted < 0

    def _look(self, took_s: float) -> None:
        before, self._waits = self._waits, dict(waits())
        starved_s = 0.0
        if before is not None:
            each = (waited - before.get(task, 0.0) for task, waited in self._waits.items())
            starved_s = min(max(each, default=0.0), took_s)
        self._left -= max(self._counted * (1.0 - starved_s / took_s), LEAST * took_s)
        self._counted = 0.0


def until(condition: Callable[[], object], deadline_s: float = ENOUGH_S) -> bool:
    """Poll `condition` until it holds or `deadline_s` have counted; the last answer."""
    patience = Patience(deadline_s)
    while not condition():
        if patience.is_over:
            return bool(condition())
        time.sleep(0.02)
    return True


def waits() -> Iterator[tuple[int, float]]:
    """For how long each thread of this process and of those below it has been ready to run without
    a processor, by `schedstat` (Documentation/scheduler/sched-stats.rst); nothing where the kernel
    does not count that. A throttled group's threads are ready, too."""
    own = psutil.Process()
    for pid in (own.pid, *(child.pid for child in own.children(recursive=True))):
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                _, waited, *_ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
                yield int(thread), int(waited) * _NANOSECOND
        except (OSError, ValueError):  # it has just ended
            continue
