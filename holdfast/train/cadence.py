"""How many steps lie between two snapshots.

Fixed by the job, or `auto`: as close as the allowed share of the step time permits. All ranks must
snapshot the same steps, so the decision uses only numbers they have agreed on, and is taken at the
same steps of an attempt everywhere: early, because a script's steps soon look alike, and then
rarely. Where snapshots are far apart ranks meet in between, about once a second (`meet_every`), so
that a request of one rank reaches the others.

A snapshot costs what training waits for it, and what a step is longer while it is being copied
beside: two copy no faster than the memory allows. For that, each such step is compared with those
just before it that had no copy beside them, and the difference counts if chance alone would hardly
make it. Until enough of them have been compared, every second step goes without.
"""

import math
import os
from collections import deque
from collections.abc import Collection
from statistics import median

_WARM_UP = 3  # the first snapshots of an attempt touch the memory of all cells
_MEET_US = 1_000_000
_MEET_MAX = 1000  # steps; they may become slower
_EARLY_MARKS = (4, 10, 20, 30)
_MARK_EVERY = 50
_COMPARED = 8  # steps with a copy beside them, before their slowdown is known
_ERRORS = 2.0  # standard errors that chance hardly exceeds
_PER_MAD = 1.4826 * 1.2533  # of normal values: deviation per MAD, error of the median per deviation


class Cadence:
    """When a snapshot is due, and what the recent ones cost."""

    def __init__(self, every: int | None, max_overhead: float) -> None:
        """`every` is None for auto."""
        self._auto = every is None
        self.every = every or 1
        self.meet_every = 1
        self._max_overhead = max_overhead
        self._costs: deque[float] = deque(maxlen=8)
        self._taken_s: deque[float] = deque(maxlen=8)
        self._steps: deque[float] = deque(maxlen=32)
        self._alone: deque[float] = deque(maxlen=8)  # steps without a copy beside them
        self._slower: deque[float] = deque(maxlen=64)  # by how much those with one took longer
        self._any_beside = self._after_alone = False
        self._count = 0  # of snapshots
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

    def stepped(self, step_s: float, *, beside: bool = False) -> None:
        """One step took this long, without its snapshot and waiting for the one `beside` it."""
        self._steps.append(step_s)
        self._any_beside |= beside
        if self._after_alone and beside and self._count >= _WARM_UP:
            self._slower.append(step_s - median(self._alone))
        if not beside:
            self._alone.append(step_s)
        self._after_alone = not beside

    def took(self, waited_s: float, taken_s: float = 0.0) -> None:
        """Training waited this long for one snapshot, though not for other ranks, and copying took
        this much of the cores that training uses."""
        self._count += 1
        if self._count > _WARM_UP:
            self._costs.append(waited_s)
            self._taken_s.append(taken_s)

    @property
    def cost_us(self) -> int:
        """What a snapshot costs here; 0 while that is not known."""
        if not self._costs:
            return 0
        cost_s = median(self._costs) + max(median(self._taken_s), _beyond_chance(self._slower))
        if self._auto and self._any_beside and len(self._slower) < _COMPARED:
            cost_s = max(cost_s, 1.5 * self._max_overhead * median(self._steps))
        return round(cost_s * 1e6)

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


def _beyond_chance(differences: Collection[float]) -> float:
    """Their median, or 0 where it may well be none: less than `_ERRORS` of its standard errors,
    each 1.2533 deviations over the root of their number."""
    if len(differences) < _COMPARED:
        return 0.0
    middle = median(differences)
    spread = median(abs(value - middle) for value in differences)
    error = _PER_MAD * spread / math.sqrt(len(differences))
    return middle if middle > _ERRORS * error else 0.0
