"""The record of a sweep on this machine: `$HOLDFAST_HOME/sweeps/NAME/`, and how its trials stand.

A trial is an ordinary job with a folder and a controller of its own, so it lives on when the
command that runs the sweep does not. Kept here are the description (`sweep.json`), who runs the
sweep (`lock`) and whether it was stopped (`stop`); everything else is read from the trials.
"""

import contextlib
import json
import math
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from holdfast.actions import Outcome
from holdfast.drivers import records
from holdfast.errors import Error
from holdfast.planning.trials import SweepTrial, ranked, trials_of
from holdfast.spec import Job
from holdfast.spec.sweep import Sweep
from holdfast.status import SweepStatus, TrialStatus

WAITING, RUNNING, LOST = "waiting", "running", "lost"
DEVICES = "CUDA_VISIBLE_DEVICES"
TAIL_BYTES = 1 << 20


def sweep_dir(name: str) -> Path:
    """The folder of one sweep, which need not exist."""
    return records.jobs_home().with_name("sweeps") / name


def found(name: str) -> Job | None:
    """The job of a sweep that was run on this machine. Raises `Error` sweep-unusable."""
    path = sweep_dir(name) / "sweep.json"
    try:
        return Job.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise Error(
            "sweep-unusable",
            f"{path} cannot be read",
            why=str(error).partition("\n")[0],
            help=f"rm -r {shlex.quote(str(path.parent))}   (its trials are jobs, and stay)",
        ) from None


def opened(job: Job, *, replace: bool) -> list[SweepTrial]:
    """The trials of this sweep, which begins or goes on; call it with the sweep `locked`.

    Raises `Error` sweep-unusable, job-exists, job-running; then nothing has changed.
    """
    trials, known = trials_of(job), found(job.name)
    if known is not None and not replace and known != job:
        raise Error(
            "sweep-unusable",
            f"the sweep {job.name} exists with a different definition",
            why="its trials that have ended would not be comparable with new ones",
            help="choose another --name, or drop its trials with --replace",
        )
    existing = [one for one in trials if records.job_dir(one.job.name).exists()]
    for one in existing:
        if not replace and (known is None or not _is(one, records.job_dir(one.job.name))):
            raise _taken(one.job.name)
    if replace:
        _drop(known, trials)
    folder = sweep_dir(job.name)
    records.write_private(folder / "sweep.json", job.model_dump_json(indent=2))
    (folder / "stop").unlink(missing_ok=True)
    return trials


def _drop(known: Job | None, trials: list[SweepTrial]) -> None:
    """The records of these trials, and of those that the sweep had before."""
    names = {one.job.name for one in (*trials, *(trials_of(known) if known is not None else ()))}
    folders = [folder for name in sorted(names) if (folder := records.job_dir(name)).exists()]
    for folder in folders:
        if records.controller_alive(folder):
            raise records.already_running(folder.name)
    for folder in folders:
        records.remove(folder)


def _is(trial: SweepTrial, folder: Path) -> bool:
    """Whether this record is that of the trial, on whatever devices it ran."""
    recorded = records.recorded_job(folder)
    env = {name: value for name, value in recorded.env.items() if name != DEVICES}
    asked = {name: value for name, value in trial.job.env.items() if name != DEVICES}
    return recorded.model_copy(update={"env": env}) == trial.job.model_copy(update={"env": asked})


def _taken(name: str) -> Error:
    return Error(
        "job-exists",
        f"there is a record of a job named {name!r}, as a trial would be called",
        why="it does not belong to this sweep",
        help=f"choose another --name, or drop the record with --replace   (holdfast why {name})",
    )


@contextlib.contextmanager
def locked(name: str) -> Iterator[Path]:
    """Run this sweep, and nobody else. Raises `Error` job-running."""
    folder = sweep_dir(name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with records.locked(folder):
        yield folder


# ── how it stands ─────────────────────────────────────────────────────────────────────────────


def phase_of(name: str) -> str:
    """Of a trial: waiting, running, lost (its controller has died), or how it ended."""
    folder = records.job_dir(name)
    if not folder.exists():
        return WAITING
    if records.controller_alive(folder):
        return RUNNING
    outcome = records.state_of(folder).outcome
    return LOST if outcome is None else outcome.value


def devices_of(trial: SweepTrial) -> str:
    """GPUs that a trial was started on; empty where there are none."""
    return records.recorded_job(records.job_dir(trial.job.name)).env.get(DEVICES, "")


def on_devices(trial: SweepTrial, devices: str) -> Job:
    """The trial's job with these GPUs alone."""
    env = {**trial.job.env, DEVICES: devices} if devices else trial.job.env
    return trial.job.model_copy(update={"env": env})


def resumable(trial: SweepTrial) -> bool:
    """Whether a trial that was stopped can go on from what it has saved."""
    folder = records.job_dir(trial.job.name)
    return records.may_begin_again(trial.job, records.state_of(folder))


def status(job: Job) -> SweepStatus:
    """Of all trials, the best first."""
    assert job.sweep is not None
    trials = [_status(one, job.sweep) for one in trials_of(job)]
    open_ones = any(one.phase in (WAITING, RUNNING, LOST) for one in trials)
    folder = sweep_dir(job.name)
    if records.controller_alive(folder):
        phase = RUNNING
    elif (folder / "stop").exists() or any(one.phase == Outcome.STOPPED.value for one in trials):
        phase = "stopped"
    else:
        phase = "away" if open_ones else "ended"
    return SweepStatus(
        sweep=job.name,
        phase=phase,
        metric=job.sweep.metric,
        goal=job.sweep.goal,
        trials=tuple(ranked(trials, job.sweep.goal)),
    )


def _status(trial: SweepTrial, sweep: Sweep) -> TrialStatus:
    folder = records.job_dir(trial.job.name)
    return TrialStatus(
        number=trial.number,
        job=trial.job.name,
        values=trial.values,
        phase=phase_of(trial.job.name),
        metric=_metric(folder, sweep),
    )


def _metric(folder: Path, sweep: Sweep) -> float | None:
    """The newest one that was reported or, with a pattern, printed."""
    if sweep.metric_pattern is None:
        reported = _tail(folder / "metrics.jsonl").splitlines()
        values = (_reported(line, sweep.metric) for line in reversed(reported))
        newest = next((value for value in values if value is not None), math.nan)
        return newest if math.isfinite(newest) else None
    pattern = re.compile(sweep.metric_pattern.encode())
    group: str | int = "metric" if "metric" in pattern.groupindex else 1
    logs = folder.glob("logs/attempt-*/rank-0.log")
    for log in sorted(logs, key=lambda log: int(log.parent.name.rpartition("-")[2]), reverse=True):
        for match in reversed([*pattern.finditer(_tail(log))]):
            with contextlib.suppress(ValueError, TypeError):  # TypeError: the group is not in it
                value = float(match[group])
                return value if math.isfinite(value) else None
    return None


def _reported(line: bytes, name: str) -> float | None:
    """None: this step has not reported it. NaN: what it has reported is not finite."""
    try:
        said = json.loads(line)
    except ValueError:  # the first line of the tail, or one that is not yet whole
        return None
    if name in said.get("not_finite", ()):
        return math.nan
    value = (
        said.get("loss")
        if name == "loss"
        else (said.get("metrics") or {}).get(name, said.get(name))
    )
    return float(value) if isinstance(value, int | float) else None


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read()
    except FileNotFoundError:
        return b""
