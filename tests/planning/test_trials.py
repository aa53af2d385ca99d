"""Which values the trials of a sweep try, and which one did best."""

from typing import Any

import pytest

from holdfast.errors import Error
from holdfast.planning.trials import NUMBER, ranked, trials_of
from holdfast.spec import Job
from holdfast.status import TrialStatus
from tests.end_to_end.local.jobs import guide

RANGES = {"lr": {"low": 1e-4, "high": 1e-1, "log": True}, "drop": {"low": 0, "high": 0.5}}


def job(name: str = "find", **sweep: Any) -> Job:
    given = {"name": name, "script": "train.py", "args": ("--steps", "5"), "env": {"A": "1"}}
    return Job.model_validate({**given, "sweep": sweep})


def values(**sweep: Any) -> list[dict[str, str]]:
    return [one.values for one in trials_of(job(**sweep))]


def test_every_combination_is_tried_in_order() -> None:
    found = values(over={"lr": [0.1, 1e-5], "act": ["relu", "gelu"]})
    assert found == [
        {"lr": "0.1", "act": "relu"},
        {"lr": "0.1", "act": "gelu"},
        {"lr": "1e-05", "act": "relu"},
        {"lr": "1e-05", "act": "gelu"},
    ]


def test_a_trial_is_a_job_with_its_values_as_options_and_its_number() -> None:
    trials = trials_of(job(over={"lr": [*range(12)]}))
    assert [one.job.name for one in trials[9:]] == ["find-09", "find-10", "find-11"]
    assert trials[10].job.args == ("--steps", "5", "--lr", "10")
    assert trials[10].job.env == {"A": "1", NUMBER: "10"}
    assert trials[10].job.sweep is None
    again = Job.model_validate_json(trials[10].job.model_dump_json())
    assert again == trials[10].job


def test_trials_without_values_only_get_their_number() -> None:
    assert [(one.values, one.job.env[NUMBER]) for one in trials_of(job(trials=2))] == [
        ({}, "0"),
        ({}, "1"),
    ]


def test_drawn_values_follow_from_the_seed_and_stay_when_trials_are_added() -> None:
    few, many = (values(trials=count, ranges=RANGES) for count in (20, 200))
    assert many[:20] == few
    assert values(trials=20, ranges=RANGES, seed=1) != few
    assert values(trials=20, ranges={"drop": RANGES["drop"]}) == [
        {"drop": one["drop"]} for one in few
    ]
    rates, shares = ([float(one[name]) for one in many] for name in ("lr", "drop"))
    assert all(1e-4 <= rate <= 1e-1 for rate in rates) and all(0 <= x <= 0.5 for x in shares)
    assert 70 < sum(rate < 10**-2.5 for rate in rates) < 130  # half, as the logarithm goes
    assert 70 < sum(share < 0.25 for share in shares) < 130


def test_fewer_trials_than_combinations_draw_from_the_lists() -> None:
    found = values(trials=50, over={"lr": ["a", "b", "c"], "w": [*range(40)]})
    assert {one["lr"] for one in found} == {"a", "b", "c"}
    assert len({one["w"] for one in found}) > 20


def test_a_name_that_leaves_no_room_for_the_number_is_refused() -> None:
    assert trials_of(job("n" * 48, trials=10))
    with pytest.raises(Error, match="names of the trials") as refused:
        trials_of(job("n" * 48, trials=11))
    assert refused.value.slug == "sweep-unusable" and "shorten the name by 1" in refused.value.help


@pytest.mark.parametrize(
    ("sweep", "why"),
    [
        ({}, "trials is required"),
        ({"ranges": RANGES}, "trials is required"),
        ({"over": {"lr": []}}, "at least 1 item"),
        ({"over": {"--lr": ["1"]}}, "pattern"),
        (
            {"over": {"lr": ["1"]}, "ranges": {"lr": RANGES["lr"]}, "trials": 2},
            "lr is in both over and",
        ),
        ({"trials": 2, "ranges": {"lr": {"low": 1, "high": 1}}}, "low must be below high"),
        ({"trials": 2, "ranges": {"lr": {"low": 0, "high": 1, "log": True}}}, "low above 0"),
        ({"trials": 2, "metric_pattern": "loss"}, "no group"),
        ({"over": {"a": [*range(1000)], "b": [*range(1000)]}}, "1000000 combinations"),
        ({"over": {"a": [1, 2]}, "parallel": 3}, "parallel is larger"),
    ],
)
def test_what_makes_no_sense_is_refused(sweep: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        job(**sweep)


def test_the_best_comes_first_and_those_without_a_result_last() -> None:
    trials = [
        TrialStatus(number=number, job=f"t-{number}", values={}, phase="", metric=metric)
        for number, metric in enumerate([0.5, None, 0.1, 0.5, None])
    ]
    assert [one.number for one in ranked(trials, "min")] == [2, 0, 3, 1, 4]
    assert [one.number for one in ranked(trials, "max")] == [0, 3, 2, 1, 4]


def test_the_guide_describes_six_trials() -> None:
    spec, commands = guide("sweeps")
    trials = trials_of(Job.model_validate(spec))
    assert [one.job.args[-4:] for one in trials][:2] == [
        ("--lr", "0.1", "--batch-size", "16"),
        ("--lr", "0.1", "--batch-size", "64"),
    ]
    assert len(trials) == 6 and commands[1][:2] == ["sweep", spec["name"]]
