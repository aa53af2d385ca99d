"""Checks that fail on every machine alike, for what nodes share: an image, a driver, a setting.

Told by the world when that begins, this referee lets one machine be taken for bad each time: nobody
can know better of the first. Another one that is given up for its checks has to be really sick.
"""

from holdfast.events import AnyEvent, NodesChecked, NodeUnfit

WRONG = "matmul: the check exited with status 1: ImportError: libcublas.so.12"
DISK = "disk /checkpoints/local: Input/output error"


class FairChecks:
    """Who has failed, and how many may still be taken for bad."""

    def __init__(self) -> None:
        self._failed: set[str] = set()
        self._suspects: set[str] = set()
        self._free = 0

    def begins(self) -> None:
        """From now on every machine fails."""
        self._free += 1

    def heard(self, event: AnyEvent) -> None:
        """Who has failed."""
        if isinstance(event, NodeUnfit):
            self._failed.add(event.node)
        elif isinstance(event, NodesChecked) and not event.told:
            self._failed |= {node for node, why in event.found.items() if why}

    def has_failed(self, node: str) -> bool:
        """Whether it has, at any time."""
        return node in self._failed

    def may_be_left(self, node: str) -> bool:
        """Whether it can be taken for bad because it has failed; then no other can be."""
        if node in self._failed - self._suspects and self._free:
            self._free -= 1
            self._suspects.add(node)
        return node in self._suspects
