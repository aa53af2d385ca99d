"""Stages of a pipeline, against each other: one that computes longer than the others makes all of
them wait, step after step, and no rank of it is to blame.

Ranks are told apart from their like, those of the same stage; stages by how long they compute in a
step, which each rank measures (`train/layouts/stage_work.py`). Of a stage the median rank counts,
so that one that is slow makes no slow stage; of the other stages the median, too. It is told if
that is so in each of some parts of the time, and until it is not in any of as many.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from holdfast.detection.samples import Doing, Sample, median_low
from holdfast.events import in_rows
from holdfast.slow_ranks import SlowBy, Straggler
from holdfast.stacks import in_words

UNEVEN = 1.2  # times as long as the others: told
EVEN = 1.1  # no more than that: not any more
PARTS, PART_S, PART_STEPS = 3, 15.0, 3  # that show it


class StageTimes(NamedTuple):
    """Seconds of a step in which the slowest stage computes, and the others."""

    slowest: int
    its_s: float
    others_s: float

    @property
    def times(self) -> float:
        """As long as the others."""
        return self.its_s / self.others_s if self.others_s > 0 else 1.0


class Stages(NamedTuple):
    """How the ranks are divided among the stages: the outermost dimension of the layout."""

    size: int = 1
    each: int = 1 << 32  # ranks

    def of(self, rank: int) -> int:
        """The stage of this rank."""
        return rank // self.each

    def are_one(self, ranks: Sequence[int]) -> bool:
        """Whether these ranks, ascending, are of one stage. Stages come to a collective one after
        the other, which says nothing of who is slow."""
        return self.of(ranks[0]) == self.of(ranks[-1])

    def are_late_together(self, rank: int, late: Collection[int]) -> bool:
        """Whether other stages of its own pipeline are late with it, each behind its like: one of
        them makes all of them late."""
        return any(one % self.each == rank % self.each for one in late if one != rank)

    def like(self, rank: int, doing: Mapping[int, Doing]) -> dict[int, Doing]:
        """What the ranks of its stage do."""
        stage = self.of(rank)
        return {other: did for other, did in doing.items() if self.of(other) == stage}


UNDIVIDED = Stages()


class StageWatch:
    """Which stage is slow, in one attempt."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._begun: Sample | None = None
        self._parts: deque[StageTimes] = deque(maxlen=PARTS)
        self._slow: StageTimes | None = None

    def observe(self, sample: Sample) -> Straggler | None:
        """Take in a sample; returns the stage that is slow, told by its first rank."""
        if self._stages.size == 1:
            return None
        if self._begun is None:
            self._begun = sample
        elif sample.at - self._begun.at >= PART_S:
            part = self._compared(self._begun.doing, sample.doing)
            if part is not None:
                self._begun = sample
                self._parts.append(part)
                self._slow = self._judged()
        return self._told(self._slow) if self._slow is not None else None

    def skip(self) -> None:
        """What happens up to the next sample is not counted."""
        self._begun = None

    def _compared(self, before: Mapping[int, Doing], now: Mapping[int, Doing]) -> StageTimes | None:
        """None as long as a stage is unknown, or has done too few steps."""
        each: dict[int, list[float]] = {}
        for rank, doing in now.items():
            since = before.get(rank, Doing())
            steps, took_s = doing.steps - since.steps, doing.stage_s - since.stage_s
            if steps >= PART_STEPS and since.stage_s > 0 and took_s > 0:
                each.setdefault(self._stages.of(rank), []).append(took_s / steps)
        if len(each) < self._stages.size:
            return None
        seconds = {stage: median_low(some) for stage, some in each.items()}
        slowest = max(seconds, key=lambda stage: seconds[stage])
        its_s = seconds.pop(slowest)
        return StageTimes(slowest, its_s, median_low([*seconds.values()]))

    def _judged(self) -> StageTimes | None:
        uneven = {part.slowest if part.times >= UNEVEN else None for part in self._parts}
        known = self._slow
        if len(self._parts) == PARTS and len(uneven) == 1 and None not in uneven:
            if known is not None and {known.slowest} == uneven:
                return known  # what was told stays told
            return sorted(self._parts, key=lambda one: one.times)[PARTS // 2]
        still = known is not None and any(
            one.slowest == known.slowest and one.times > EVEN for one in self._parts
        )
        return known if still else None

    def _told(self, found: StageTimes) -> Straggler:
        first = found.slowest * self._stages.each
        ranks = in_rows(range(first, first + self._stages.each))
        who = f"rank{'s' if self._stages.each > 1 else ''} {in_words(ranks)}"
        return Straggler(
            rank=first,
            share=1 - 1 / found.times,
            cause=SlowBy.STAGE,
            text=f"stage {found.slowest} of the pipeline ({who}) computes {found.times:.2f} times "
            "as long in a step as the others; give it fewer layers, unless its machines are slower",
        )
