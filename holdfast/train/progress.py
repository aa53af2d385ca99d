"""Telling the agent how far this worker is, through the progress page and without a system call.

What `run.log()` is given is kept for the step under way. Numbers on the CPU are published with
their step. Numbers on a GPU are copied to pinned memory without waiting for the GPU, and published
when the copy has arrived, usually with the next step; asking for their value at once would stop
the GPU once a step. Names that the script makes up get a column of the page at their first use;
those that find none are left out, which is said once. Without a page (plain `python train.py`)
nothing is kept.

Whoever publishes the numbers of a step looks at them (`detection.numerics`): the first that are not
finite, and those far above the usual, are noted in the page. `unsound` says whether a snapshot
should be taken at all.
"""

import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from holdfast import step_profile
from holdfast.detection.numerics import FirstBad, NumberWatch
from holdfast.digests import ReplicaDigest
from holdfast.events import Milestone, Spike
from holdfast.page import METRIC_COUNT, Page, StepRecord, WorkerPhase
from holdfast.train.placement import Placement, descriptor

logger = logging.getLogger(__name__)

COUNT_MAX = (1 << 63) - 1  # what the page has room for
METRIC_PATTERN = r"[A-Za-z_][A-Za-z0-9_./-]{0,62}"


class _Pending(NamedTuple):
    """A step whose numbers are on their way from the GPU."""

    step: int
    at: float
    tokens: int
    values: torch.Tensor  # loss, gradient norm, then `names`; pinned
    names: tuple[str, ...]
    arrived: Any  # torch.cuda.Event
    missing: tuple[int, ...]  # places of `values` for which nothing was logged


class _Stalls(NamedTuple):
    """What training has waited for in this attempt."""

    data_wait_s: float = 0.0
    snapshot_s: float = 0.0


class ProgressReporter:
    """What one worker reports. Every method is cheap and does nothing without a page."""

    def __init__(
        self,
        page: Page | None,
        redo_until: int,
        *,
        on_nan: str = "restart",
        peak_flops: float | None = None,
    ) -> None:
        """`on_nan` is `recovery.on_nan` of the job, `peak_flops` what the device can do."""
        self._page = page
        self._peak_flops = peak_flops
        self._ignores = on_nan == "ignore"
        self._watch = NumberWatch()
        self._redo_until = redo_until
        self._phase, self._section = WorkerPhase.STARTING, ""
        self._loss: Any = None
        self._grad_norm: Any = None
        self._tokens = 0
        self._metrics: dict[str, Any] = {}
        self._left_out = False  # and said so
        self._stalls = _Stalls()
        self._pending: deque[_Pending] = deque()
        self.in_stages_s: Callable[[], float] = float
        """How long it has computed in stages of a pipeline."""

    def begin_again(self, redo_until: int) -> None:
        """Another attempt begins in this process, on an empty page."""
        self._watch, self._redo_until = NumberWatch(), redo_until
        self._loss, self._grad_norm, self._tokens, self._metrics = None, None, 0, {}
        self._stalls = _Stalls()
        self._pending.clear()
        self._section = ""
        step_profile.give_up("its attempt has ended")

    def phase(self, phase: WorkerPhase) -> None:
        """Say what this worker does now."""
        self._phase = phase
        if self._page is not None and not self._section:
            self._page.phase(phase)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Say that it is in this section, then what it did before. Raises `ValueError`."""
        if re.fullmatch(METRIC_PATTERN, name) is None:
            raise ValueError(
                f"invalid name of a section: {name!r}; at most 63 letters, digits, ._/-"
            )
        step_profile.interrupt(f"the script entered section {name!r} meanwhile")
        outer, self._section = self._section, name
        self._say_section()
        try:
            yield
        finally:
            self._section = outer
            if outer:
                self._say_section()
            else:
                self.phase(self._phase)

    def _say_section(self) -> None:
        if self._page is not None:
            self._page.section(self._section)

    def reach(self, milestone: Milestone) -> None:
        """Note a milestone."""
        if self._page is not None:
            self._page.reach(milestone)

    def aims(self, total: int) -> None:
        """The loop ends after this many completed steps."""
        if self._page is not None:
            self._page.aims(total)

    def restored(self, step: int, skipped: int = 0) -> None:
        """Training goes on after this many completed steps, with so many batches left out."""
        if self._page is not None:
            self._page.restored(step, skipped)

    def log(self, loss: Any, grad_norm: Any, tokens: int, metrics: Mapping[str, Any]) -> None:
        """Keep what the step under way has to say; the newest values count, tokens add up."""
        self._tokens = _count("tokens", self._tokens + _count("tokens", tokens))
        self._loss = self._loss if loss is None else _scalar("loss", loss)
        self._grad_norm = self._grad_norm if grad_norm is None else _scalar("grad_norm", grad_norm)
        for name, value in metrics.items():
            scalar = _scalar(name, value)
            if self._page is None:
                continue
            if self._page.column(name) is not None:
                self._metrics[name] = scalar
            elif not self._left_out:
                self._left_out = True
                logger.warning(
                    "run.log: %s and other new names are ignored; a job can have at most %d",
                    *(name, METRIC_COUNT),
                )

    def waited_for_data(self, seconds: float) -> None:
        """Time spent in the loader."""
        self._stalls = self._stalls._replace(data_wait_s=self._stalls.data_wait_s + seconds)
        step_profile.waited(seconds)
        self._say_stalls()

    def step_done(self, step: int, step_s: float) -> None:
        """Step number `step`, counting from 1, is complete and took this long."""
        self._add_mfu(step_s)
        names, values = tuple(self._metrics), [self._loss, self._grad_norm]
        values += self._metrics.values()
        tokens, self._tokens = self._tokens, 0
        self._loss, self._grad_norm, self._metrics = None, None, {}
        if self._page is None:
            return
        self._say_stalls()
        self.publish()
        if any(map(_on_gpu, values)):
            self._pending.append(_send(step, tokens, names, values))
            self._page.step_done(step, step_s, None)
        else:
            record = _record(step, time.monotonic(), tokens, names, [*map(_number, values)])
            self._page.step_done(step, step_s, record)
            self._look_at(record)
        self._reach_first_steps(step)

    def _add_mfu(self, step_s: float) -> None:
        """Where the script logs `flops` and the device's peak is known."""
        flops = self._metrics.get("flops")
        if self._peak_flops is None or self._page is None or not isinstance(flops, float):
            return
        if step_s > 0 and self._page.column("mfu") is not None:
            self._metrics["mfu"] = flops / step_s / self._peak_flops

    def publish(self, *, through: float = 0) -> None:
        """Publish numbers that have arrived from the GPU; wait for those of the steps up to this
        one."""
        while self._pending and _is_due(self._pending[0], through):
            step, at, tokens, values, names, arrived, missing = self._pending.popleft()
            arrived.synchronize()
            if self._page is not None:
                record = _record(step, at, tokens, names, _unless(missing, values.tolist()))
                self._page.record(record)
                self._look_at(record)

    def _look_at(self, record: StepRecord) -> None:
        assert self._page is not None, "nothing is recorded without a page"
        match self._watch.step(record.step, record.at, record.loss, record.grad_norm):
            case FirstBad(step, at, what, value):
                self._page.broke(step, at, what, value)
            case Spike() as spike:
                self._page.spiked(spike)
            case None:
                pass

    def unsound(self, through: int) -> bool:
        """Whether the newest step up to this one, or one that is known already, had a loss or a
        gradient norm that is not finite: the state after it may be unusable. Waits for numbers
        that are still on their way from the GPU. Never where the job ignores them."""
        if self._ignores:
            return False
        self.publish(through=through)
        return self._watch.unsound

    def compared(self, differ: ReplicaDigest | None) -> None:
        """What this rank has of parameters that differ from those of others, if so."""
        if self._page is not None and differ is not None and differ.count:
            self._page.differs(differ)

    def snapshot_taken(self, step: int, every: int, seconds: float) -> None:
        """A snapshot of `step` is whole here and kept training waiting this long."""
        self._stalls = self._stalls._replace(snapshot_s=self._stalls.snapshot_s + seconds)
        if self._page is not None:
            self._page.snapshot(step, every, seconds)
        self._say_stalls()

    def planned(self, intervals: Sequence[float]) -> None:
        """How often each durable tier gets a checkpoint now, in seconds; nothing for none."""
        if self._page is not None:
            self._page.intervals(intervals)

    def _say_stalls(self) -> None:
        if self._page is not None:
            self._page.stalls(*self._stalls, self.in_stages_s())

    def _reach_first_steps(self, step: int) -> None:
        self.reach(Milestone.FIRST_STEP)
        if step > self._redo_until:
            self.reach(Milestone.CAUGHT_UP)


def _is_due(pending: _Pending, through: float) -> bool:
    return pending.step <= through or bool(pending.arrived.query())


def open_progress(placement: Placement, peak_flops: float | None = None) -> ProgressReporter:
    """The progress page the agent passed, or a mute one."""
    fd = descriptor("HOLDFAST_PAGE_FD")
    os.environ.pop("HOLDFAST_PAGE_FD", None)  # children of the script must not write to it
    page = None if fd is None else Page(fd)
    on_nan = os.environ.get("HOLDFAST_ON_NAN", "restart")
    found = ProgressReporter(page, placement.redo_until, on_nan=on_nan, peak_flops=peak_flops)
    if page is not None:
        step_profile.watch(page, lambda: found.section(step_profile.SECTION))
    return found


def _on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        return float(value.item())
    return None if value is None else float(value)


def _unless(missing: Sequence[int], values: Sequence[float]) -> list[float | None]:
    """The values, with None at places for which nothing was logged."""
    return [None if at in missing else value for at, value in enumerate(values)]


def _count(name: str, value: Any) -> int:
    """A number of things that adds up. Raises `ValueError`."""
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ValueError(f"{name} is a {type(value).__qualname__}, not an integer") from None
    if not 0 <= count <= COUNT_MAX:
        raise ValueError(f"{name} cannot be {value}")
    return count


def _scalar(name: str, value: Any) -> Any:
    """A number, or a tensor of one that is not waited for. Raises `ValueError`."""
    if re.fullmatch(METRIC_PATTERN, name) is None:
        raise ValueError(f"invalid name of a metric: {name!r}; at most 63 letters, digits, ._/-")
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ValueError(f"{name} has shape {tuple(value.shape)}, a metric must be a scalar")
        if value.is_complex() or value.is_meta:
            raise ValueError(
                f"{name} is a {value.dtype} on {value.device}, a metric must be a number"
            )
        return value.detach()
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{name} is a {type(value).__qualname__}, a metric must be a number"
        ) from None


def _record(
    step: int, at: float, tokens: int, names: Sequence[str], values: Sequence[float | None]
) -> StepRecord:
    loss, grad_norm, *others = values
    metrics = {name: value for name, value in zip(names, others, strict=True) if value is not None}
    return StepRecord(step, at, loss, grad_norm, tokens, metrics)


def _send(step: int, tokens: int, names: tuple[str, ...], given: Sequence[Any]) -> _Pending:
    values = torch.empty(len(given), dtype=torch.float64, pin_memory=True)
    for at, value in enumerate(given):
        if _on_gpu(value):
            values[at].copy_(value.detach().reshape(()), non_blocking=True)
        elif value is not None:
            values[at] = value
    missing = tuple(at for at, value in enumerate(given) if value is None)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    return _Pending(step, time.monotonic(), tokens, values, names, arrived, missing)
