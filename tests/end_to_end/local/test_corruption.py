"""A bit that flips in one rank's parameters is found, told, gone back on, and in no result."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.end_to_end.local.jobs import RunningJob, small
from tests.end_to_end.local.test_numerics import parameters
from tests.more import sample

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

STEPS = 16
FLIP_STEP = 5  # the script counts from 0: it is completed step 6
EVERY = 4
ARGS = ["--steps", str(STEPS), "--bad-step", str(FLIP_STEP)]
CHECKED = {"check_replicas_every": EVERY}


def trained(home: Path, ranks: int, name: str, *more: str) -> RunningJob:
    spec: dict[str, Any] = {"workers_per_node": ranks, "snapshots": {"every_steps": EVERY}}
    args = [*ARGS, *more]
    return small(home, nodes=1, args=args, name=name, recovery=CHECKED, **spec).start()


@pytest.mark.parametrize("ranks", sample([3], [2]))
def test_a_flipped_bit_is_found_and_changes_no_bit_of_the_result(home: Path, ranks: int) -> None:
    calm = trained(home, ranks, "calm", "--pause", "0")
    calm.wait_end()
    assert calm.incidents() == []
    expected = parameters(calm)
    job = trained(home, ranks, "flip", "--bad", "flip")
    job.wait_end()
    found = parameters(job)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    (incident,) = job.incidents()
    assert incident.cause == "corruption" and incident.ended_at is not None
    assert incident.step is not None and FLIP_STEP < incident.step <= FLIP_STEP + EVERY
    if ranks == 3:
        assert incident.rank == 1
        assert "Parameters of rank 1 on node-0 differ from those of ranks 0, 2" in incident.summary
    else:
        assert incident.rank is None and "no majority: two ranks differ" in incident.summary


def test_a_flip_in_the_last_steps_is_no_success(home: Path) -> None:
    """Nothing is compared at a later step: the end is."""
    last = ["--bad", "flip", "--steps", "11", "--bad-step", "9", "--times", "99"]
    cap = {**CHECKED, "max_restarts": 1}
    job = small(home, args=last, name="flip", nodes=1, workers_per_node=2, recovery=cap).start()
    job.wait_end(5)
    assert {incident.cause for incident in job.incidents()} == {"corruption"}
