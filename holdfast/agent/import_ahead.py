"""What forkservers of a node import ahead: what they are to do without, and what stands still.

A forkserver says what it is about to import. If it dies of that, twice, or nothing happens any
more, the next one leaves the module out; where it was nothing that can be left out, all is.

An import may read gigabytes or compile an extension in processes of its own; one that waits for a
lock or a server that does not answer computes nothing, nor do its children. Then a node would never
be ready, where the script itself, if it imports the same, is seen to hang with its stack.
"""

from collections.abc import Callable

import msgspec
import psutil

from holdfast.agent import fork_protocol
from holdfast.agent.activity import Usage, usage_of
from holdfast.agent.notes import note

PRELOAD_TRIES = 2  # after that many deaths while loading, the module is left out, or else all
START_TRIES = 4  # after that many in a row, the node is given up

LOOK_S = 1.0  # between two looks
STILL_S = 60.0
STILL_SHARE = 0.02  # of a processor: a wait that looks again and again takes less


class SlowImport:
    """What is imported, and for how long its process has done next to nothing."""

    def __init__(self, module: str, now: float) -> None:
        self.module = module
        self._looked_at = now
        self._still_s = 0.0
        self._before: Usage | None = None

    def stands_still(self, usage: Callable[[], Usage | None], now: float) -> bool:
        """Whether it has for too long, as seen by one look after the other; None: it is gone."""
        took = now - self._looked_at
        if took < LOOK_S:
            return False
        before, self._before = self._before, usage()
        self._looked_at = now
        still = before and self._before and _did_nothing(before, self._before, took)
        # a look counts for no more than its interval: the whole node may have been stopped
        self._still_s = self._still_s + min(took, 2 * LOOK_S) if still else 0.0
        return self._still_s >= STILL_S


def _did_nothing(before: Usage, after: Usage, took_s: float) -> bool:
    computed_s = after.main_s + after.others_s - before.main_s - before.others_s
    return after.bytes == before.bytes and abs(computed_s) < STILL_SHARE * took_s


class ImportsAhead:
    """What the next forkserver of a node is to load, as the ones before it have fared."""

    def __init__(self, preload: fork_protocol.Preload) -> None:
        self._preload = preload
        self._failed_starts = 0
        self._now: SlowImport | None = None

    def next(self) -> fork_protocol.Preload:
        """For a forkserver that starts now."""
        self._now = None
        few = self._failed_starts >= PRELOAD_TRIES
        return fork_protocol.Preload() if few else self._preload

    def begins(self, module: str, now: float) -> None:
        """The forkserver imports this from now on."""
        self._now = SlowImport(module, now)

    def done(self) -> None:
        """The forkserver has loaded all."""
        self._failed_starts, self._now = 0, None

    def leave_out(self, modules: dict[str, str]) -> None:
        """The next one does without these, for the reasons given."""
        for name, why in modules.items():
            note(f"agent: {name} is not imported ahead: {why}")
        without = (*self._preload.without, *modules)
        self._preload = msgspec.structs.replace(self._preload, without=without)

    def died(self, why: str) -> None:
        """The forkserver has died before it was ready."""
        self._failed_starts += 1
        if self._now is not None and self._failed_starts >= PRELOAD_TRIES:
            times = f"it crashed the forkserver {PRELOAD_TRIES} times ({why})"
            self.leave_out({self._now.module: times})
            self._failed_starts = 0

    @property
    def given_up(self) -> bool:
        """Whether starting one more is of no use."""
        return self._failed_starts >= START_TRIES

    def stuck(self, pid: int, now: float) -> dict[str, str]:
        """The module, and why, that this forkserver stands still at; nothing if none."""
        if self._now is None or not self._now.stands_still(lambda: _usage(pid), now):
            return {}
        return {self._now.module: f"the import made no progress for {STILL_S:.0f} s"}


def _usage(pid: int) -> Usage | None:
    try:
        return usage_of(psutil.Process(pid))
    except psutil.Error:  # it has ended
        return None
