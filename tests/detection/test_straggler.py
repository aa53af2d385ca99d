"""Who makes all others wait, by the times at which ranks enter their collectives."""

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest

from holdfast.collectives import Collective, GroupLog, RankTimes
from holdfast.detection.straggler import (
    Doing,
    Sample,
    StragglerWatch,
    delays,
    explain,
)
from holdfast.events import StragglersFound, in_rows
from holdfast.slow_ranks import SlowBy
from tests.more import MORE

STEP_S = 0.05
KEPT = 128
EVERY_S = 10.0
SEEDS = range(200 if MORE else 12)


class Layout(NamedTuple):
    """The groups of a training, in the order in which each step waits in them."""

    groups: Sequence[Sequence[Sequence[int]]]  # one stage of a step: the groups that meet in it
    again: bool = False  # each meets a second time, as another group: to agree on a snapshot, say


DATA = Layout([[range(4)]])
PAIR = Layout([[range(2)]])
PAIR_TWICE = Layout([[range(2)]], again=True)
TENSOR_AND_DATA = Layout([[(0, 1), (2, 3)], [(0, 2), (1, 3)]])
LAYOUTS = [PAIR, PAIR_TWICE, DATA, TENSOR_AND_DATA]


class Training:
    """Ranks that compute, wait for the others of their groups, and go on; by a clock each."""

    def __init__(
        self, layout: Layout, seed: int, noise: float = 0.2, step_s: float = STEP_S
    ) -> None:
        self.dice = random.Random(seed)
        self.layout, self.noise, self.step_s = layout, noise, step_s
        count = 1 + max(rank for stage in layout.groups for group in stage for rank in group)
        self.at = [100.0] * count
        self.slow = dict.fromkeys(range(count), 1.0)
        self.ahead_us = {rank: self.dice.uniform(-1e9, 1e9) for rank in range(count)}
        self.logs: dict[tuple[int, Sequence[int], str], list[Collective]] = {}
        self.doubt_us = 200.0

    def run(self, seconds: float) -> None:
        end = self.at[0] + seconds
        while self.at[0] < end:
            for stage in self.layout.groups:
                self._work(len(self.layout.groups))
                for group in stage:
                    self._meet(group)
                    if self.layout.again:
                        self._meet(group, "again")

    def _work(self, parts: int) -> None:
        for rank in self.slow:
            chance = self.dice.uniform(1 - self.noise, 1 + self.noise)
            self.at[rank] += self.step_s / parts * chance * self.slow[rank]

    def _meet(self, group: Sequence[int], name: str = "") -> None:
        for rank in group:
            log = self.logs.setdefault((rank, tuple(group), name), [])
            number = log[-1].sequence + 1 if log else 1
            log.append(Collective(number, int(self.at[rank] * 1e6 + self.ahead_us[rank])))
            del log[:-KEPT]
        over = max(self.at[rank] for rank in group) + 0.001
        for rank in group:
            self.at[rank] = over

    def sample(self, doing: Mapping[int, Doing] | None = None) -> Sample:
        ranks = []
        for rank in self.slow:
            groups = tuple(
                GroupLog(name=f"{group} {name}", members=in_rows(group), recent=tuple(log))
                for (r, group, name), log in self.logs.items()
                if r == rank
            )
            ranks.append(RankTimes(rank=rank, groups=groups))
        error = self.doubt_us
        clocks = {
            rank: (ahead + self.dice.uniform(-error, error), error)
            for rank, ahead in self.ahead_us.items()
        }
        known = doing if doing is not None else {rank: Doing() for rank in self.slow}
        return Sample(max(self.at), ranks, clocks, known)


def watched(training: Training, samples: int) -> tuple[StragglerWatch, list[StragglersFound]]:
    watch = StragglerWatch()
    watch.begin(1)
    found = []
    for _ in range(samples):
        training.run(EVERY_S)
        found.append(watch.observe(training.sample()))
    return watch, [event for event in found if event is not None]


def slow(event: StragglersFound) -> list[int]:
    return [straggler.rank for straggler in event.stragglers]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["2", "2 again", "4", "2 x 2"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_of_1_2_times_the_time_is_found_within_three_samples_and_no_other(
    layout: Layout, seed: int
) -> None:
    training = Training(layout, seed)
    victim = training.dice.choice(sorted(training.slow))
    training.slow[victim] = 1.2
    _, (event,) = watched(training, 3)
    assert slow(event) == [victim]
    assert 0.08 < event.stragglers[0].share < 0.25


@pytest.mark.parametrize("layout", LAYOUTS, ids=["2", "2 again", "4", "2 x 2"])
@pytest.mark.parametrize("seed", SEEDS)
def test_of_noisy_ranks_none_is_slow(layout: Layout, seed: int) -> None:
    _, found = watched(Training(layout, seed, noise=0.6), 12)
    assert found == []


def test_where_steps_take_many_seconds_more_of_them_are_judged_together() -> None:
    training = Training(PAIR, seed=8, step_s=7.0)
    training.slow[0] = 1.3
    _, (event,) = watched(training, 60)
    assert slow(event) == [0]


def test_one_that_is_well_again_is_told_once() -> None:
    training = Training(DATA, seed=1)
    training.slow[2] = 1.5
    watch, (event,) = watched(training, 3)
    assert slow(event) == [2]
    training.slow[2] = 1.0
    told = []
    for _ in range(4):
        training.run(EVERY_S)
        told.append(watch.observe(training.sample()))
    assert [slow(event) for event in told if event is not None] == [[]]


def more(training: Training, watch: StragglerWatch, samples: int) -> list[list[int]]:
    """Who is told of as slow in that time, each time that it changes."""
    found = []
    for _ in range(samples):
        training.run(EVERY_S)
        found.append(watch.observe(training.sample()))
    return [slow(event) for event in found if event is not None]


@pytest.mark.parametrize("skips", [True, False])
def test_what_happens_in_a_time_that_is_skipped_makes_nobody_slow(skips: bool) -> None:
    training = Training(PAIR, seed=1)
    watch, told = watched(training, 6)
    training.slow[0] = 2.0
    training.run(EVERY_S)
    if skips:
        watch.skip()
    else:
        told += [event for event in [watch.observe(training.sample())] if event is not None]
    training.slow[0] = 1.0
    assert bool(told or more(training, watch, 3)) != skips


def test_who_was_slow_before_a_time_that_is_skipped_is_told_of_once_and_cleared() -> None:
    training = Training(DATA, seed=2)
    training.slow[3] = 1.5
    watch, (event,) = watched(training, 6)
    watch.skip()
    assert slow(event) == [3] and more(training, watch, 4) == []
    training.slow[3] = 1.0
    watch.skip()
    assert more(training, watch, 8) == [[]]


def test_a_whole_slow_node_is_named_rank_by_rank() -> None:
    training = Training(Layout([[range(8)]]), seed=3)
    training.slow |= {6: 1.4, 7: 1.4}
    _, found = watched(training, 4)
    assert slow(found[-1]) == [6, 7]


def test_clocks_that_cannot_be_compared_well_enough_blame_nobody() -> None:
    training = Training(PAIR, seed=4)
    training.slow[1], training.doubt_us = 1.2, 20_000.0
    _, found = watched(training, 4)
    assert found == []


def test_an_event_now_and_then_is_no_straggler() -> None:
    """Rank 0 saves a file every fifty steps."""
    training = Training(DATA, seed=5)
    watch = StragglerWatch()
    watch.begin(1)
    for _ in range(8):
        for _ in range(4):
            training.run(EVERY_S / 4)
            training.at[0] += 1.0
        assert watch.observe(training.sample()) is None


def test_a_delay_counts_where_somebody_waits_for_it() -> None:
    """Gradient buckets are entered one after the other without waiting: the last one is paid."""
    training = Training(Layout([[(0, 1)]]), seed=6, noise=0.0)
    training.slow[1] = 1.2
    for _ in range(60):
        training._work(1)
        for rank in (0, 1):
            log = training.logs.setdefault((rank, (0, 1), ""), [])
            for ago_s in (0.006, 0.003, 0.0):  # by one clock each: lateness adds up in between
                at = training.at[rank] - ago_s
                log.append(Collective(len(log) + 1, int(at * 1e6 + training.ahead_us[rank])))
        training.at = [max(training.at)] * 2
    (found,) = delays(training.sample(), {})[1].values()
    assert found.waits == pytest.approx(59, abs=1)
    assert found.share == pytest.approx(0.01 / 0.06, rel=0.15)


def test_a_group_of_which_only_a_minority_answers_says_nothing() -> None:
    training = Training(DATA, seed=7)
    training.slow[3] = 2.0
    training.run(EVERY_S)
    sample = training.sample()
    few = sample._replace(ranks=[times for times in sample.ranks if times.rank in (0, 3)])
    assert delays(few, {}) == {}


@pytest.mark.parametrize(
    ("own", "cause", "text"),
    [
        (Doing(input_s=2.0), SlowBy.INPUT, "waits longer for its input (100% of the delay)"),
        (Doing(starved_s=1.4), SlowBy.PROCESSOR, "waits for a processor"),
        (Doing(saves_s=1.9), SlowBy.SAVES, "copies its state"),
        (Doing(tokens=1200), SlowBy.WORK, "1.20 times the tokens"),
        (Doing(processor_s=2.0, tokens=1000), SlowBy.ITSELF, "computes longer"),
        (Doing(tokens=1000), SlowBy.ITSELF, "neither its input nor its processor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_slow_rank_does_is_compared_with_what_the_others_do(
    own: Doing, cause: SlowBy, text: str
) -> None:
    usual = Doing(tokens=1000) if own.tokens else Doing()
    found, told = explain(1, 2.0, {}, {0: usual, 1: own, 2: usual})
    assert found is cause and text in told
