"""Two repetitions and the first time: which of them differ says what the step was."""

import pytest

from holdfast.diagnosis.repetition import (
    RepetitionVerdict,
    compared_elsewhere,
    failing,
    judge_repetition,
)

STATE = {0: {"model.w": "aa", "optimizer.m": "bb"}, 1: {"model.w": "aa"}}
TOLD = {11: "loss 0.5", 12: "loss 0.25"}


def test_repetitions_that_differ_blame_the_machine_whatever_was_told() -> None:
    other = {0: STATE[0], 1: {"model.w": "ab"}}
    found = judge_repetition(12, (STATE, other), (TOLD, TOLD))
    assert found.verdict is RepetitionVerdict.MACHINE
    assert found.differing == ("rank 1: model.w",)


def test_a_rank_or_a_leaf_that_only_one_repetition_has_is_a_difference() -> None:
    less = {0: {"model.w": "aa"}, 1: STATE[1]}
    found = judge_repetition(12, (STATE, less), (TOLD, TOLD))
    assert found.differing == ("rank 0: optimizer.m",)
    assert judge_repetition(12, (STATE, {0: STATE[0]}), ({}, {})).differing == ("rank 1: model.w",)


def test_what_does_not_come_again_was_transient_from_the_first_step_on_that_differs() -> None:
    first = {11: "loss 0.5", 12: "loss nan"}
    found = judge_repetition(12, (STATE, STATE), (first, TOLD))
    assert (found.verdict, found.step) == (RepetitionVerdict.TRANSIENT, 12)
    assert "loss nan, now loss 0.25" in found.summary


def test_what_comes_again_each_time_is_genuine() -> None:
    bad = {12: "loss nan"}
    assert judge_repetition(12, (STATE, STATE), (bad, bad)).verdict is RepetitionVerdict.GENUINE


def test_without_what_was_told_the_first_time_it_is_only_repeatable() -> None:
    for logs in ({}, {}), ({}, TOLD), (TOLD, {}), ({11: "loss 0.5"}, TOLD):
        found = judge_repetition(12, (STATE, STATE), logs)
        assert found.verdict is RepetitionVerdict.REPEATABLE


@pytest.mark.parametrize(
    ("logs", "word"),
    [
        ((TOLD, TOLD), "node-7 produces wrong results"),
        (({12: "loss 9"}, TOLD), "differs from the first run"),
    ],
)
def test_other_nodes_that_end_otherwise_are_told_and_what_was_told_first_decides(
    logs: tuple[dict[int, str], dict[int, str]], word: str
) -> None:
    here = judge_repetition(12, (STATE, STATE), logs)
    found = compared_elsewhere(here, "node-7", STATE, {**STATE, 1: {"model.w": "ab"}})
    assert (found.verdict, found.differing) == (RepetitionVerdict.ELSEWHERE, ("rank 1: model.w",))
    assert word in found.summary
    alike = compared_elsewhere(here, "node-7", STATE, STATE)
    assert alike.verdict is here.verdict and "on node-7 as well" in alike.summary


def test_nodes_in_place_that_differ_from_themselves_are_blamed_whatever_others_do() -> None:
    here = judge_repetition(12, (STATE, {0: STATE[0]}), (TOLD, TOLD))
    assert compared_elsewhere(here, "node-7", STATE, STATE) == here


def test_most_groups_of_a_size_that_end_alike_are_right() -> None:
    good, bad, worse = {0: {"w": "a"}}, {0: {"w": "b"}}, {0: {"w": "c"}}
    one, two, three, four, alone = ("a", "b"), ("c", "d"), ("e", "f"), ("g", "h"), ("i",)
    found = failing({one: [good], two: [good], three: [bad], four: [None], alone: [worse, worse]})
    assert found == {one: False, two: False, three: True, four: True, alone: False}
    assert all(failing({one: [good], two: [bad]}).values()), "nothing tells which is right"
    assert all(failing({one: [good], two: [good], three: [bad], four: [bad]}).values())
    assert failing({alone: [good, bad]}) == {alone: True}
