"""Whoever computes other bits than most is named; where there is no majority, nobody is."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnosis.compared_results import LEAST, outvoted

WHAT = "matmul: NVIDIA H100"


def of(results: str) -> dict[str, dict[str, str]]:
    return {f"n{number}": {WHAT: result} for number, result in enumerate(results)}


def test_one_of_three_is_named_with_what_and_how_many() -> None:
    found = outvoted(of("aba"))
    assert found == {"n1": f"{WHAT}: its result differs from that of 2 of 3 nodes"}


def test_of_two_nobody_is_right_nor_where_half_are_against_half() -> None:
    for results in ("", "a", "ab", "aabb", "abc"):
        assert outvoted(of(results)) == {}


def test_kinds_of_devices_and_checks_are_compared_with_their_like_only() -> None:
    computed = of("aaa")
    computed["n2"] = {"matmul: NVIDIA B200": "b", "model step: NVIDIA H100": "a"}
    assert outvoted(computed) == {}


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_who_agrees_with_the_majority_is_never_named_and_who_does_not_always_is(
    results: list[str],
) -> None:
    named = outvoted(of("".join(results)))
    usual, count = Counter(results).most_common(1)[0] if results else ("", 0)
    wrong = {f"n{n}" for n, result in enumerate(results) if result != usual}
    decides = len(results) >= LEAST and 2 * count > len(results)
    assert named.keys() == (wrong if decides else set())
