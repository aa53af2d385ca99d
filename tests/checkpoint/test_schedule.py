"""When durable tiers are due: fixed, by cost and rate, after failures, over restarts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.schedule import BOUNDS, FIRST_S, CheckpointSchedule, interval_s
from holdfast.checkpoint.settings import CheckpointSettings, TierRule, settings_in
from holdfast.checkpoint.storage_page import SaveStatus
from holdfast.checkpoint.tiers import Tier

NOTHING = dict.fromkeys(Tier, SaveStatus())
ALL = CheckpointSettings(local=TierRule(), shared=TierRule(), archive=TierRule())


def test_a_fixed_time_is_kept_and_the_first_comes_early() -> None:
    schedule = CheckpointSchedule(CheckpointSettings(shared=TierRule(every_s=600)), NOTHING, 0.0, 0)
    assert schedule.due(FIRST_S - 1, 9, NOTHING, 0.0) == set()
    assert schedule.due(FIRST_S, 10, NOTHING, 0.0) == {Tier.SHARED}
    schedule.asked([Tier.SHARED], FIRST_S, 10)
    assert schedule.due(FIRST_S + 599, 99, NOTHING, 0.0) == set()
    assert schedule.due(FIRST_S + 600, 99, NOTHING, 0.0) == {Tier.SHARED}


def test_a_job_that_restarts_often_saves_all_the_same() -> None:
    """The clock of a tier runs on over attempts, or restarts each five minutes would starve it."""
    saved = {**NOTHING, Tier.SHARED: SaveStatus(40, 100.0, 2.0, 0)}
    schedule = CheckpointSchedule(
        CheckpointSettings(shared=TierRule(every_s=600)), saved, 650.0, 45
    )
    assert schedule.due(651.0, 46, saved, 0.0) == set()
    assert schedule.due(700.0, 46, saved, 0.0) == {Tier.SHARED}


def test_milestones_come_at_their_steps() -> None:
    schedule = CheckpointSchedule(
        CheckpointSettings(archive=TierRule(every_s=1e9, every_steps=100)), NOTHING, 0.0, 250
    )
    assert schedule.due(1.0, 299, NOTHING, 0.0) == set()
    assert schedule.due(1.0, 301, NOTHING, 0.0) == {Tier.ARCHIVE}, "also when 300 was no snapshot"
    schedule.asked([Tier.ARCHIVE], 1.0, 301)
    assert schedule.due(2.0, 399, NOTHING, 0.0) == set()


def test_a_failed_save_is_tried_again_soon_and_then_ever_later() -> None:
    schedule = CheckpointSchedule(
        CheckpointSettings(shared=TierRule(every_s=3600)), NOTHING, 0.0, 0
    )
    schedule.asked([Tier.SHARED], 100.0, 5)
    waits = []
    for failures in (1, 2, 3, 50):
        failed = {**NOTHING, Tier.SHARED: SaveStatus(failures=failures)}
        wait = next(s for s in range(4000) if schedule.due(100.0 + s, 6, failed, 0.0))
        waits.append(wait)
    assert waits == [10, 20, 40, 640]


@pytest.mark.parametrize(
    ("tier", "save_s", "mttf_s", "expected"),
    [
        (Tier.LOCAL, 20.0, 3_600.0, 92.3),  # sqrt(2 * 0.4 * 3 h) less what Daly takes off
        (Tier.LOCAL, 0.1, 3_600.0, 60.0),
        (Tier.SHARED, 60.0, 86_400.0, 1_439.0),
        (Tier.ARCHIVE, 600.0, None, 14_398.0),
    ],
)
def test_auto_follows_daly_within_bounds(
    tier: Tier, save_s: float, mttf_s: float | None, expected: float
) -> None:
    assert interval_s(tier, save_s, 0.0, mttf_s) == pytest.approx(expected, rel=0.01)


@given(st.sampled_from(Tier), st.floats(0, 1e5), st.floats(0, 100), st.none() | st.floats(1, 1e9))
def test_an_interval_is_always_longer_than_two_saves(
    tier: Tier, save_s: float, stall_s: float, mttf_s: float | None
) -> None:
    found = interval_s(tier, save_s, stall_s, mttf_s)
    assert found >= max(BOUNDS[tier].least_s, 2 * save_s)
    assert found <= max(BOUNDS[tier].most_s, 2 * save_s)


def test_a_tier_without_a_rule_is_never_due() -> None:
    assert (
        CheckpointSchedule(CheckpointSettings(), NOTHING, 0.0, 0).due(1e9, 10**9, NOTHING, 0.0)
        == set()
    )
    assert settings_in({}).tiers == ()
    assert ALL.tiers == tuple(Tier)
