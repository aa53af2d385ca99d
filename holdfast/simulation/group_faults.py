"""Machines that are bad only in a group: every check of such a machine alone passes, and an attempt
in which it takes part stands still, with nobody to blame.

A repetition of a step in which it takes part does not come to its end; all others end with the same
bits. So it can be known which it is, and the referee allows no other to be given up for it.
"""

from typing import Protocol

from holdfast.actions import Entry, Fence
from holdfast.events import NodesChecked, Store
from holdfast.messages import GroupOpened, RepeatStep, StepRepeated

REPEAT_S = 30.0  # to repeat a step, mean
SOUND = {"model": "5eed"}


class Stores(Protocol):
    """Where ranks can meet."""

    def new_store(self) -> Store:
        """On a port that nobody has used."""


def opened(order: RepeatStep, stores: Stores) -> tuple[GroupOpened, ...]:
    """What the first node of a group says at once."""
    if not order.opens:
        return ()
    return (GroupOpened(number=order.number, store=stores.new_store()),)


def repeated(order: RepeatStep, *, bad: bool) -> StepRepeated:
    """What a node says once the step is over, or will never be."""
    if bad:
        return StepRepeated(number=order.number, why="it did not complete the step")
    count = order.start.workers_per_node
    ranks = range(order.start.node_rank * count, (order.start.node_rank + 1) * count)
    return StepRepeated(number=order.number, digests=dict.fromkeys(ranks, SOUND))


class FairGroups:
    """Told by the world which nodes are bad, this referee looks at whom groups are said to show."""

    def __init__(self) -> None:
        self._bad: set[str] = set()

    def bad(self, node: str) -> None:
        """From now on."""
        self._bad.add(node)

    def is_bad(self, node: str) -> bool:
        """Whether nothing should train there."""
        return node in self._bad

    def judged(self, entry: Entry) -> str:
        """Who is named, and who is given up for it."""
        event = entry.event
        if not isinstance(event, NodesChecked) or not event.told:
            return ""
        gone = [a.node for a in entry.actions if isinstance(a, Fence) and event.told in a.reason]
        wrong = sorted({*event.found, *gone} - self._bad)
        if not wrong:
            return ""
        return f"groups are said to show that {', '.join(wrong)} is bad; bad are {[*self._bad]}"
