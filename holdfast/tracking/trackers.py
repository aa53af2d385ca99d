"""The trackers: each opens a run, says up to which step it knows it, and takes points.

Packages are those of the training image; where one is missing, or its key, that is said once and
nothing is tracked there. Their own variables apply (`WANDB_PROJECT`, `MLFLOW_TRACKING_URI`, ...).
"""

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from holdfast.tracking.points import TrackedStep

PROJECT = "holdfast"
NEXT_STEP = ("step", "_next_step")
"""Where a run of Weights & Biases, and one of Trackio, has the step after the newest it knows."""


class TrackedRun(NamedTuple):
    """What is tracked."""

    job: str
    id: str  # the same for all attempts and nodes of one job
    folder: Path  # for files of trackers
    told: int  # newest step that was sent; -1: none


class Tracker(Protocol):
    """An open run of one service. Every method may raise whatever its package raises."""

    newest: int  # step that the service knows

    def send(self, points: Sequence[TrackedStep]) -> None:
        """Take these points, and return when they are safe."""

    def close(self) -> None:
        """That was all of this process; the run may be continued."""


class NotUsableError(Exception):
    """This tracker cannot be used here, and trying again will not help: why, and what helps."""


class TensorBoard:
    """Event files. `newest` is below a step that is redone: its file then says to forget it.

    All values of a step are one event, which takes a sixth of the time of one for each. They are
    written at once: a `SummaryWriter` hands them to a thread, and its `flush` does not wait for it.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._folder = run.folder / "tensorboard" / run.job
        self.newest = run.told
        self._file: Any = None
        self._events = _module("tensorboardX.proto.event_pb2")
        self._tags: dict[str, str] = {}  # of names, as TensorBoard's package spells them

    def send(self, points: Sequence[TrackedStep]) -> None:
        """Append; begin a file that takes back what was written of a step that is redone."""
        for point in points:
            if self._file is None or point.step <= self.newest:
                self._begin(point.step)
            event = self._events.Event(step=point.step, wall_time=point.at)
            for name, value in point.values.items():
                event.summary.value.add(tag=self._tag(name), simple_value=value)
            self._file.write_event(event)
            self.newest = point.step
        self._file.flush()

    def _tag(self, name: str) -> str:
        if name not in self._tags:
            written = _module("tensorboardX.summary").scalar(name, 0.0)
            self._tags[name] = str(written.value[0].tag)
        return self._tags[name]

    def _begin(self, step: int) -> None:
        self.close()
        unique = f".{time.time_ns()}"  # else all files of a second have the same name
        self._folder.mkdir(parents=True, exist_ok=True)
        writer = _module("tensorboardX.event_file_writer").EventsWriter
        self._file = writer(str(self._folder / "events"), unique)
        begins = self._events.SessionLog(status=self._events.SessionLog.START)
        self._file.write_event(self._events.Event(step=step, session_log=begins))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class WandbLike:
    """Weights & Biases, and Trackio, which has the same functions."""

    def __init__(self, module: Any, run: TrackedRun, **options: Any) -> None:
        self._run = module.init(**{"name": run.job, "resume": "allow", **options})
        nexts = (getattr(self._run, name, None) for name in NEXT_STEP)
        self.newest = max(run.told, *(int(one or 0) - 1 for one in nexts))

    def send(self, points: Sequence[TrackedStep]) -> None:
        """Log; the package sends them, and keeps them in files until it could."""
        for point in points:
            if point.step > self.newest:
                self._run.log(point.values, step=point.step)
                self.newest = point.step

    def close(self) -> None:
        """Wait until all is sent, as its package does."""
        self._run.finish()


class MLflow:
    """A run that is found by its tag; the newest step is a tag, too."""

    TAG, STEP = "holdfast.run", "holdfast.step"

    def __init__(self, run: TrackedRun) -> None:
        self._client = _module("mlflow").MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        found = self._client.search_runs([experiment], f"tags.`{self.TAG}` = '{run.id}'")
        if found:
            self._id = found[0].info.run_id
            self.newest = max(run.told, int(found[0].data.tags.get(self.STEP, -1)))
            self._client.update_run(self._id, status="RUNNING")
        else:
            made = self._client.create_run(experiment, run_name=run.job, tags={self.TAG: run.id})
            self._id, self.newest = made.info.run_id, run.told

    def send(self, points: Sequence[TrackedStep]) -> None:
        """In batches as large as the service takes."""
        metric = _module("mlflow.entities").Metric
        fresh = _unknown(points, self.newest)
        metrics = [
            metric(name, value, int(point.at * 1000), point.step)
            for point in fresh
            for name, value in point.values.items()
        ]
        for first in range(0, len(metrics), 1000):
            self._client.log_batch(self._id, metrics[first : first + 1000])
        if fresh:
            self._client.set_tag(self._id, self.STEP, str(fresh[-1].step))
            self.newest = fresh[-1].step

    def close(self) -> None:
        """The run is over for now."""
        self._client.set_terminated(self._id, "FINISHED")


def _unknown(points: Sequence[TrackedStep], newest: int) -> list[TrackedStep]:
    """Those of steps that are not known yet, each once."""
    found: dict[int, TrackedStep] = {}
    for point in points:
        if point.step > newest:
            found.setdefault(point.step, point)
    return list(found.values())


def load_ahead(names: Collection[str]) -> None:
    """Import, while there is one thread, what would import PyTorch only to know its tensors: that
    takes seconds, and 200 MB in a process that lives as long as the job. It does without."""
    if "tensorboard" not in names or "torch" in sys.modules:
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        with contextlib.suppress(ImportError):  # which `opened` tells of
            _module("tensorboardX")
    finally:
        del sys.modules["torch"]


def _module(name: str) -> Any:
    """A package that is not among our own requirements."""
    return importlib.import_module(name)


def _tensorboard(run: TrackedRun) -> Tracker:
    return TensorBoard(run)


def _wandb(run: TrackedRun) -> Tracker:
    wandb = _module("wandb")
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    keyless = os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun")
    if not (keyless or os.environ.get("WANDB_API_KEY") or netrc.exists()):
        raise NotUsableError("WANDB_API_KEY is not set   (WANDB_MODE=offline needs none)")
    settings = wandb.Settings(silent=True, console="off")
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    return WandbLike(wandb, run, id=run.id, project=project, dir=str(run.folder), settings=settings)


def _mlflow(run: TrackedRun) -> Tracker:
    return MLflow(run)


def _trackio(run: TrackedRun) -> Tracker:
    trackio = _module("trackio")
    project = os.environ.get("TRACKIO_PROJECT", PROJECT)
    its_id = f"{run.job}-{run.id}"  # a run is continued by its name
    return WandbLike(trackio, run, name=its_id, project=project)


OPENED: dict[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": _trackio,
}
PACKAGES = {"tensorboard": "tensorboardX", "mlflow": "mlflow-skinny"}
"""What to install, where it is not called like the tracker."""


def opened(name: str, run: TrackedRun) -> Tracker:
    """The run of one tracker, continued if it exists. Raises `NotUsableError`, or what the package
    raises when its service does not answer."""
    try:
        return OPENED[name](run)
    except ModuleNotFoundError as missing:
        package = PACKAGES.get(name, name)
        raise NotUsableError(f"no module {missing.name}   (pip install {package})") from None
