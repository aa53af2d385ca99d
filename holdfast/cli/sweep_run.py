"""`holdfast run` of a job with `sweep`: its trials, some at a time, and a table of results.

Each trial is a job of its own with a controller in the background. So a sweep whose command is
killed loses nothing: run it again, and it goes on with the trials that have not ended.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from holdfast import devices
from holdfast.agent.environment import worker_count
from holdfast.cli import controller
from holdfast.cli.controller import Where
from holdfast.cli.output import count, json_result, result, table, talk
from holdfast.cli.stop import stop_job
from holdfast.drivers import records, sweeps
from holdfast.errors import Error, ExitStatus
from holdfast.planning.trials import SweepTrial, trials_of
from holdfast.spec import Job
from holdfast.status import SweepStatus

POLL_S = 0.2
RESUMES_MAX = 3  # of one trial, by one command
ENDED_BADLY = ("failed", "gave_up")
TO_DO = (sweeps.WAITING, sweeps.LOST, "stopped")


def run_sweep(job: Job, on: Where, *, detach: bool, replace: bool, as_json: bool) -> None:
    """Run every trial that has not ended; ends the command. Raises `Error` with slug usage for what
    a sweep cannot do."""
    if on is not Where.LOCAL:
        raise Error(
            "usage",
            f"a sweep cannot be run with --on {on.value}",
            why="its trials are distributed over the devices of this machine",
            help="leave out --on, or render its manifests: holdfast render job.yaml --mode plain",
        )
    if detach:
        raise Error(
            "usage",
            "a sweep cannot be detached",
            why="its command starts one trial after the other",
            help="nohup holdfast run job.yaml &   (trials outlive it, and it can be run again)",
        )
    with sweeps.locked(job.name):
        runner = _TrialStarter(job, sweeps.opened(job, replace=replace))
        told = count(len(runner.trials), "trial")
        talk(f"{job.name}: {told}, at most {len(runner.places)} at a time")
        with _interrupted_by_sigterm():
            stopped = runner.run()
    status = sweeps.status(job)
    show(status, as_json)
    if stopped:
        raise typer.Exit(ExitStatus.INTERRUPTED)
    good = all(one.phase == "succeeded" for one in status.trials)
    raise typer.Exit(ExitStatus.OK if good else ExitStatus.JOB_FAILED)


class _TrialStarter:
    """Starts trials where there is room until all have ended, too many have failed, or stopped."""

    def __init__(self, job: Job, trials: list[SweepTrial]) -> None:
        assert job.sweep is not None
        self.trials = trials
        self.places = places(job)
        self._stop = sweeps.sweep_dir(job.name) / "stop"
        self._max_failed = job.sweep.max_failed
        self._running: dict[int, str] = {}  # place of a trial, by its number
        self._resumes: dict[int, int] = {}
        self._phases: dict[int, str] = {}
        self._over: set[int] = set()  # trials that have ended, one way or another

    def run(self) -> bool:
        """Whether it was stopped before its end."""
        try:
            while not self._stop.exists():
                self._look()
                if not self._running and not self._todo():
                    return False
                room = len(self._running) < len(self.places)
                if not (room and any(self._start(one) for one in self._todo())):
                    time.sleep(POLL_S)
        except KeyboardInterrupt:
            self._stop.touch()
        stop_trials(self.trials)
        return True

    def _todo(self) -> list[SweepTrial]:
        """Those that are to be started or continued."""
        failed = sum(phase in ENDED_BADLY for phase in self._phases.values())
        if self._max_failed is not None and failed > self._max_failed:
            return []
        left = (one for one in self.trials if one.number not in self._over)
        return [one for one in left if self._phases[one.number] in TO_DO]

    def _look(self) -> None:
        """How the trials stand; those that wait or have ended stay so."""
        for one in self.trials:
            if one.number in self._over or self._phases.get(one.number) == sweeps.WAITING:
                continue
            now = self._phases[one.number] = sweeps.phase_of(one.job.name)
            if now == sweeps.RUNNING:
                self._running.setdefault(one.number, sweeps.devices_of(one))
            elif self._running.pop(one.number, None) is not None:
                talk(f"{one.job.name} {now}{_said(one)}")
                if now != sweeps.LOST:
                    self._over.add(one.number)
            elif now in ("succeeded", *ENDED_BADLY):
                self._over.add(one.number)

    def _start(self, one: SweepTrial) -> bool:
        """Start this trial, or continue it; False if there is no place for it."""
        phase, folder = self._phases[one.number], records.job_dir(one.job.name)
        goes_on = phase == sweeps.LOST or (phase == "stopped" and sweeps.resumable(one))
        free = [*self.places]
        for taken in self._running.values():
            if taken in free:
                free.remove(taken)
        place = next(iter(free), "")
        if goes_on and (had := sweeps.devices_of(one)) in self.places:
            place = had
        if place not in free:
            return False
        self._resumes[one.number] = self._resumes.get(one.number, -1) + 1
        if self._resumes[one.number] > RESUMES_MAX:
            self._fail(one)
            talk(f"{one.job.name}: its controller has died {RESUMES_MAX + 1} times")
            return False
        try:
            lock = None
            if not goes_on:
                job = sweeps.on_devices(one, place)
                lock = records.create(job, folder, replace=folder.exists(), now=time.time())
            controller.launch(folder, lock)
        except Error as error:
            talk(str(error))
            self._fail(one)
            return False
        self._running[one.number], self._phases[one.number] = place, sweeps.RUNNING
        talk(f"{one.job.name} {'continues' if goes_on else 'starts'}{_said(one)}")
        return True

    def _fail(self, one: SweepTrial) -> None:
        """It cannot be started."""
        self._phases[one.number] = "failed"
        self._over.add(one.number)


def stop_trials(trials: list[SweepTrial], force: bool = False) -> int:
    """Stop every trial that runs, or whose controller has died, and wait until all have; how
    many. `force`: also in the record of one whose Ray cluster is gone."""
    folders = [records.job_dir(one.job.name) for one in trials if _is_open(one.job.name)]
    asked = [folder for folder in folders if stop_job(folder, False, force) is None]
    if asked:
        talk(f"asked {count(len(asked), 'trial', 'trials')} to stop; waiting until they have")
    for folder in asked:
        while records.controller_alive(folder):
            time.sleep(POLL_S)
    return len(folders)


def _is_open(name: str) -> bool:
    """Whether it may have processes; also one whose record is damaged."""
    try:
        return sweeps.phase_of(name) in (sweeps.RUNNING, sweeps.LOST)
    except Error:
        return True


def stop_sweep(job: Job, force: bool = False) -> int:
    """End a sweep, whether its command lives or not; how many trials ran."""
    (sweeps.sweep_dir(job.name) / "stop").touch()
    return stop_trials(trials_of(job), force)


def places(job: Job) -> list[str]:
    """For each trial that may run at once the GPUs that it gets, or "" where there are none.

    Devices that are not chosen by `sweeps.DEVICES` are not divided: one trial has them all.
    """
    assert job.sweep is not None
    environ = {**os.environ, **job.env}
    kinds = devices.DEVICES if job.device == "auto" else (job.device,)
    kind = next((kind for kind in kinds if devices.count(kind, environ)), None)
    limit, each = job.sweep.parallel, job.nodes.count * worker_count(job, environ)
    if kind is None:
        return [""] * max(1, min(limit, len(os.sched_getaffinity(0)) // each))
    if sweeps.DEVICES not in devices.DEVICES[kind].visible:
        return [""]
    gpus, named = devices.count(kind, environ), environ.get(sweeps.DEVICES)
    all_ = named.split(",") if named is not None else [str(number) for number in range(gpus)]
    cut = [all_[at : at + each] for at in range(0, gpus - each + 1, each)] or [all_]
    return [",".join(one) for one in cut[:limit]]


def _said(one: SweepTrial) -> str:
    values = " ".join(f"{name}={value}" for name, value in one.values.items())
    return f"  ({values})" if values else ""


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM is Ctrl-C from somebody without a keyboard."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def show(status: SweepStatus, as_json: bool) -> None:
    """The table of a sweep's trials, or its JSON."""
    if as_json:
        json_result(status)
        return
    names = list(dict.fromkeys(name for one in status.trials for name in one.values))
    rows = [
        (
            one.job,
            *(one.values.get(name, "") for name in names),
            "" if one.metric is None else f"{one.metric:.6g}",
            one.phase,
        )
        for one in status.trials
    ]
    result(table(("TRIAL", *names, status.metric, "PHASE"), rows))
    best = "lowest" if status.goal == "min" else "highest"
    talk(f"{status.sweep}: {status.phase}; sorted by {status.metric}, {best} first")
