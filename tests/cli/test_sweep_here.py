"""A sweep on this machine: trials are jobs, and the command may die or be stopped."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.cli import sweep_run
from holdfast.cli.program import Flags, job_from_file
from holdfast.drivers import records, sweeps
from holdfast.spec import Job
from tests.patience import MAY_BE_SILENT, until
from tests.warm import holdfast, start

TRIAL = """
import os, pathlib, sys, time
x, here = int(sys.argv[2]), pathlib.Path(os.environ["HERE"])
with (here / "begun").open("a") as file:
    file.write(f"{x} {os.environ['JOB_COMPLETION_INDEX']}\\n")
while not (here / "go").exists():
    time.sleep(0.02)
print("score 99")
print(f"score {x * x}", flush=True)
sys.exit(x == 2)
"""


def described(home: Path, **sweep: Any) -> Path:
    """A sweep whose trials wait for a file, print a score, and fail for 2."""
    here = home.parent
    (here / "trial.py").write_text(TRIAL)
    spec = {
        "name": "find",
        "command": ["python3", "trial.py"],
        "env": {"HERE": str(here)},
        "recovery": {**MAY_BE_SILENT, "max_restarts": 0},
        "sweep": {"over": {"x": [3, 2, 1]}, "metric_pattern": r"score (\d+)", **sweep},
    }
    file = here / "find.yaml"
    file.write_text(yaml.safe_dump(spec))
    return file


def begun(home: Path) -> list[str]:
    """What each start of a trial has written: its value and its number."""
    path = home.parent / "begun"
    return sorted(path.read_text().splitlines()) if path.exists() else []


def come(condition: Callable[[], bool]) -> None:
    assert until(condition)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_a_killed_sweep_goes_on_and_a_failed_trial_ends_no_other(home: Path) -> None:
    file = described(home, max_failed=1)
    job = job_from_file(file, Flags())
    with sweeps.locked(job.name):  # by a command that dies before it starts a controller
        trial = sweeps.opened(job, replace=False)[0].job
        os.close(records.create(trial, records.job_dir(trial.name), now=time.time()))
    first = start("run", str(file))
    come(lambda: begun(home) == ["3 0"])
    again = holdfast("run", str(file))
    assert again.returncode == 2 and "error[job-running]" in again.stderr
    first.send_signal(signal.SIGKILL)
    assert "find-0 continues" in first.communicate()[1]
    assert sweeps.phase_of("find-0") == sweeps.RUNNING  # nobody started the others
    shown = json.loads(holdfast("sweep", "find", "--json").stdout)
    assert shown["phase"] == "away" and shown["trials"][0]["metric"] is None
    (home.parent / "go").touch()
    ended = holdfast("run", str(file), "--json")
    assert ended.returncode == 1, ended.stderr
    assert begun(home) == ["1 2", "2 1", "3 0"]  # each once
    found = json.loads(ended.stdout)
    assert found["phase"] == "ended"
    assert [(one["values"]["x"], one["metric"], one["phase"]) for one in found["trials"]] == [
        ("1", 1.0, "succeeded"),
        ("2", 4.0, "failed"),
        ("3", 9.0, "succeeded"),
    ]
    table = holdfast("sweep", "find").stdout.splitlines()
    assert table[0].split() == ["TRIAL", "x", "loss", "PHASE"]
    assert table[1].split() == ["find-2", "1", "1", "succeeded"]
    assert holdfast("status", "find-1").returncode == 0  # an ordinary job
    changed = described(home, parallel=2)
    refused = holdfast("run", str(changed))
    assert refused.returncode == 2 and "error[sweep-unusable]" in refused.stderr
    assert sweeps.phase_of("find-1") == "failed"  # nothing has changed


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_a_stop_ends_all_trials_and_the_next_run_does_them(home: Path) -> None:
    file = described(home, over={"x": [3, 1]})
    starts: list[str] = []
    for by in ("holdfast stop", "SIGTERM"):
        starts.append("3 0")
        running = start("run", str(file))
        come(lambda: begun(home) == starts)
        if by == "SIGTERM":
            running.send_signal(signal.SIGTERM)
        else:
            assert "1 trial was running" in holdfast("stop", "find").stdout
        _, told = running.communicate()
        assert running.returncode == 130, told
        assert [sweeps.phase_of(f"find-{number}") for number in (0, 1)] == ["stopped", "waiting"]
        assert json.loads(holdfast("sweep", "find", "--json").stdout)["phase"] == "stopped"
    (home.parent / "go").touch()
    assert holdfast("run", str(file)).returncode == 0
    assert begun(home) == ["1 1", *starts, "3 0"]


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_a_trial_that_is_stopped_by_itself_ends_no_other_and_stays_stopped(home: Path) -> None:
    running = start("run", str(described(home, over={"x": [3, 1]})))
    come(lambda: begun(home) == ["3 0"])
    assert holdfast("stop", "find-0").returncode == 0
    come(lambda: begun(home) == ["1 1", "3 0"])
    (home.parent / "go").touch()
    table, _ = running.communicate()
    assert running.returncode == 1
    assert [line.split()[-1] for line in table.splitlines()] == ["PHASE", "succeeded", "stopped"]
    assert begun(home) == ["1 1", "3 0"]


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_too_many_failed_trials_end_the_sweep(home: Path) -> None:
    (home.parent / "go").touch()
    file = described(home, over={"x": [2, 1]}, max_failed=0)
    ended = holdfast("run", str(file))
    assert ended.returncode == 1
    assert begun(home) == ["2 0"]
    assert holdfast("run", str(file), "--replace").returncode == 1  # all of it again
    assert begun(home) == ["2 0", "2 0"]


def test_a_damaged_description_is_told(home: Path) -> None:
    folder = home / "sweeps" / "find"
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_text("{")
    for words in (("run", str(described(home))), ("sweep", "find"), ("stop", "find")):
        ran = holdfast(*words)
        assert ran.returncode == 2 and "error[sweep-unusable]" in ran.stderr
        assert f"rm -r {folder}" in ran.stderr


def test_a_job_of_a_trials_name_is_not_touched(home: Path) -> None:
    file = described(home)
    other = Job(name="find-1", command=("true",))
    os.close(records.create(other, records.job_dir("find-1"), now=1.0))
    refused = holdfast("run", str(file))
    assert refused.returncode == 2 and "error[job-exists]" in refused.stderr
    assert "find-1" in refused.stderr and sweeps.found("find") is None
    assert records.load_job(records.job_dir("find-1")) == other


def test_who_is_refused_leaves_the_sweep_to_who_runs_it(home: Path) -> None:
    file = described(home)
    job = job_from_file(file, Flags())
    with sweeps.locked("find"):  # and has not written anything yet
        refused = holdfast("run", str(file))
        assert refused.returncode == 2 and "error[job-running]" in refused.stderr
        assert len(sweeps.opened(job, replace=False)) == 3
    assert sweeps.found("find") == job


@pytest.mark.parametrize(
    ("lines", "metric"),
    [
        (['{"loss": 2.0}', '{"loss": 1.5}', '{"loss": null}'], 1.5),  # a step without it
        (['{"loss": 2.0}', '{"loss": null, "not_finite": {"loss": "NaN"}}'], None),  # diverged
        (["5}", '{"lo'], None),
    ],
)
def test_a_trial_is_known_by_the_newest_loss_unless_that_is_not_finite(
    home: Path, lines: list[str], metric: float | None
) -> None:
    job = Job.model_validate({"name": "find", "script": "t.py", "sweep": {"trials": 1}})
    trial = Job(name="find-0", script="t.py")
    os.close(records.create(trial, records.job_dir("find-0"), now=1.0))
    (home / "jobs" / "find-0" / "metrics.jsonl").write_text("\n".join(lines))
    assert sweeps.status(job).trials[0].metric == metric


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("run", "find.yaml", "--detach"), "cannot be detached"),
        (("run", "--on", "ray", "find.yaml"), "cannot be run with --on ray"),
        (("sweep", "other"), "there is no sweep 'other'"),
    ],
)
def test_what_cannot_be_done_is_refused(home: Path, words: tuple[str, ...], why: str) -> None:
    file = described(home)
    ran = holdfast(*(str(file) if word == file.name else word for word in words))
    assert ran.returncode in (2, 4) and why in ran.stderr, ran
    assert not (home / "jobs").exists() and not (home / "sweeps").exists()


@pytest.mark.parametrize(
    ("env", "spec", "places"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, {"workers_per_node": 1}, ["", ""]),
        ({"CUDA_VISIBLE_DEVICES": ""}, {"workers_per_node": 2}, [""]),
        ({"CUDA_VISIBLE_DEVICES": ""}, {"workers_per_node": 8}, [""]),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6"}, {"workers_per_node": 1}, ["4", "5", "6"]),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6"}, {"workers_per_node": 2}, ["4,5"]),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6"}, {}, ["4,5,6"]),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, {"workers_per_node": 1, "nodes": 2}, ["4,5"]),
    ],
)
@pytest.mark.usefixtures("two_cores")
def test_trials_run_at_once_as_devices_allow(
    env: dict[str, str], spec: dict[str, Any], places: list[str]
) -> None:
    job = Job.model_validate(
        {"name": "x", "script": "t.py", "env": env, "sweep": {"trials": 9, "parallel": 3}, **spec}
    )
    assert sweep_run.places(job) == places
