"""Steps whose length changes end when counting them one by one says."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from holdfast.simulation.tempo import Tempo

CHANGES = st.lists(
    st.tuples(st.floats(0.5, 40), st.sampled_from(["pace", "pause"]), st.floats(0.5, 8)), max_size=6
)


@given(CHANGES)
def test_a_step_ends_after_it_was_begun_at_the_pace_that_held_then(
    changes: list[tuple[float, str, float]],
) -> None:
    """Ends are counted in order, and nobody is ever ahead of them."""
    tempo, now = Tempo(3, 10.0, 2.0), 10.0
    before = 3
    for wait_s, what, value in changes:
        now += wait_s
        done = tempo.step_at(now)
        ends = [tempo.end_of(step) for step in range(3, done + 1)]
        tempo.change(now, value) if what == "pace" else tempo.pause(now, value)
        assert tempo.step_at(now) == done >= before, "what is done stays done"
        assert ends == [tempo.end_of(step) for step in range(3, done + 1)]
        assert tempo.end_of(done) <= now + 1e-4 and tempo.end_of(done + 1) >= now - 1e-4
        before = done
    ends = [tempo.end_of(step) for step in range(3, before + 20)]
    assert ends == sorted(ends)
    took = sum(b - a - 2.0 for a, b in itertools.pairwise(ends))
    assert abs(tempo.longer_s(0, before + 19, 2.0) - took) < 1e-6
    assert tempo.longest_s >= max(b - a for a, b in itertools.pairwise(ends)) - 1e-6


def test_another_pace_begins_with_the_next_step_and_a_pause_at_once() -> None:
    tempo = Tempo(0, 0.0, 10.0)
    tempo.change(25.0, 20.0)
    assert [tempo.end_of(n) for n in (2, 3, 4, 5)] == [20.0, 30.0, 50.0, 70.0]
    tempo.pause(55.0, 100.0)
    assert [tempo.end_of(n) for n in (4, 5, 6)] == [50.0, 170.0, 190.0]
    assert (tempo.step_at(160.0), tempo.step_at(171.0)) == (4, 5)
    assert (tempo.longest_s, tempo.slowest_s) == (120.0, 20.0)
    tempo.change(60.0, 10.0)
    assert [tempo.end_of(n) for n in (5, 6)] == [170.0, 180.0]
