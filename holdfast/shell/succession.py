"""What a new controller goes on from, where the disk of the one before may be gone.

Journals are compared as in Raft: by the term of the controller that wrote the last line, and among
those of one term by their length. A longer one of an older term has lines that nobody acts on any
more. The term stands in the first entry that each controller writes, so the bytes alone tell where
a journal ends, wherever they were found: with agents, on a disk, or published.

One holder is enough for an order to leave, so any agent may be the only one that knows of it: all
that run are waited for. Those on the machine of the previous controller are waited for only briefly
if there are others: what they hold does not count then, and they may have died with it. An agent
that ends meanwhile is not waited for: a drained machine takes its controller along with its agents.

Pure: the driver for Kubernetes and the simulation both decide by it.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

WITHIN_S = 10.0  # for agents to find who asks: those that are cut off are not waited for longer
RUNNING_S = 1.0  # between two looks at which of them still run
NEAR_WITHIN_S = 3.0  # for those beside the previous controller; they try once a second

_FIRSTS = (b'"event":{"type":"ControllerResumed"', b'"event":{"type":"JobSubmitted"')


class Position(NamedTuple):
    """Of the last line of a journal. The greater one is to be gone on from."""

    term: int
    line: int


NOWHERE = Position(-1, -1)


class _First(msgspec.Struct, frozen=True):
    """The first entry of a controller, as far as it matters here."""

    event: "_Begun"


class _Begun(msgspec.Struct, frozen=True):
    term: int = 0


_decoder = msgspec.json.Decoder(_First)


def position_of(journal: bytes) -> Position:
    """Where a journal ends; `NOWHERE` if it is empty. No text in a line looks like an event: quotes
    are escaped there."""
    count = journal.count(b"\n")
    if not count:
        return NOWHERE
    at = max(journal.rfind(first) for first in _FIRSTS)
    if at < 0:
        return Position(0, count - 1)
    line = journal[journal.rfind(b"\n", 0, at) + 1 : journal.find(b"\n", at)]
    return Position(_decoder.decode(line).event.term, count - 1)


def newest(journals: Iterable[bytes]) -> bytes:
    """The one to go on from; empty if there is none."""
    return max(journals, key=position_of, default=b"")


class StandingAside:
    """After a controller has given its place away because it hears of no node: when its process
    may begin anew. At once it would get the place back before whoever stands by has looked, and it
    would hear as little there as before."""

    def __init__(self, within_s: float, now: float) -> None:
        self._until = now + within_s  # by when anybody who stands by has taken the place

    def is_over(self, now: float, *, taken: bool) -> bool:
        """Whether another one has it, or none stands by."""
        return taken or now >= self._until


class RollCall:
    """Which agents have said what they hold, and whether others are still waited for.

    `far` and `near` are the agents that run, `near` those on the machine of the previous
    controller. Times are the caller's.
    """

    def __init__(self, far: Collection[str], near: Collection[str], now: float) -> None:
        self._far, self._near, self._began = set(far or near), set(near if far else ()), now
        self._held = NOWHERE
        self.obeyed = 0  # the newest attempt that anybody was told to start or to stop
        self.best = b""

    def wanted(self, term: int, line: int) -> bool:
        """Whether a copy that ends there is to be fetched."""
        return line >= 0 and Position(term, line) > self._held

    def fetched(self, term: int, line: int, copy: bytes) -> None:
        """A sound copy, which ends there."""
        if self.wanted(term, line):
            self._held, self.best = Position(term, line), copy

    def heard(self, node: str, ordered: int, fenced: int) -> None:
        """This agent has said what it holds and was told, and has given what was wanted."""
        self.obeyed = max(self.obeyed, ordered, fenced)
        self._far.discard(node)
        self._near.discard(node)

    def only(self, running: Collection[str]) -> None:
        """Those run now: others have nothing left to say, and nothing more is learned of them."""
        self._far.intersection_update(running)
        self._near.intersection_update(running)

    @property
    def silent(self) -> set[str]:
        """Agents that have not been heard."""
        return self._far | self._near

    def is_over(self, now: float) -> bool:
        """Whether everybody was heard, or nobody else is waited for."""
        waited_s = now - self._began
        if self._far:
            return waited_s > WITHIN_S
        return not self._near or waited_s > NEAR_WITHIN_S
