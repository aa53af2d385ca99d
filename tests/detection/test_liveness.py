"""A node that is not heard for the timeout is named; others never are."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.detection import Liveness


def test_a_silent_node_is_named_with_its_silence_and_a_heard_one_is_not() -> None:
    liveness = Liveness()
    liveness.heard("a", 10.0)
    liveness.heard("b", 11.0)
    liveness.heard("a", 14.0)
    assert liveness.silent(15.9, 5.0) == []
    assert liveness.silent(16.0, 5.0) == [("b", 5.0)]
    assert liveness.silent(20.0, 5.0) == [("b", 9.0), ("a", 6.0)]


def test_signs_of_life_may_be_passed_on_in_any_order() -> None:
    liveness = Liveness()
    liveness.heard("a", 12.0)
    liveness.heard("b", 10.0)
    assert liveness.silent(15.0, 5.0) == [("b", 5.0)]
    assert liveness.next_deadline(5.0) == 15.0


def test_a_forgotten_node_is_not_watched() -> None:
    liveness = Liveness()
    liveness.heard("a", 0.0)
    liveness.forget("a")
    liveness.forget("never heard of")
    assert liveness.silent(99.0, 5.0) == []
    assert liveness.next_deadline(5.0) is None


def test_silence_while_nobody_listened_is_not_counted_and_nobody_is_heard_in_the_future() -> None:
    liveness = Liveness()
    liveness.heard("a", 0.0)
    liveness.heard("b", 1.0)
    liveness.heard("c", 59.0)
    liveness.forget("b")
    liveness.forgive(60.0, 57.0)
    assert liveness.silent(61.9, 5.0) == []
    assert liveness.silent(62.0, 5.0) == [("a", 5.0)]
    assert liveness.silent(65.0, 5.0) == [("a", 8.0), ("c", 5.0)]


def test_the_next_deadline_is_that_of_the_node_heard_longest_ago() -> None:
    liveness = Liveness()
    liveness.heard("a", 1.0)
    liveness.heard("b", 2.0)
    assert liveness.next_deadline(5.0) == 6.0
    liveness.heard("a", 3.0)
    assert liveness.next_deadline(5.0) == 7.0


SIGNS = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 9), st.booleans()))


@given(SIGNS, st.integers(1, 20))
def test_exactly_the_silent_are_named(signs: list[tuple[str, int, bool]], timeout: int) -> None:
    liveness, known, now = Liveness(), dict[str, int](), 0
    for node, gap, forget in signs:
        now += gap
        if forget:
            liveness.forget(node)
            known.pop(node, None)
        else:
            liveness.heard(node, now)
            known[node] = now
    expected = {(n, now - at) for n, at in known.items() if now - at >= timeout}
    assert set(liveness.silent(now, timeout)) == expected
    deadline = liveness.next_deadline(timeout)
    assert deadline == (min(known.values()) + timeout if known else None)
    if deadline is not None:
        assert liveness.silent(deadline, timeout)
