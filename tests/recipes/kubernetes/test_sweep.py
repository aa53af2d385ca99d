"""A trial of the sweep is chosen by the index of its pod."""

import os
import subprocess
import sys

from holdfast.spec.load import job_as_written
from tests.tidy.source import ROOT

FOLDER = ROOT / "recipes" / "kubernetes"
SHOW = ["--", sys.executable, "-c", "import sys; print(*sys.argv[1:])", "--steps", "5"]


def trial(index: int, *options: str) -> "subprocess.CompletedProcess[str]":
    """The sweep script as the pod of this index runs it."""
    return subprocess.run(
        [sys.executable, str(FOLDER / "sweep.py"), *options, *SHOW],
        env={**os.environ, "JOB_COMPLETION_INDEX": str(index)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_index_is_another_combination_and_the_last_name_varies_fastest() -> None:
    over = ("--over", "lr=1e-3,3e-3", "--over", "width=128,256")
    told = [trial(index, *over).stdout.splitlines()[-1] for index in range(4)]
    assert told == [
        "--steps 5 --lr 1e-3 --width 128",
        "--steps 5 --lr 1e-3 --width 256",
        "--steps 5 --lr 3e-3 --width 128",
        "--steps 5 --lr 3e-3 --width 256",
    ]


def test_an_index_without_a_combination_fails_with_the_number_of_trials() -> None:
    run = trial(2, "--over", "lr=1,2")
    assert run.returncode != 0
    assert "there are 2 trials" in run.stderr


def test_values_that_cannot_be_read_are_refused() -> None:
    assert "NAME=VALUE" in trial(0, "--over", "lr").stderr


def test_the_recipe_has_as_many_trials_as_combinations() -> None:
    job = job_as_written(FOLDER / "sweep.yaml")
    counts = [len(word.split(",")) for word in job.args if "=" in word]
    assert job.sweep is not None
    assert counts[0] * counts[1] == job.sweep.trials
