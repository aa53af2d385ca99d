"""Workers that are kept over attempts, in a simulated world, and the referee of that.

A worker that is told to park does so soon, in most cases; who does not is ended as ever, so a node
answers with some kept and some gone. What is kept is used only by the next attempt, for the same
ranks, and is lost with its node or forkserver.
"""

from random import Random

from holdfast.messages import Start, Stop

PARKS_SHARE = 0.8  # of workers that are told to


def grace_of(order: Stop) -> float:
    """How long the last worker may live after this order."""
    return max(order.grace_s, order.park_s or 0.0)


class ParkedWorkers:
    """Of one node."""

    def __init__(self, seed: str) -> None:
        self._dice = Random(seed)
        self._attempt = 0
        self._ranks: tuple[int, ...] = ()
        self.unkept = 0  # others that could wait

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self._ranks)

    def park(self, attempt: int, alive: list[int], park_s: float) -> None:
        """These were told to, in this attempt, unless the time for that is 0."""
        self._attempt = attempt
        share = PARKS_SHARE if park_s > 0 else 0.0
        self._ranks = tuple(rank for rank in alive if self._dice.random() < share)
        self.unkept = len(alive) - len(self._ranks)

    def lose(self) -> None:
        """Their processes are gone."""
        self._ranks, self.unkept = (), 0

    def take(self, order: Start) -> tuple[int, int]:
        """A new attempt begins here: of which attempt the kept ones are, and how many of them go
        on; nobody waits any more."""
        first = order.node_rank * order.workers_per_node
        mine = range(first, first + order.workers_per_node)
        taken = sum(rank in mine for rank in self._ranks)
        self.lose()
        return self._attempt, taken


class KeptWorkers:
    """A worker is told to park only where a snapshot is certain: all ranks have done a step of that
    attempt. And it acts again only in a newer attempt than the one that it has left."""

    def told_to_park(self, attempt: int, trained: bool) -> str:
        """Workers of this attempt are."""
        return "" if trained else f"attempt {attempt} parks before all ranks have done a step"

    def goes_on(self, left: int, attempt: int) -> str:
        """A kept worker begins in this attempt."""
        return "" if attempt > left else f"a worker of attempt {left} goes on in {attempt}"
