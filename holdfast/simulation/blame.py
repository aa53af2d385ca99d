"""Who is to blame: nobody is removed for a neighbour's fault, as far as that can be known.

Told by the world which ranks are really slow, whose bits have flipped and when a network carries
nothing, this referee looks at every rank that is named, and at every node that is given up for it.
"""

from collections.abc import Sequence

from holdfast.actions import Entry, Fence, StopAttempt
from holdfast.events import (
    AttemptStopped,
    Diagnosed,
    HangJudged,
    ReplicasDiffer,
    StragglersFound,
    each_of,
)
from holdfast.simulation.group_faults import FairGroups
from holdfast.simulation.repeating_errors import FairErrors
from holdfast.simulation.slow_ports import FairNetworks
from holdfast.simulation.slowness import Slow

NAMED = 3  # hangs, before a node is left for them
STRAGGLERS_WRONG = 1 / 200_000
"""Of all ranks whose times are judged, so many may be named wrongly: a straggler is one by tests of
chance (`detection/straggler.py`), which some noise will pass. Who is blamed for a hang or for
corruption was seen to stand where nobody else does, or to have other bits than the majority: that
is exact, and none may be wrong."""


class FairBlame:
    """What is true of the attempts, and what was said of them."""

    def __init__(self) -> None:
        self.groups, self.errors, self.networks = FairGroups(), FairErrors(), FairNetworks()
        self.judged = 0  # ranks whose times were told, once for each time
        self._wrong = 0
        self._slow: dict[int, dict[int, str]] = {}  # attempt → rank → its node
        self._flips: dict[int, tuple[int, str]] = {}  # attempt → rank, and its node
        self._stalled: set[int] = set()  # attempts whose network carried nothing
        self._hung: dict[int, int] = {}  # attempt → the rank that hangs
        self._hangs_judged, self._isolates = 0, False
        self._stopped: set[int] = set()  # attempts that were stopped for a straggler
        self._corrupt: dict[str, set[tuple[int, int]]] = {}  # node → attempts and ranks

    def sets_out(self, attempt: int, node: str, ranks: Sequence[int], slow: Slow | None) -> None:
        """How fast the ranks of a node are from now on."""
        found = self._slow.setdefault(attempt, {})
        if slow is not None and not slow.profiled:
            found |= {rank: node for place, rank in enumerate(ranks) if slow.takes(place)}

    def flipped(self, attempt: int, node: str, rank: int) -> None:
        """This rank has other parameters than the others."""
        self._flips[attempt] = rank, node

    def stalled(self, attempt: int) -> None:
        """All wait for the network, for long enough to be taken for a hang."""
        self._stalled.add(attempt)

    def hung(self, attempt: int, rank: int) -> None:
        """A worker hangs."""
        self._hung[attempt] = rank

    def forget(self, attempt: int) -> None:
        """The number is given to another attempt."""
        self._slow.pop(attempt, None)
        self._flips.pop(attempt, None)
        self._hung.pop(attempt, None)
        self._stalled.discard(attempt)

    def may_be_stopped(self, attempt: int, event: object) -> bool:
        """Whether this fact is a reason to stop an attempt in which nothing broke. What it says of
        single ranks is judged in `journaled`."""
        stalled = isinstance(event, HangJudged) and attempt in self._stalled
        return stalled or isinstance(event, StragglersFound)

    def may_be_replaced(self, node: str, attempt: int) -> bool:
        """Whether it makes all others wait, and the attempt was stopped for that; or hung often."""
        slow = attempt in self._stopped and node in self._slow.get(attempt, {}).values()
        return slow or self._isolates

    def corruptions(self, node: str) -> set[tuple[int, int]]:
        """Attempts and ranks in which this node had other bits than the others, and was blamed."""
        return self._corrupt.get(node, set())

    def journaled(self, entry: Entry) -> str:
        """Who is named, and given up."""
        return self.networks.judged(entry) or self._judged(entry)

    def _judged(self, entry: Entry) -> str:
        event = entry.event
        match event:
            case StragglersFound():
                if any(isinstance(action, StopAttempt) for action in entry.actions):
                    self._stopped.add(event.attempt)
                return self._slow_ones(event)
            case ReplicasDiffer():
                return self._differing(event)
            case HangJudged():
                return self._hanging(event)
            case AttemptStopped():
                self._isolates = self._hangs_judged >= NAMED and any(
                    choice.step == "isolate" for choice in entry.choices
                )
                return self._replaced(event.attempt, entry)
            case Diagnosed():
                return self.errors.journaled(entry)
            case _:
                return self.groups.judged(entry)

    def _hanging(self, event: HangJudged) -> str:
        self._hangs_judged += 1
        hung, blamed = self._hung.get(event.attempt), [*each_of(event.ranks)]
        if hung is not None and blamed and blamed != [hung]:
            return f"ranks {blamed} are blamed for a hang of rank {hung}"
        stalled = blamed and hung is None and event.attempt in self._stalled
        return f"ranks {blamed} are blamed for a network that stalls" if stalled else ""

    def _slow_ones(self, event: StragglersFound) -> str:
        slow = self._slow.get(event.attempt, {})
        wrong = [one.rank for one in event.stragglers if one.rank not in slow]
        self._wrong += len(wrong)
        if self._wrong <= STRAGGLERS_WRONG * self.judged:
            return ""
        return f"rank {wrong[0]} of attempt {event.attempt} is called slow; slow are {[*slow]}"

    def _differing(self, event: ReplicasDiffer) -> str:
        rank, node = self._flips.get(event.attempt, (None, ""))
        blamed = [*each_of(event.ranks)]
        if blamed == [rank]:
            self._corrupt.setdefault(node, set()).add((event.attempt, blamed[0]))
        elif blamed:
            return f"ranks {blamed} of attempt {event.attempt} are blamed, rank {rank} differs"
        return ""

    def _replaced(self, attempt: int, entry: Entry) -> str:
        slow = self._slow.get(attempt, {})
        fences = [one for one in entry.actions if isinstance(one, Fence) and one.blamed]
        for fence in fences if attempt in self._stopped else ():
            if fence.node not in slow.values():
                return f"{fence.node} is replaced for being slow; slow are {[*slow.values()]}"
        return ""
