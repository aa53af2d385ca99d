"""Pipelines: ranks are compared with their like, and a slow stage is told as a stage."""

import random
from collections.abc import Sequence
from itertools import product

import pytest

from holdfast.collectives import Collective, GroupLog, RankTimes
from holdfast.detection.samples import Doing, Sample
from holdfast.detection.stages import Stages
from holdfast.detection.straggler import StragglerWatch
from holdfast.rank_runs import in_runs
from holdfast.slow_ranks import SlowBy, Straggler
from tests.more import sample

PARTS = 8  # micro-batches
PART_S = 0.002  # forward of one, in an ordinary stage
EVERY_S = 10.0
KEPT = 256


class PipelinedTraining:
    """`stages` x `replicas`, GPipe: all forward, all backward, gradients within each stage, then
    the loss from the last stage to all of its pipeline."""

    def __init__(self, stages: int, replicas: int, seed: int, *, measures: bool = True) -> None:
        self.stages, self.replicas, self.measures = stages, replicas, measures
        self.dice = random.Random(seed)
        self.ranks = range(stages * replicas)
        self.at = dict.fromkeys(self.ranks, 100.0)
        self.slow = dict.fromkeys(self.ranks, 1.0)
        self.stage_s = dict.fromkeys(self.ranks, 0.0)
        self.input_s = dict.fromkeys(self.ranks, 0.0)
        self.waits_for_input = dict.fromkeys(self.ranks, 0.0)
        self.steps = 0
        self.logs: dict[tuple[int, tuple[int, ...]], list[Collective]] = {}

    def run(self, seconds: float) -> None:
        end = max(self.at.values()) + seconds
        while max(self.at.values()) < end:
            self._step()

    def _step(self) -> None:
        for rank in self.ranks:
            self.at[rank] += self.waits_for_input[rank]
            self.input_s[rank] += self.waits_for_input[rank]
        orders = [range(self.stages), range(self.stages - 1, -1, -1)]
        for replica, (order, work) in product(
            range(self.replicas), zip(orders, (1, 2), strict=True)
        ):
            for _ in range(PARTS):
                before = 0.0
                for stage in order:
                    before = self._part(stage * self.replicas + replica, before, work)
        for stage in range(self.stages):
            self._meet(range(stage * self.replicas, (stage + 1) * self.replicas))
        for replica in range(self.replicas):
            self._meet(range(replica, len(self.ranks), self.replicas))
        self._meet(self.ranks)
        self.steps += 1

    def _part(self, rank: int, before: float, work: int) -> float:
        took = PART_S * work * self.slow[rank] * self.dice.uniform(0.8, 1.2)
        self.stage_s[rank] += took
        self.at[rank] = max(self.at[rank], before) + took
        return self.at[rank]

    def _meet(self, group: Sequence[int]) -> None:
        for rank in group:
            log = self.logs.setdefault((rank, tuple(group)), [])
            log.append(Collective(log[-1].sequence + 1 if log else 1, int(self.at[rank] * 1e6)))
            del log[:-KEPT]
        over = max(self.at[rank] for rank in group) + 0.0005
        self.at.update(dict.fromkeys(group, over))

    def sample(self) -> Sample:
        ranks = [
            RankTimes(
                rank=rank,
                groups=tuple(
                    GroupLog(name=str(group), members=in_runs(group), recent=tuple(log))
                    for (of, group), log in self.logs.items()
                    if of == rank and len(group) > 1
                ),
            )
            for rank in self.ranks
        ]
        doing = {
            rank: Doing(
                input_s=self.input_s[rank],
                stage_s=self.stage_s[rank] if self.measures else 0.0,
                steps=self.steps,
            )
            for rank in self.ranks
        }
        return Sample(max(self.at.values()), ranks, dict.fromkeys(self.ranks, (0.0, 0.0)), doing)


def watched(training: PipelinedTraining) -> StragglerWatch:
    return StragglerWatch(1, Stages(training.stages, training.replicas))


def told(
    training: PipelinedTraining, watch: StragglerWatch, seconds: float
) -> list[tuple[Straggler, ...]]:
    found = []
    for _ in range(round(seconds / EVERY_S)):
        training.run(EVERY_S)
        if (event := watch.observe(training.sample())) is not None:
            found.append(event.stragglers)
    return found


@pytest.mark.parametrize("shape", [(4, 1), (4, 2), (2, 4)])
def test_of_an_even_pipeline_nothing_is_told(shape: tuple[int, int]) -> None:
    training = PipelinedTraining(*shape, seed=1)
    assert told(training, watched(training), 200.0) == []


@pytest.mark.parametrize(
    ("stages", "replicas", "stage"),
    sample([(4, 2, 3), (2, 2, 0)], [(4, 1, 3), (4, 2, 1)]),
)
def test_a_stage_that_computes_longer_is_told_once_and_no_rank_of_it(
    stages: int, replicas: int, stage: int
) -> None:
    training = PipelinedTraining(stages, replicas, seed=1)
    ranks = range(stage * replicas, (stage + 1) * replicas)
    training.slow.update(dict.fromkeys(ranks, 1.4))
    (((found,)),) = told(training, watched(training), 300.0)
    assert (found.rank, found.cause) == (ranks[0], SlowBy.STAGE)
    assert f"stage {stage} of the pipeline" in found.text and "1.4" in found.text
    assert found.share == pytest.approx(1 - 1 / 1.4, abs=0.02)


def test_a_stage_that_is_even_again_is_taken_back_once() -> None:
    training = PipelinedTraining(4, 2, seed=2)
    watch = watched(training)
    training.slow.update({6: 1.4, 7: 1.4})
    assert len(told(training, watch, 100.0)) == 1
    training.slow.update({6: 1.0, 7: 1.0})
    assert told(training, watch, 200.0) == [()]


def test_a_stage_around_the_limit_is_not_told_again_and_again() -> None:
    training = PipelinedTraining(2, 1, seed=3)
    watch = watched(training)
    seen = []
    for times in (1.25, 1.18, 1.22, 1.15, 1.25, 1.18):
        training.slow[1] = times
        seen += told(training, watch, 60.0)
    assert len(seen) == 1


@pytest.mark.parametrize("seed", sample([0], [1, 2, 3]))
@pytest.mark.parametrize("victim", sample([0, 5], [3, 9]))
def test_a_slow_rank_of_a_pipeline_is_named_and_no_other_stage_that_waits_for_it(
    seed: int, victim: int
) -> None:
    training = PipelinedTraining(4, 3, seed)
    watch = watched(training)
    training.slow[victim] = 1.4
    ((slow,),) = told(training, watch, 200.0)
    assert (slow.rank, slow.cause) == (victim, SlowBy.ITSELF)


def test_a_slow_input_of_a_pipeline_is_told_of_the_rank_that_has_it() -> None:
    training = PipelinedTraining(2, 3, seed=1)
    watch = watched(training)
    training.waits_for_input[1] = 0.02
    (*_, slow) = told(training, watch, 200.0)
    assert [(one.rank, one.cause) for one in slow] == [(1, SlowBy.INPUT)]


@pytest.mark.parametrize("replicas", [1, 3])
def test_where_stages_are_not_measured_none_of_them_is_told(replicas: int) -> None:
    training = PipelinedTraining(4, replicas, seed=1, measures=False)
    training.slow[3 * replicas] = 1.4
    assert told(training, watched(training), 200.0) == []
