"""Checks that fail on every machine alike, for what nodes share: an image, a driver, a setting.

Told by the world when that begins and ends, this referee lets nobody be taken for bad meanwhile: a
machine that is given up for its checks has to be really sick. Where it begins or ends while
machines are compared, one may have failed and the other one not.
"""

from holdfast.events import AnyEvent, NodesChecked, NodeUnfit

WRONG = "matmul: the check exited with status 1: ImportError: libcublas.so.12"
COMPARED_S = 60.0  # that it takes two machines, at most, to check the same
DISK = "disk /checkpoints/local: Input/output error"


class FairChecks:
    """Who has failed, and whether somebody may be taken for bad."""

    def __init__(self) -> None:
        self._failed: set[str] = set()
        self.unclear = False  # until a moment ago every machine has failed, or has passed

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
        """Whether it can be taken for bad because it has failed."""
        return self.unclear and node in self._failed
