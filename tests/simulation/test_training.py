"""The arithmetic of training is what counting step by step gives."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.simulation.plan import CopySchedule
from holdfast.simulation.training import Training

TIERS = st.builds(
    CopySchedule,
    steps=st.integers(1, 7),
    block_s=st.sampled_from([0.0, 0.5, 3.0, 40.0]),
    safe_s=st.sampled_from([0.0, 2.0, 25.0]),
)
TRAININGS = st.builds(
    Training,
    begin=st.sampled_from([0.0, 1000.0]),
    after=st.integers(0, 20),
    step_s=st.sampled_from([0.25, 1.0, 8.0]),
    first_s=st.sampled_from([0.0, 16.0]),
    often=TIERS,
    seldom=TIERS,
)


def counted(
    training: Training, at: float
) -> tuple[int, float, float, dict[CopySchedule, int | None]]:
    """Live through it: steps done, when the last ended, time on saves, newest saves that ended."""
    now, step, saves = training.begin + training.first_s, training.after, 0.0
    last, spent = now, 0.0
    while now + training.step_s <= at:
        now += training.step_s
        step, last, spent = step + 1, now, saves
        for tier in (training.often, training.seldom):
            if step % tier.steps == 0:
                now, saves = now + tier.block_s, saves + tier.block_s
    return step, last, spent, {}


@given(TRAININGS, st.floats(0, 500).map(lambda x: round(x * 4) / 4 + 0.125))
def test_steps_and_saves_by_any_time_are_those_of_a_count(training: Training, after: float) -> None:
    at = training.begin + after
    step, last, spent, _ = counted(training, at)
    reached = training.reached(at)
    assert reached.step == step
    if step > training.after:
        assert reached.step_ago_s == at - last
        assert reached.save_s == spent


@given(TRAININGS, st.floats(0, 500))
def test_the_newest_copy_is_of_a_step_that_was_done_long_enough_ago(
    training: Training, after: float
) -> None:
    at, tier = training.begin + after, training.often
    newest = training.newest(tier, tier.lag_s, at)
    if newest is not None:
        assert newest % tier.steps == 0
        assert training.after < newest
        assert training.end_of(newest - training.after) + tier.lag_s <= at
    following = (training.after if newest is None else newest) // tier.steps * tier.steps
    count = following + tier.steps - training.after
    assert training.end_of(count) + tier.lag_s > at
