"""How many steps lie between two snapshots.

Fixed by the job, or `auto`: as close as the allowed share of the step time permits. All ranks must
snapshot the same steps, so the decision uses only numbers they have agreed on, and is taken at the
same steps of an attempt everywhere: early, because a script's steps soon look alike, and then
rarely. Where snapshots are far apart ranks meet in between, about once a second (`meet_every`), so
that a request of one rank reaches the others.
"""

import math
import os
from collections import deque
from statistics import median

_WARM_UP = 3  # the first snapshots of an attempt touch the memory of all cells
_MEET_US = 1_000_000
_MEET_MAX = 1000  # steps; they may become slower
_EARLY_MARKS = (4, 10, 30)
_MARK_EVERY = 100


class Cadence:
    """When a snapshot is due, and what the recent ones cost."""

    def __init__(self, every: int | None, max_overhead: float) -> None:
        """`every` is None for auto."""
        self._auto = every is None
        self.every = every or 1
        self.meet_every = 1
        self._max_overhead = max_overhead
        self._costs: deque[float] = deque(maxlen=8)
        self._steps: deque[float] = deque(maxlen=32)
        self._taken = 0
        self._mark = _EARLY_MARKS[0]

    @classmethod
    def from_environment(cls) -> "Cadence":
        """As the job says."""
        every = os.environ.get("HOLDFAST_SNAPSHOT_EVERY", "auto")
        share = float(os.environ.get("HOLDFAST_SNAPSHOT_MAX_OVERHEAD", "0.01"))
        return cls(None if every == "auto" else int(every), share)

    def due(self, completed: int, last: int, total: int) -> bool:
        """Whether step number `completed` ends with a snapshot; `last` is the newest one's."""
        edge = completed in (1, total)
        return edge or completed - last >= self.every

    def stepped(self, step_s: float) -> None:
        """One step took this long, without its snapshot."""
        self._steps.append(step_s)

    def took(self, cost_s: float) -> None:
        """One snapshot took this long, without waiting for other ranks."""
        self._taken += 1
        if self._taken > _WARM_UP:
            self._costs.append(cost_s)

    @property
    def cost_us(self) -> int:
        """What a snapshot costs here; 0 while that is not known."""
        return round(median(self._costs) * 1e6) if self._costs else 0

    @property
    def step_us(self) -> int:
        """What a step takes here; 0 before the first."""
        return round(median(self._steps) * 1e6) if self._steps else 0

    def decide(self, steps_done: int, cost_us: int, step_us: int) -> None:
        """Set the distance from the largest cost and step time of all ranks.

        `steps_done` counts from the start of the attempt and is the same on all ranks. A cost is
        not known (0) before a few snapshots have been taken, and where the distance is fixed that
        may be never.
        """
        unknown = step_us == 0 or (self._auto and cost_us == 0)
        if steps_done < self._mark or unknown:
            return
        self._mark = _next_mark(steps_done)
        self.meet_every = max(1, min(_MEET_US // step_us, _MEET_MAX))
        if self._auto:
            self.every = max(1, math.ceil(cost_us / (self._max_overhead * step_us)))


def _next_mark(steps_done: int) -> int:
    later = (mark for mark in _EARLY_MARKS if mark > steps_done)
    return next(later, (steps_done // _MARK_EVERY + 1) * _MARK_EVERY)
