"""What waits to be sent over one connection: bounded in bytes, and with a deadline.

Sending never waits. A connection whose other end does not take what it is sent, because its network
is cut or its process stopped, is closed once too much waits, or once nothing has moved for too
long; whoever is well connects again and is told anew what holds. What was taken is counted, not
what is left: one that takes as much as it is sent makes progress, however much waits.
"""

LIMIT_BYTES = 16 << 20  # several times the largest message
DEADLINE_S = 10.0  # without any progress


class Outbox:
    """How much waits, and since when nothing of it has moved. Times are the caller's."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES, deadline_s: float = DEADLINE_S) -> None:
        self._limit_bytes, self._deadline_s = limit_bytes, deadline_s
        self._taken_bytes = 0
        self._stuck_since: float | None = None

    def observe(self, sent_bytes: int, waiting_bytes: int, now: float) -> str:
        """So much was sent in all, of which so much waits still. Why the connection is to be
        closed; empty if it is not."""
        taken_bytes = sent_bytes - waiting_bytes
        if waiting_bytes == 0:
            self._stuck_since = None
        elif self._stuck_since is None or taken_bytes > self._taken_bytes:
            self._stuck_since = now
        self._taken_bytes = max(self._taken_bytes, taken_bytes)
        if waiting_bytes > self._limit_bytes:
            return f"{waiting_bytes} bytes to it are unsent"
        if self._stuck_since is not None and now - self._stuck_since >= self._deadline_s:
            return f"it has read nothing for {now - self._stuck_since:.1f} s"
        return ""
