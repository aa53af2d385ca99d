"""A loss that has stopped falling: told once, and nothing follows.

Whether that is the end of training, a bad learning rate or broken data is for people to say. The
loss of one rank is taken as its reports come, a few times a second, in blocks of half a window.
The medians of three blocks in a row are compared, so that neither noise nor a spike decides: the
loss has improved if one of the later two is below the first by the share that was asked for. First
and last are a window apart.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from holdfast.detection.reported_loss import reported_loss
from holdfast.events import LossPlateaued
from holdfast.messages import Report, WorkerReport

SAMPLES_MAX = 1024  # of a block; beyond that every second one is kept, then every fourth, ...
BLOCKS = 3
SAMPLES_MIN = 8  # of a block: fewer tell nothing


@dataclass(slots=True)
class _Block:
    """Samples of half a window, evenly spread over it."""

    begun: int  # its first step
    stride: int = 1
    seen: int = 0
    samples: list[float] = field(default_factory=list)

    def add(self, loss: float) -> None:
        if self.seen % self.stride == 0:
            self.samples.append(loss)
        self.seen += 1
        if len(self.samples) >= SAMPLES_MAX:
            self.samples = self.samples[::2]
            self.stride *= 2


class PlateauWatch:
    """The loss of the lowest rank that tells one. `window` steps, 0 for not to look; `share` of the
    loss that it has to fall by within a window."""

    def __init__(self, window: int, share: float) -> None:
        self._window, self._share = window, share
        self._half = max(1, window // 2)
        self._attempt, self._rank, self._step = 0, -1, -1
        self._blocks: deque[_Block] = deque(maxlen=BLOCKS)
        self._told = False

    def observe(self, report: Report) -> list[LossPlateaued]:
        """Take in one node's report; reports of other attempts than the newest are ignored."""
        if not self._window or report.attempt < self._attempt:
            return []
        self._attempt = report.attempt
        return [told for worker in report.workers for told in self._take_in(worker)]

    def _take_in(self, worker: WorkerReport) -> Iterator[LossPlateaued]:
        if worker.rank > self._rank >= 0:
            return
        told = reported_loss(worker)
        if told is None:
            return
        step, loss = told
        if self._rank < 0 or worker.rank < self._rank:
            self._rank, self._step = worker.rank, -1
            self._blocks.clear()
        if step <= self._step:
            return  # done before, or done again
        self._step = step
        if not self._blocks or step >= self._blocks[-1].begun + self._half:
            yield from self._judge()
            self._blocks.append(_Block(step))
        self._blocks[-1].add(loss)

    def _judge(self) -> Iterator[LossPlateaued]:
        """Whenever a block is full."""
        if len(self._blocks) < BLOCKS or any(len(b.samples) < SAMPLES_MIN for b in self._blocks):
            return
        before, *later = (median(block.samples) for block in self._blocks)
        improved = min(later) < before - self._share * abs(before)
        if not (improved or self._told):
            yield LossPlateaued(
                attempt=self._attempt,
                rank=self._rank,
                step=self._step,
                steps=self._window,
                share=self._share,
                loss=later[-1],
                before=before,
            )
        self._told = not improved
