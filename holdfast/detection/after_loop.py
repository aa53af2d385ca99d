"""When to look at ranks that have all left their loops, and whose processes go on.

What comes after the loop (a last evaluation, an export, an upload) may take hours and is nobody's
business. But all of them may as well stand in `destroy_process_group`, which waits for peers, and
then nobody would ever know. So they are looked at from time to time; only what is seen there
decides (`diagnosis/hang.py`), and only once it was seen for long enough. Times are of one clock
that never steps back.
"""

from collections.abc import Set

from holdfast.detection.hang import ENDS, LEFT, NAMED
from holdfast.events import HangSuspected, in_rows
from holdfast.messages import Report

AFTER_S = 120.0  # from the last rank that has left its loop to the first look
AGAIN, AGAIN_MIN_S, AGAIN_MAX_S = 0.5, 60.0, 600.0  # of that time, until the next
CLOSES_S = 60.0  # for which all that are left have been seen to destroy their process group


class AfterLoop:
    """What is known of one attempt's ranks. `exited` are those that have ended well."""

    def __init__(self) -> None:
        self.begin(0, 0)

    def begin(self, attempt: int, world_size: int) -> None:
        """Forget everything and watch this attempt of `world_size` ranks."""
        self._attempt, self._world_size = attempt, world_size
        self._left: dict[int, bool] = {}  # by rank: whether its script has ended, too
        self._since = self._next = 0.0  # the last has left its loop; the next look
        self._closes_since: float | None = None  # by the looks since then
        self._step: int | None = None

    def observe(self, report: Report, now: float) -> None:
        """Take in one node's report. A rank may go into another loop, or into a section."""
        if report.attempt != self._attempt:
            return
        for worker in report.workers:
            ended = worker.phase == ENDS
            if not ended and worker.phase not in LEFT:
                if self._left.pop(worker.rank, None) is not None:
                    self._closes_since = None
            elif self._left.get(worker.rank) is not ended:
                self._left[worker.rank] = ended
                self._since, self._next, self._closes_since = now, now + AFTER_S, None
                self._step = worker.progress.step

    def forgive(self, late_s: float) -> None:
        """We did not listen for so long."""
        self._next += late_s

    def is_due(self, now: float, exited: Set[int]) -> bool:
        """Whether those that are left are to be looked at."""
        return now >= self._next and self.have_left_loops(exited)

    def have_left_loops(self, exited: Set[int]) -> bool:
        """Whether all ranks have left their loops, and the script of one that is left goes on."""
        if len(self._left) + len(exited) < self._world_size:
            return False
        goes_on = any(rank not in exited and not ended for rank, ended in self._left.items())
        return goes_on and len(self._left.keys() | exited) >= self._world_size

    def suspect(self, now: float, exited: Set[int]) -> HangSuspected:
        """Who that is."""
        ago_s = now - self._since
        self._next = now + min(max(AGAIN * ago_s, AGAIN_MIN_S), AGAIN_MAX_S)
        return HangSuspected(
            attempt=self._attempt,
            ago_s=ago_s,
            budget_s=AFTER_S,
            step=self._step,
            step_s=0.0,
            trained=True,
            ranks=in_rows(sorted(self._left.keys() - exited)[:NAMED]),
        )

    def closes_s(self, now: float, *, closes: bool) -> float:
        """For how long all that are left have been seen to destroy their process group, as a look
        has shown now, or not. If they do, the next look comes soon."""
        if not closes:
            self._closes_since = None
            return 0.0
        if self._closes_since is None:
            self._closes_since = now
        stood_s = now - self._closes_since
        if stood_s < CLOSES_S:
            self._next = min(self._next, self._closes_since + CLOSES_S)
        return stood_s
