"""What Prometheus scrapes from a controller: the job's status, ledger and incidents as series.

Worked out when it is scraped, on the loop of its host, from what is known anyhow: counters from the
journal, so that the next controller goes on with them; gauges also from telemetry. Nothing of it is
heard by the controller, and a job without a scraper pays nothing.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.controller import State, conditions, skipping
from holdfast.controller.incidents import node_of
from holdfast.controller.phases import Phase
from holdfast.controller.state import IncidentRecord
from holdfast.detection.progress import ProgressReducer
from holdfast.drivers.job_books import JobBooks
from holdfast.history import told
from holdfast.messages import WorkerReport
from holdfast.monitoring.table import JOB_LABEL, METRICS
from holdfast.scrape import (
    NOT_FOUND,
    DurationTally,
    Exposition,
    ScrapePage,
    WrittenLines,
    serve,
)
from holdfast.slow_ranks import SlowBy
from holdfast.spec import Job
from holdfast.status import JobStatus

RATE_S = 60.0  # over which throughput is taken
RATE_STEP_S = 1.0  # between two points of it
SLOWEST = 4  # ranks that have a series of their own
HOUR_S = 3600.0
BILLION = 1e9
AGAIN_S = 30.0  # between two tries to listen on a port that is taken


class JobMetrics:
    """Of one job, under one controller. `progress`: what its ranks have reported; `clock` is the
    controller's, `wall` what scrapers compare times with."""

    def __init__(
        self,
        job: Job,
        state: State,
        books: JobBooks,
        progress: ProgressReducer,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._job, self._state, self._books = job, state, books
        self._progress, self._clock, self._wall = progress, clock, wall
        self._throughput, self._lines = Throughput(), WrittenLines()

    def exposition(self) -> Exposition:
        """Every series, as of now."""
        found, workers = Exposition(lines=self._lines), self._progress.newest()
        status = self._books.status()
        rate = self._throughput.observe(self._clock(), status.attempt, workers.values())
        _add_state(found, self._state, status)
        _add_training(found, status, workers.get(0))
        stepped_at = self._progress.stepped_at or self._state.started_at
        ahead_s = round(self._wall() - self._clock(), 1)  # the same at each scrape
        found.add("holdfast_last_step_timestamp_seconds", stepped_at + ahead_s)
        _add_throughput(found, rate, self._state.world_size)
        self._add_cost(found, status, rate)
        _add_slowest(found, self._state)
        self._add_goodput(found)
        _add_incidents(found, self._state)
        _add_tiers(found, status)
        return found

    def _add_goodput(self, found: Exposition) -> None:
        account = self._books.goodput()
        for bucket, seconds in self._books.counters.seconds().items():
            found.add("holdfast_time_seconds", seconds, bucket=bucket)
        found.add("holdfast_ettr_ratio", account.ettr, window="all")
        found.add("holdfast_ettr_ratio", account.ettr_1h, window="1h")
        found.add("holdfast_steps", self._books.counters.steps)

    def _add_cost(self, found: Exposition, status: JobStatus, rate: float | None) -> None:
        if self._job.cost is None:
            return
        waiting = len(self._state.spares) * self._state.workers_per_node
        hourly = self._job.cost.gpu_hour * (self._state.world_size + waiting)
        found.add("holdfast_cost_per_hour", hourly)
        if status.step_time_s is not None:
            found.add("holdfast_cost_per_step", hourly / HOUR_S * status.step_time_s)
        if rate:
            found.add("holdfast_cost_per_billion_tokens", hourly / HOUR_S / rate * BILLION)


class Throughput:
    """Tokens per second of all ranks together, from their counts in the attempt."""

    def __init__(self) -> None:
        self._attempt = 0
        self._points: deque[tuple[float, int]] = deque()

    def observe(self, now: float, attempt: int, reports: Iterable[WorkerReport]) -> float | None:
        """The rate of the last minute, or since it was first asked for; None is not known yet."""
        if attempt != self._attempt:
            self._attempt = attempt
            self._points.clear()
        tokens, points = sum(report.tokens for report in reports), self._points
        if points and now < points[0][0]:
            points.clear()  # the clock was set back
        if not points or now - points[-1][0] >= RATE_STEP_S:
            points.append((now, tokens))
        while len(points) > 2 and now - points[1][0] >= RATE_S:
            points.popleft()
        if len(points) < 2 or not points[-1][1]:
            return None
        (since, before), (until, after) = points[0], points[-1]
        return max(0, after - before) / (until - since)


def _add_state(found: Exposition, state: State, status: JobStatus) -> None:
    for phase in Phase:
        found.add("holdfast_phase", float(status.phase == str(phase)), phase=str(phase))
    found.add("holdfast_attempt", status.attempt)
    found.add("holdfast_nodes", len(state.ranks))
    found.add("holdfast_nodes_wanted", state.target)
    found.add("holdfast_workers", state.world_size)
    found.add("holdfast_spares", conditions.sound_spares(state))
    found.add("holdfast_spares_wanted", state.limits.spare_count)
    for node in status.nodes:
        found.add("holdfast_node_state", 1, node=node.name, state=node.state)
        standing = {(one.condition, one.severity) for one in node.conditions}
        for condition, severity in sorted(standing):
            labels = {"node": node.name, "condition": condition, "severity": severity}
            found.add("holdfast_node_condition", 1, **labels)


def _add_training(found: Exposition, status: JobStatus, first: WorkerReport | None) -> None:
    found.add("holdfast_step", status.step)
    found.add("holdfast_last_planned_step", status.steps_total)
    found.add("holdfast_last_step_duration_seconds", status.step_time_s)
    found.add("holdfast_loss", status.loss if status.loss_is is None else float(status.loss_is))
    found.add("holdfast_grad_norm", None if first is None else first.grad_norm)
    found.add("holdfast_snapshot_step", status.snapshot_step)
    found.add("holdfast_snapshot_interval_steps", status.snapshot_every)
    found.add("holdfast_snapshot_age_seconds", status.snapshot_age_s)
    found.add("holdfast_snapshot_duration_seconds", status.snapshot_took_s)
    found.add("holdfast_snapshot_bytes", status.snapshot_bytes)


def _add_throughput(found: Exposition, rate: float | None, workers: int) -> None:
    found.add("holdfast_tokens_per_second", rate)
    if rate is not None and workers:
        found.add("holdfast_worker_tokens_per_second", rate / workers)


def _add_slowest(found: Exposition, state: State) -> None:
    ranks = [one for one in state.stragglers if one.cause is not SlowBy.STAGE]
    for one in sorted(ranks, key=lambda one: -one.share)[:SLOWEST]:
        node = node_of(state, one.rank)
        found.add("holdfast_straggler_ratio", one.share, node=node, rank=str(one.rank))


def _add_incidents(found: Exposition, state: State) -> None:
    """Of those that are over, whose cause and times are certain."""
    over = [one for one in state.incidents if one.ended_at is not None or state.ended]
    causes: dict[str, int] = {}
    for one in over:
        causes[one.cause] = causes.get(one.cause, 0) + 1
    for cause, count in sorted(causes.items()):
        found.add("holdfast_incidents", count, cause=cause)
    found.add("holdfast_incident_open", float(len(over) < len(state.incidents)))
    found.add("holdfast_restarts", state.restarts_count)
    found.add("holdfast_batches_skipped", skipping.count(state))
    found.add("holdfast_steps_redone", sum(one.steps_lost for one in over))
    spans = _spans(over)
    found.add_tally("holdfast_detect_seconds", spans.detect)
    found.add_tally("holdfast_recover_seconds", spans.recover)


class _Spans(NamedTuple):
    detect: DurationTally
    recover: DurationTally


def _spans(over: Iterable[IncidentRecord]) -> _Spans:
    bounds = METRICS["holdfast_detect_seconds"].bounds
    spans = _Spans(DurationTally(bounds), DurationTally(bounds))
    for one in over:
        spans.detect.add(max(0.0, one.detected_at - one.started_at))
        if one.ended_at is not None:
            spans.recover.add(max(0.0, one.ended_at - one.detected_at))
    return spans


def _add_tiers(found: Exposition, status: JobStatus) -> None:
    for one in status.checkpoints:
        found.add("holdfast_checkpoints", one.commits_count, tier=one.tier)
        found.add("holdfast_checkpoint_failures", one.failures_count, tier=one.tier)
        found.add("holdfast_checkpoint_failing", float(one.failures > 0), tier=one.tier)
        found.add("holdfast_checkpoint_interval_seconds", one.every_s, tier=one.tier)
        if one.step is not None:
            found.add("holdfast_checkpoint_step", one.step, tier=one.tier)
            found.add("holdfast_checkpoint_age_seconds", one.age_s, tier=one.tier)
            found.add("holdfast_checkpoint_duration_seconds", one.seconds, tier=one.tier)
            found.add("holdfast_checkpoint_bytes", one.bytes, tier=one.tier)


# ── over HTTP ──


class MetricsServer:
    """Hands out `/metrics` and, for Prometheus to find the agents, `/targets`; of a `folder` also
    the figures that are kept there, for the page of a cluster."""

    def __init__(
        self, job: str, look: Callable[[], Exposition], folder: Path | None = None
    ) -> None:
        self._job, self._look, self._folder = job, look, folder
        self._server: asyncio.Server | None = None
        self._trying: asyncio.Task[None] | None = None
        self.agents: Callable[[], list[str]] = list  # HOST:PORT of each

    async def open(self, host: str, port: int, say: Callable[[str], None]) -> None:
        """Port 0: any. Training goes on without metrics where the port is taken, until it is
        free."""
        if why := await self._opened(host, port):
            told = "retrying; training is not affected"
            say(f"no metrics: cannot listen on port {port} ({why}); {told}")
            self._trying = asyncio.create_task(self._again(host, port, say))

    async def _opened(self, host: str, port: int) -> str:
        """Why not; empty: it answers."""
        try:
            self._server = await serve(host, port, self._answer)
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error)
        return ""

    async def _again(self, host: str, port: int, say: Callable[[str], None]) -> None:
        while self._server is None:
            await asyncio.sleep(AGAIN_S)
            await self._opened(host, port)
        say(f"metrics: listening on port {port}")

    def close(self) -> None:
        """Answer no more."""
        if self._trying is not None:
            self._trying.cancel()
        if self._server is not None:
            self._server.close()

    @property
    def address(self) -> str | None:
        """HOST:PORT; None where it does not answer."""
        if self._server is None or not self._server.sockets:
            return None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def _answer(self, path: str, accept: str) -> ScrapePage:
        match path:
            case "/metrics":
                return self._look().page(accept)
            case "/targets":
                targets = [self.address or "", *self.agents()]
                found = [{"targets": targets, "labels": {JOB_LABEL: self._job}}]
                return ScrapePage(200, msgspec.json.encode(found), "application/json")
            case _ if self._folder is not None and (figures := told(self._folder, path)):
                return ScrapePage(200, *figures)
            case _:
                return NOT_FOUND
