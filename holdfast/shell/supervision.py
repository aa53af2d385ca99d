"""Duties that have to go on in the background, and what becomes of one that fails.

A duty that ends, for whatever reason, is said and started again after a pause that grows; one that
fails too often within a short time is more than bad luck, and whoever runs it hands over: a new
process begins with nothing but the journal.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

FIRST_PAUSE_S = 0.5
LAST_PAUSE_S = 30.0
TIMES = 10  # failures within `WITHIN_S` that are too many
WITHIN_S = 300.0  # longer than all their pauses together


class Strikes:
    """The failures of one duty. Pure: times are the caller's."""

    def __init__(self) -> None:
        self._failed: deque[float] = deque(maxlen=TIMES)

    def failed(self, now: float) -> float | None:
        """After how many seconds it is to be started again; None: not any more."""
        self._failed.append(now)
        recent = [at for at in self._failed if now - at < WITHIN_S]
        if len(recent) >= TIMES:
            return None
        return float(min(LAST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (len(recent) - 1)))


class DutyError(RuntimeError):
    """A duty failed too often."""


async def keep_running(
    name: str, duty: Callable[[], Awaitable[object]], say: Callable[[str], None]
) -> None:
    """Run a duty that is not to end, again and again, until cancelled. Raises `DutyError`."""
    strikes = Strikes()
    while True:
        try:
            await duty()
            why = "it ended"
        except Exception as error:  # whatever it is, the job must not go on without this duty
            why = f"{type(error).__name__}: {error}"
        pause_s = strikes.failed(time.monotonic())
        if pause_s is None:
            raise DutyError(f"{name} failed {TIMES} times within {WITHIN_S:g} s; last: {why}")
        say(f"{name} failed and is restarted: {why}")
        await asyncio.sleep(pause_s)
