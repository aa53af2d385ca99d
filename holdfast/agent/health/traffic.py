"""What the links of this machine carry while its workers are looked at.

Counters of the machine, so that of several nodes on one each tells the same, and what they send to
each other over loopback is not among it. Read by itself: the look that a provider takes every few
seconds would be from before.
"""

import time
from collections.abc import Callable
from pathlib import Path

from holdfast.agent.health import network
from holdfast.agent.health.provider import Missing
from holdfast.evidence import LinkKind, Traffic

KINDS: tuple[LinkKind, ...] = ("rdma", "link")
Counts = dict[str, int]


class TrafficMeter:
    """Counts from when it is made. Reads some files of the kernel, which takes about 1 ms."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._begun, self._before = clock(), _counts(root)

    def read(self) -> tuple[Traffic, ...]:
        """Since then, of each kind of link that there is."""
        seconds, now = self._clock() - self._begun, _counts(self._root)
        return tuple(
            Traffic(
                kind=kind,
                sent_bytes=self._since(now, f"{kind}-sent"),
                received_bytes=self._since(now, f"{kind}-received"),
                seconds=seconds,
            )
            for kind in KINDS
            if f"{kind}-sent" in now
        )

    def _since(self, now: Counts, kind: str) -> int:
        return max(0, now.get(kind, 0) - self._before.get(kind, 0))


def _counts(root: Path) -> Counts:
    """Bytes of all links together; of what goes away meanwhile nothing."""
    found: Counts = {}
    try:
        providers = [one for one in network.find(root) if not isinstance(one, Missing)]
        readings = [reading for one in providers for reading in one.read()]
    except OSError:
        return {}
    for reading in readings:
        if reading.kind.endswith(("-sent", "-received")):
            found[reading.kind] = found.get(reading.kind, 0) + int(reading.value)
    return found
