"""How often something may be written: the more bytes it has, the longer until the next time.

The API server and etcd serve the whole cluster, so what a job writes is bounded by bytes a second,
whatever its size: small things are written when they change, large ones every few seconds.
"""

BYTES_PER_S = 64_000


class Pace:
    """One stream of writes."""

    def __init__(self) -> None:
        self._from = float("-inf")

    def ready(self, now: float) -> bool:
        """Whether one more may be written."""
        return now >= self._from

    def spent(self, count: int, now: float) -> None:
        """So many bytes were written."""
        self._from = max(now, self._from) + count / BYTES_PER_S
