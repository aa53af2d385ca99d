"""What is kept is enough to go back to, and what belongs to another branch does not count."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.key import Key, newest_first
from holdfast.checkpoint.lineage import superseded, valid
from holdfast.checkpoint.manifest import Lineage, Origin
from holdfast.checkpoint.retention import LEAST, kept

KEYS = st.sets(st.builds(Key, st.integers(1, 4), st.integers(0, 10_000)), max_size=60)


@given(KEYS, st.integers(1, 6), st.data())
def test_the_newest_and_the_named_stay(keys: set[Key], newest: int, data: st.DataObject) -> None:
    named = data.draw(st.sets(st.sampled_from(sorted(keys)))) if keys else set()
    stay = kept(keys, newest=newest, firm=named)
    ordered = newest_first(keys)
    assert stay <= keys
    assert set(ordered[: max(newest, LEAST)]) <= stay
    assert named <= stay
    assert bool(stay) == bool(keys)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=300), st.integers(1, 5))
def test_a_long_history_stays_short_and_has_something_of_every_age(
    gaps: list[int], newest: int
) -> None:
    """Pruned after every save, as in a job: then gaps in the history grow with its age only."""
    held: frozenset[Key] = frozenset()
    step = 0
    for gap in gaps:
        step += gap
        held = kept({*held, Key(1, step)}, newest=newest)
    ages = sorted(step - key.step for key in held)
    assert len(held) <= max(newest, LEAST) + step.bit_length() + 1
    first = gaps[0]
    assert not ages or ages[-1] >= (step - first) / 4 - max(gaps)
    reach = [8 * max(age, max(gaps)) for age in ages]
    assert all(later <= most for later, most in zip(ages[1:], reach, strict=False))


def lineage(attempt: int, parent: tuple[int, int] | None) -> Lineage:
    return Lineage(attempt=attempt, parent=None if parent is None else Origin(*parent))


def test_what_a_later_attempt_left_behind_is_void() -> None:
    attempts = [lineage(1, None), lineage(2, (1, 480)), lineage(3, (2, 470))]
    assert valid(Key(1, 470), attempts)
    assert not valid(Key(1, 480), attempts)  # attempt 3 went on from before it
    assert not valid(Key(2, 490), attempts)
    assert valid(Key(3, 500), attempts)
    assert not valid(Key(1, 0), [*attempts, lineage(4, None)])  # began from nothing
    assert valid(Key(4, 0), [*attempts, lineage(4, None)])


@given(KEYS, st.lists(st.tuples(st.integers(2, 6), st.integers(-1, 10_000)), max_size=6))
def test_a_checkpoint_is_valid_as_long_as_nobody_went_on_from_before_it(
    keys: set[Key], begun: list[tuple[int, int]]
) -> None:
    attempts = [lineage(a, None if step < 0 else (a - 1, step)) for a, step in begun]
    for key in keys:
        undone = [step for attempt, step in begun if attempt > key.attempt and step < key.step]
        assert valid(key, attempts) == (not undone)


def test_only_the_newest_attempt_may_write() -> None:
    assert superseded(3, [1, 2, 3]) is None
    assert superseded(2, [1, 2, 3, 5]) == 5
    assert superseded(1, []) is None
