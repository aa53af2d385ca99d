"""A collective that one rank left out once is seen by how many each has entered at its steps."""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pytest

from holdfast.collectives import CollectivePace, RankTimes
from holdfast.detection.samples import Sample
from holdfast.detection.shift import ShiftWatch
from holdfast.events import CollectivesShifted, in_rows
from holdfast.flight_recorder import bends
from holdfast.rank_runs import in_runs
from tests.more import MORE

STEP_S = 0.05
SEEDS = range(100 if MORE else 8)


class End(NamedTuple):
    """Of a step."""

    step: int
    at_us: int
    entered: int


class Training:
    """Ranks that compute and wait in the same collectives of one group, by their order."""

    def __init__(self, count: int = 2, seed: int = 0, *, per_step: int = 1) -> None:
        self.dice, self.per_step, self.kept = random.Random(seed), per_step, 512
        self.at = [100.0] * count
        self.entered = [0] * count
        self.odd: dict[tuple[int, int], int] = {}  # rank and step: how many more than usual
        self.ends: dict[int, list[End]] = defaultdict(list)
        self.ahead_us = [self.dice.uniform(-1e9, 1e9) for _ in range(count)]
        self.doubt_us = 200.0
        self.lives = [self._life(rank) for rank in range(count)]

    def usual(self, _rank: int, step: int) -> int:
        return self.per_step + (step % 10 == 0)  # and one for what is logged

    def _life(self, rank: int) -> Iterator[None]:
        step = 0
        while True:
            step += 1
            count = self.usual(rank, step) + self.odd.get((rank, step), 0)
            for part in range(max(count, 1)):
                self.at[rank] += STEP_S / max(count, 1) * self.dice.uniform(0.6, 1.4)
                if part < count:
                    self.entered[rank] += 1
                    yield
            at_us = int(self.at[rank] * 1e6 + self.ahead_us[rank])
            self.ends[rank].append(End(step, at_us, self.entered[rank]))

    def run(self, seconds: float) -> None:
        until = max(self.at) + seconds
        while max(self.at) < until:
            for life in self.lives:
                next(life)
            self.at = [max(self.at) + 0.001] * len(self.at)

    def sample(self) -> Sample:
        clocks = {
            rank: (ahead + self.dice.uniform(-1, 1) * self.doubt_us, self.doubt_us)
            for rank, ahead in enumerate(self.ahead_us)
        }
        ranks = [self._times(rank) for rank in range(len(self.at))]
        return Sample(max(self.at), ranks, clocks, {})

    def _times(self, rank: int) -> RankTimes:
        ends = self.ends[rank][-self.kept :]
        course = [(end.step, end.entered) for end in ends]
        pace = CollectivePace("0", in_runs(range(len(self.at))), bends(course))
        steps = tuple((end.step, end.at_us) for end in ends[-8:])
        return RankTimes(rank=rank, groups=(), paces=(pace,) if course else (), steps=steps)


def watched(training: Training, questions: int = 6) -> list[CollectivesShifted]:
    """What is told at questions ten seconds apart."""
    watch, found = ShiftWatch(), []
    watch.begin(3)
    for _ in range(questions):
        training.run(10.0)
        found.append(watch.observe(training.sample()))
    return [event for event in found if event is not None]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("by", "per_step"), [(-1, 1), (1, 1), (-1, 2)])
def test_of_two_ranks_the_one_that_did_something_unusual_is_named_with_the_step(
    seed: int, by: int, per_step: int
) -> None:
    training = Training(seed=seed, per_step=per_step)
    training.odd[seed % 2, 217] = by
    (event,) = watched(training)
    assert event.ranks == in_rows([seed % 2])
    assert (event.attempt, event.agreed, event.by, event.compared) == (3, 216, by, 2)
    assert event.step > 217 and 0.0 < event.ago_s < 40.0


def test_of_several_the_majority_is_right_also_where_the_first_steps_are_forgotten() -> None:
    training = Training(4)
    training.kept = 20
    training.odd[2, 217] = -1
    (event,) = watched(training)
    assert event.ranks == in_rows([2]) and event.by == -1


def test_of_two_ranks_whose_first_steps_are_forgotten_nobody_is_named() -> None:
    training = Training(2)
    training.kept = 20
    training.odd[1, 217] = -1
    (event,) = watched(training)
    assert event.ranks == () and event.by == -1 and event.agreed < 217


def test_one_answer_is_not_enough_and_asks_for_another_soon() -> None:
    training, watch = Training(), ShiftWatch()
    training.odd[1, 30] = -1
    training.run(10.0)
    assert watch.observe(training.sample()) is None and watch.suspects
    assert watch.observe(training.sample()) is None, "nothing new"
    training.run(1.0)
    assert watch.observe(training.sample()) is not None
    training.run(1.0)
    assert watch.observe(training.sample()) is None, "told already"


class Roles(Training):
    """Rank 1 does two steps of its own for each of rank 0."""

    def usual(self, rank: int, step: int) -> int:
        return 1 if rank == 0 else step % 2


class Seldom(Training):
    """Parameters are averaged now and then, after as many steps as a rank has done by then."""

    def usual(self, rank: int, step: int) -> int:
        return int(step % (300 if step < 900 else 300 + rank) == 0)


class Changed(Training):
    """From some step on rank 1 counts its steps otherwise."""

    def usual(self, rank: int, step: int) -> int:
        return 1 if rank == 0 or step < 200 else step % 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [Training, Roles, Seldom, Changed])
def test_where_nothing_was_left_out_nothing_is_told(kind: type[Training], seed: int) -> None:
    assert watched(kind(2 + seed % 3, seed)) == []


def test_a_group_whose_ranks_differ_while_their_steps_end_together_is_that_of_a_thread() -> None:
    """One that is filled by a thread ahead of training, more on one rank than on the other."""
    training, watch, found = Training(), ShiftWatch(), []
    for _ in range(6):
        training.run(10.0)
        sample = training.sample()
        found.append(watch.observe(sample._replace(ranks=filled(sample.ranks))))
    assert found == [None] * 6


def filled(ranks: Sequence[RankTimes]) -> list[RankTimes]:
    paces = {}
    for times in ranks:
        last = times.paces[0].points[-1][0]
        course = [(n, n + (times.rank if n > 300 else 0)) for n in range(1, last + 1)]
        paces[times.rank] = CollectivePace("9", ((0, 2, 1),), bends(course))
    return [RankTimes(rank=t.rank, groups=(), paces=(paces[t.rank],), steps=t.steps) for t in ranks]


def test_clocks_that_may_be_wrong_by_more_than_a_step_tell_nothing() -> None:
    training = Training()
    training.doubt_us = STEP_S * 1e6
    training.odd[1, 217] = -1
    assert watched(training) == []


def test_another_attempt_is_looked_at_anew() -> None:
    training, watch = Training(), ShiftWatch()
    training.odd[1, 217] = -1
    for seconds in (10.0, 10.0, 1.0):
        training.run(seconds)
        watch.observe(training.sample())
    watch.begin(2)
    assert not watch.suspects
    training.kept = 20  # of the steps since: they never agreed
    for _ in range(3):
        training.run(10.0)
        assert watch.observe(training.sample()) is None


def test_what_is_left_out_of_a_course_lies_between_its_bends() -> None:
    dice = random.Random(1)
    for _ in range(50):
        course, entered = [], 0
        for step in range(1, 40):
            entered += dice.choice((1, 1, 1, 2))
            course.append((step, entered))
        told = bends(course)
        assert between(told) == dict(course)
    assert bends([(n, 3 * n) for n in range(1, 500)]) == ((1, 3), (499, 1497))


def between(points: tuple[tuple[int, int], ...]) -> Mapping[int, int]:
    found = dict(points[:1])
    for (start, begun), (end, done) in itertools.pairwise(points):
        for step in range(start, end + 1):
            found[step] = begun + (done - begun) * (step - start) // (end - start)
    return found
