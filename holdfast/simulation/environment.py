"""Time and chance of one simulated world.

A heap of (time, sequence number, what happens): things that happen at the same time happen in the
order in which they were planned, so a world is the same in every run. Virtual seconds count from 0.
All chance comes from one generator that is seeded with the world's number.
"""

import heapq
import math
from collections.abc import Callable
from enum import StrEnum
from random import Random
from typing import NamedTuple

from holdfast.simulation.hardship import Hardship

AT_ONCE_MAX = 10_000


class Promise(StrEnum):
    """What must hold in every world. Each is needed by a planted bug, or it is removed."""

    ONE_ATTEMPT = "one attempt"
    GIVEN_UP = "a removed node stays removed"
    SNAPSHOT = "resumes from the newest whole snapshot"
    ASSEMBLY = "no part of a snapshot is missing"
    SAMPLES = "each sample once"
    EFFICIENCY = "nothing healthy is stopped or replaced"
    PERSISTENCE = "restarts have a limit and a reason"
    REPLAY = "replay gives the same state"
    BOOKS = "the ledger sums to the wall time"
    LIVENESS = "recovers once faults end"
    SPARES = "spares are restored"
    END = "ends on request"
    TIME = "time advances"
    NAMED = "a lost node is detected in time"
    BOUND = "no decision waits for silent nodes"
    TERMS = "one controller acts"
    FINITE = "no progress on NaN"
    LEFT_OUT = "only faulty batches are skipped"
    BLAME = "only the faulty rank or node is blamed"
    SEEN = "every fault is detected"
    KEPT = "kept workers wait for a new attempt"
    WHOLE = "only whole replicas train"
    VERSIONS = "one version, and it is prepared"
    CHOICE = "the cheapest sufficient step"
    RATE = "nodes are left at a limited rate"


class Foul(AssertionError):  # noqa: N818 - a referee's word, not an error of the caller
    """A promise was broken: which, when (virtual seconds), and how."""

    def __init__(self, promise: Promise, at: float, how: str) -> None:
        super().__init__(f"{promise} at {at:.3f} s: {how}")
        self.promise, self.at, self.how = promise, at, how


class SlowPort(NamedTuple):
    """It carries bytes `times` as slowly as others."""

    times: float
    since: float


SOUND_PORT = SlowPort(1.0, -math.inf)


class Environment:
    """The virtual clock, the dice and how hard this world is."""

    def __init__(self, hardship: Hardship) -> None:
        self.now = 0.0
        self.hardship = hardship
        self.calm = False  # the hardship is over
        self.shared_fault = ""  # what checks find on every machine
        self.ports: dict[str, SlowPort] = {}  # of nodes
        self.dice = Random(f"world {hardship.seed}")
        self.happened = 0  # how many things have
        self._at_once = 0  # how many at this moment
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._planned = 0

    def found_on(self, own: str) -> str:
        """What checks find on a machine that has such a fault of its own, or none."""
        return "; ".join(filter(None, (own, self.shared_fault)))

    def after(self, delay_s: float, what: Callable[..., None], *words: object) -> None:
        """Let `what(*words)` happen `delay_s` from now."""
        self._planned += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._planned, what, words))

    def run(self, until: float) -> None:
        """Let everything happen that is planned up to `until`."""
        while self._heap and self._heap[0][0] <= until:
            before = self.now
            self.now, _, what, words = heapq.heappop(self._heap)
            self.happened += 1
            self._at_once = self._at_once + 1 if self.now == before else 0
            if self._at_once > AT_ONCE_MAX:
                raise Foul(Promise.TIME, self.now, f"{AT_ONCE_MAX} events at one time")
            what(*words)
        self.now = max(self.now, until)

    def chance(self, share: float) -> bool:
        """True for this share of all throws; never once the world is calm."""
        return not self.calm and self.dice.random() < share

    def about(self, mean_s: float) -> float:
        """A waiting time that is exponential around its mean."""
        return self.dice.expovariate(1.0 / mean_s)

    def between(self, low_s: float, high_s: float) -> float:
        """A length whose logarithm is uniform: short and long ones both occur."""
        return low_s * math.exp(self.dice.random() * math.log(high_s / low_s))
