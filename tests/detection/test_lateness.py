"""How much later than others ranks enter their collectives, second by second."""

import numpy as np
import pytest
from msgspec.structs import replace

from holdfast.collectives import Collective, RankTimes
from holdfast.detection.lateness import delays
from holdfast.detection.samples import Sample
from tests.detection.test_straggler import DATA, PAIR, Layout, Training


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
    (course,) = delays(training.sample(), ()).values()
    assert course.ranks == (0, 1)
    assert course.waits.sum() == pytest.approx(59, abs=1)
    share = course.late_s.sum(axis=0) / course.spans_s.sum()
    assert share[1] == pytest.approx(0.01 / 0.06, rel=0.15) and share[0] < 0


def test_a_group_of_which_only_a_minority_answers_says_nothing() -> None:
    training = Training(DATA, seed=7)
    training.run(10.0)
    sample = training.sample()
    few = sample._replace(ranks=[times for times in sample.ranks if times.rank in (0, 3)])
    assert delays(few, ()) == {}


def test_of_who_does_not_answer_nothing_is_known_and_the_others_are_compared() -> None:
    training = Training(DATA, seed=7)
    training.run(10.0)
    sample = training.sample()
    most = sample._replace(ranks=[times for times in sample.ranks if times.rank != 2])
    (course,) = delays(most, ()).values()
    assert course.ranks == (0, 1, 2, 3)
    assert np.isnan(course.late_s[:, 2]).all() and not np.isnan(course.late_s[:, [0, 1, 3]]).any()


def test_in_whichever_order_nodes_answer_each_rank_keeps_its_own_delays() -> None:
    training = Training(DATA, seed=10)
    training.slow[1] = 1.5
    training.run(10.0)
    sample = training.sample()
    (first,) = delays(sample, ()).values()
    (second,) = delays(sample._replace(ranks=sample.ranks[::-1]), ()).values()
    assert first.ranks == second.ranks == (0, 1, 2, 3)
    assert first.late_s == pytest.approx(second.late_s)


def until(sample: Sample, at: float) -> Sample:
    """What would have been told then."""
    ranks = []
    for times in sample.ranks:
        until_us = at * 1e6 + sample.clocks[times.rank][0]
        (log,) = times.groups
        some = tuple(one for one in log.recent if one.entered_us <= until_us)
        ranks.append(replace(times, groups=(replace(log, recent=some),)))
    return sample._replace(at=at, ranks=ranks)


@pytest.mark.parametrize("asked", [(103.3, 107.1), (101.0, 102.5, 103.0, 105.9)])
def test_however_often_is_asked_the_seconds_are_the_same(asked: tuple[float, ...]) -> None:
    """A second that a question falls into is told in two parts."""
    training = Training(PAIR, seed=8)
    training.run(6.0)
    sample = training.sample()
    (whole,) = delays(sample, ()).values()
    known, last = None, list[RankTimes]()
    for now in (*(until(sample, at) for at in asked), sample):
        (course,) = delays(now, last).values()
        known, last = course if known is None else known.plus(course), [*now.ranks]
    assert known is not None
    assert known.numbers.tolist() == whole.numbers.tolist()
    assert known.waits.tolist() == whole.waits.tolist()
    assert known.late_s == pytest.approx(whole.late_s)
    assert known.spans_s == pytest.approx(whole.spans_s)


def test_two_groups_of_the_same_members_are_one() -> None:
    """A step waits once, in the group that it comes to first."""
    training = Training(Layout([[range(2)]], again=True), seed=9)
    training.slow[1] = 1.2
    training.run(5.0)
    (course,) = delays(training.sample(), ()).values()
    share = course.late_s.sum(axis=0) / course.spans_s.sum()
    assert share[1] == pytest.approx(0.2 / 1.25, abs=0.04)
