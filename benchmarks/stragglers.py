"""Simulated trainings: is a slow rank found, how soon, and is nobody called slow who is not?

    .venv/bin/python benchmarks/stragglers.py [--trainings N] [--hours H] [--json]

The detector of production is asked as a controller asks it: every ten seconds, every two when
somebody seems to be late, for at most 256 collectives of ranks whose clocks differ. `found` counts
trainings in which one rank of 2 or 4 becomes 1.2 times as slow after a minute or so; `hours` of
training without a slow rank follow, of every kind of noise. Steps vary evenly (`even`, a share), by
a load of the machine that wanders (`wander`, a share, and for how long it stays alike), and by
bursts in which a rank is 1.2 to 2 times as slow for up to 8 s, one in ten seconds.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.collectives import RECENT_MAX, Collective, GroupLog, RankTimes
from holdfast.detection.samples import Doing, Sample
from holdfast.detection.straggler import StragglerWatch
from holdfast.shell.straggler_sampling import EVERY_S, SOON
from table import Row, report

BEGIN_S, TURN_S, COLLECTIVE_S = 100.0, 600.0, 0.001
ERROR_US = 200.0  # of a comparison of clocks
BURST_S, BURST_TIMES = (0.2, 8.0), (1.2, 2.0)
SLOW = 1.2
Times = NDArray[np.float64]


class Noise(NamedTuple):
    """How steps vary."""

    step_s: float = 0.05
    even: float = 0.3
    wander: float = 0.0
    wander_s: float = 1.0
    bursts_per_s: float = 0.0


FOUND = {
    "50 ms ± 20 %": (Noise(even=0.2), 30.0),
    "50 ms ± 30 %": (Noise(), 30.0),
    "10 ms ± 30 %": (Noise(step_s=0.01), 30.0),
    "50 ms ± 60 %": (Noise(even=0.6), 90.0),
    "1 s ± 30 %": (Noise(step_s=1.0), 300.0),
    "10 s ± 30 %": (Noise(step_s=10.0), 1800.0),
}
CLEAN = {
    "50 ms ± 60 %": Noise(even=0.6),
    "10 ms ± 60 %": Noise(step_s=0.01, even=0.6),
    "50 ms ± 60 %, wanders by 20 % for 2 s": Noise(even=0.6, wander=0.2, wander_s=2.0),
    "50 ms ± 30 %, wanders by 30 % for 1 s": Noise(wander=0.3),
    "50 ms ± 30 %, wanders by 20 % for 5 s": Noise(wander=0.2, wander_s=5.0),
    "50 ms ± 30 %, bursts": Noise(bursts_per_s=0.1),
    "1 s ± 60 %": Noise(step_s=1.0, even=0.6),
}


class Training:
    """Ranks that compute and wait for each other; by a clock each."""

    def __init__(self, seed: int, noise: Noise, ranks: int) -> None:
        self.dice, self.noise, self.ranks = np.random.default_rng(seed), noise, ranks
        self.slow = np.ones(ranks)
        self.ahead_us = self.dice.uniform(-1e9, 1e9, ranks)
        self.at, self.done = BEGIN_S, 0
        self.entered: Times = np.zeros((0, ranks))
        self.over: Times = np.zeros(0)
        self.starved: Times = np.zeros((0, ranks))  # seconds so far, a row for each step
        self._level = np.zeros(ranks)

    def sample(self, at: float) -> Sample:
        """What all ranks answer then."""
        while self.at <= at:
            self._train(min(TURN_S, max(at - self.at, 10 * self.noise.step_s)))
        known = int(np.searchsorted(self.over, at, side="right"))
        first = self.done - len(self.over)
        newest = range(max(0, known - RECENT_MAX), known)
        error_us = self.dice.uniform(-ERROR_US, ERROR_US, self.ranks)
        starved = self.starved[known - 1] if known else np.zeros(self.ranks)
        return Sample(
            at,
            [self._told(rank, first, newest) for rank in range(self.ranks)],
            {r: (float(self.ahead_us[r] + error_us[r]), ERROR_US) for r in range(self.ranks)},
            {r: Doing(starved_s=float(starved[r])) for r in range(self.ranks)},
        )

    def _told(self, rank: int, first: int, steps: range) -> RankTimes:
        at_us = (self.entered[steps.start : steps.stop, rank] * 1e6 + self.ahead_us[rank]).tolist()
        recent = tuple(
            Collective(first + n + 1, int(us)) for n, us in zip(steps, at_us, strict=True)
        )
        log = GroupLog(name="0", members=((0, self.ranks, 1),), recent=recent)
        return RankTimes(rank=rank, groups=(log,))

    def _train(self, seconds: float) -> None:
        """So long, about; what is older than the newest 256 steps is forgotten."""
        count = max(1, int(seconds / self.noise.step_s))
        even = self.dice.uniform(1 - self.noise.even, 1 + self.noise.even, (count, self.ranks))
        busy = even * self._wanders(count) * self._bursts(count)
        took = busy * self.slow * self.noise.step_s
        over = self.at + np.cumsum(took.max(axis=1) + COLLECTIVE_S)
        began = np.concatenate(([self.at], over[:-1]))
        so_far = self.starved[-1] if len(self.starved) else np.zeros(self.ranks)
        starved = so_far + np.cumsum(np.maximum(busy - even, 0) * self.noise.step_s, axis=0)
        kept = slice(-RECENT_MAX, None)
        self.entered = np.vstack((self.entered[kept], began[:, None] + took))
        self.starved = np.vstack((self.starved[kept], starved))
        self.over = np.concatenate((self.over[kept], over))
        self.at, self.done = float(over[-1]), self.done + count

    def _wanders(self, count: int) -> Times:
        if not self.noise.wander:
            return np.ones((count, self.ranks))
        alike = math.exp(-self.noise.step_s / self.noise.wander_s)
        drawn = self.dice.normal(
            0, self.noise.wander * math.sqrt(1 - alike**2), (count, self.ranks)
        )
        levels = np.empty((count, self.ranks))
        for step in range(count):
            self._level = levels[step] = alike * self._level + drawn[step]
        return np.maximum(1.0, 1 + levels)

    def _bursts(self, count: int) -> Times:
        times, mean_s = np.ones((count, self.ranks)), self.noise.bursts_per_s
        for rank in range(self.ranks if mean_s else 0):
            at = self.dice.exponential(1 / mean_s)
            while at < count * self.noise.step_s:
                lasts = self.dice.uniform(*BURST_S)
                burst = slice(int(at / self.noise.step_s), int((at + lasts) / self.noise.step_s))
                times[burst, rank] *= self.dice.uniform(*BURST_TIMES)
                at += lasts + self.dice.exponential(1 / mean_s)
        return times


class Watching:
    """Asks a training as a controller does."""

    def __init__(self, training: Training) -> None:
        self.training, self.watch = training, StragglerWatch(1)
        self.next = BEGIN_S + training.dice.uniform(0, EVERY_S)

    def until(self, end: float) -> Iterator[tuple[float, tuple[int, ...]]]:
        """Who is told as slow, and when."""
        while self.next < end:
            at = self.next
            event = self.watch.observe(self.training.sample(at))
            if event is not None:
                yield at, tuple(one.rank for one in event.stragglers)
            self.next += EVERY_S * SOON if self.watch.suspects else EVERY_S


def found_after(seed: int, noise: Noise, within_s: float) -> tuple[float, bool]:
    """Seconds until the slow rank was told, and whether another one ever was."""
    training = Training(seed, noise, (2, 4)[seed % 2])
    watching, slow = Watching(training), int(training.dice.integers(training.ranks))
    told = [*watching.until(BEGIN_S + max(60.0, 30 * noise.step_s))]
    training.slow[slow], since = SLOW, training.at
    told += watching.until(since + 3 * within_s)
    took = [at - since for at, ranks in told if slow in ranks and at > since]
    return min(took, default=math.inf), any(set(ranks) - {slow} for _, ranks in told)


def found_row(noise: Noise, within_s: float, count: int) -> Row:
    """Of so many trainings."""
    took, others = zip(*(found_after(seed, noise, within_s) for seed in range(count)), strict=True)
    return {
        "trainings": count,
        "within_s": within_s,
        "found": sum(one <= within_s for one in took) / count,
        "median_s": median(took) if median(took) < math.inf else None,
        "worst_s": max(took) if max(took) < math.inf else None,
        "others_named": sum(others),
    }


def clean_row(noise: Noise, hours: float) -> Row:
    """Of so many hours in which nobody is slow."""
    told: list[Sequence[int]] = []
    for ranks in (2, 4):
        watching = Watching(Training(ranks, noise, ranks))
        told += [who for _, who in watching.until(BEGIN_S + hours / 2 * 3600) if who]
    return {"hours": hours, "false_alarms": len(told)}


def main() -> None:
    """Find, and find nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainings", type=int, default=200)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--only", nargs="*", default=[*FOUND, *CLEAN])
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    found = {
        f"slow, {name}": found_row(*FOUND[name], wanted.trainings)
        for name in FOUND
        if name in wanted.only and wanted.trainings
    }
    clean = {
        f"none slow, {name}": clean_row(noise, wanted.hours)
        for name, noise in CLEAN.items()
        if name in wanted.only and wanted.hours
    }
    report("Stragglers, simulated", found | clean, as_json=wanted.json)


if __name__ == "__main__":
    main()
