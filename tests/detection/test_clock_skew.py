"""A clock that differs from the others' is told once, and only where that is certain."""

import pytest

from holdfast.detection.clock_skew import ClockOffset, skews

MS = 0.001


def told(
    ahead: dict[str, float], known: tuple[str, ...] = (), doubt_s: float = MS
) -> dict[str, str]:
    return skews({node: ClockOffset(s, doubt_s) for node, s in ahead.items()}, known)


@pytest.mark.parametrize(
    ("ahead", "wrong"),
    [
        ({"a": 0.0, "b": 0.0, "c": 5.0}, {"c"}),
        ({"a": -2.0, "b": 0.0, "c": 0.1}, {"a"}),
        ({"a": 0.0, "b": 1.1}, {"b"}),
        ({"a": 0.0, "b": 0.9}, set()),
        ({"a": 300.0, "b": 300.1, "c": 300.0}, set()),  # ours is the wrong one
        ({"a": 300.0, "b": 300.1, "c": 305.0}, {"c"}),
        ({"a": -60.0, "b": 0.0, "c": 60.0}, {"a", "c"}),
        ({"a": 90.0}, set()),  # of a single node nobody knows which is wrong
        ({}, set()),
    ],
)
def test_the_one_that_differs_from_the_most_is_told(
    ahead: dict[str, float], wrong: set[str]
) -> None:
    assert told(ahead).keys() == wrong


def test_it_says_by_how_much_and_how_certain_that_is() -> None:
    assert told({"a": 0.0, "b": -7.25, "c": 0.0}) == {
        "b": "its clock is 7.2 s (give or take 0.001 s) behind those of the others"
    }


def test_what_the_journey_of_the_answers_may_hide_is_not_told() -> None:
    assert told({"a": 0.0, "b": 3.0}, doubt_s=2.0) == {}
    assert told({"a": 0.0, "b": 3.0}, doubt_s=0.5).keys() == {"b"}


def test_it_is_told_once_and_taken_back_when_it_is_certainly_gone() -> None:
    assert told({"a": 0.0, "b": 3.0, "c": 0.0}, ("b",)) == {}
    assert told({"a": 0.0, "b": 0.8, "c": 0.0}, ("b",), doubt_s=0.3) == {}, "it may be 1.1 s"
    assert told({"a": 0.0, "b": 0.8, "c": 0.0}, ("b",)) == {"b": ""}
