"""What is shipped as a default is what won in the model, and the model says so each time."""

from typing import Any

import pytest

import policies


@pytest.mark.parametrize("mean_s", [10.0, 1800.0])
def test_an_elastic_job_that_has_learned_loses_little_to_whoever_knows(mean_s: float) -> None:
    lost = {way: policies.lost_s(way, mean_s, 500) for way in policies.WAYS}
    best = min(lost["wait"], lost["shrink"])
    assert lost["oracle"] <= lost["default"] <= 1.05 * best
    assert lost["default"] <= lost["break-even"] + 1.0


def test_the_same_machines_are_worth_more_in_one_pool() -> None:
    own, shared = (policies.PoolJob(job, 10.0) for job in range(5)), policies.PoolJob(0, 55.0)
    found: list[Any] = [
        policies.ettr(jobs, spares, 86_400.0, 200.0)
        for jobs, spares in ((list(own), 1), ([shared] * 5, 5), ([shared] * 5, 0))
    ]
    assert found[1] > found[0] > found[2]
