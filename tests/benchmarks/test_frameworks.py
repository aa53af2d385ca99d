"""The benchmark of trainers has each of them by itself, unmodified and kept."""

from pathlib import Path

import pytest

import frameworks
from holdfast.spec.load import job_from_yaml


@pytest.mark.parametrize("trainer", frameworks.TRAINERS)
def test_a_trainer_runs_the_same_script_in_all_three_ways(trainer: str) -> None:
    found = frameworks.contestants()
    alone = Path(found[f"{trainer} alone"].command[-1])
    assert alone.is_file()
    for way, integrate in (("unmodified", "off"), ("kept", "auto")):
        job = job_from_yaml(Path(found[f"{trainer} {way}"].command[-1]))
        assert job.script is not None and Path(job.script).samefile(alone)
        assert (job.integrate, job.workers_per_node) == (integrate, 2)


def test_one_that_is_not_installed_is_left_out_unless_it_is_asked_for() -> None:
    takes_part = frameworks._takes_part
    assert takes_part("lightning kept", None, ["deepspeed"])
    assert not takes_part("deepspeed kept", None, ["deepspeed"])
    assert takes_part("deepspeed kept", ["deepspeed kept"], ["deepspeed"])
