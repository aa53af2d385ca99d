"""Exports a job's incidents and its controller's log, beside the controller and never in its way.

What a receiver has taken is in `telemetry.json` beside the journal: a controller that resumes sends
what was over and not taken yet, and nothing twice.
"""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.actions import Entry
from holdfast.controller import State
from holdfast.drivers.job_books import JobBooks
from holdfast.drivers.notices import Notices, ToldOf, dated
from holdfast.drivers.otlp.traces import JobIdentity, Moments, on_the_wall, settled, trace_of
from holdfast.drivers.records import write_private
from holdfast.drivers.talk import LISTENER, say_aside
from holdfast.errors import Error
from holdfast.replay import until_damage
from holdfast.shell.supervision import keep_running
from holdfast.spec import Job
from holdfast.spec.notify import Notify

if TYPE_CHECKING:
    from holdfast.drivers.otlp.sending import Sending

FILE = "telemetry.json"
LAST_S = 5.0  # for the end of the job to be delivered
LOOK_S = 1.0  # until the next look while something is to be told once it lasts
EVERY_NOTICE = Notify(url="http://otlp", after_s=0.001, at_most_per_hour=3600)
"""Incidents as they begin and end, waiting, and the end of the job."""


class TelemetryTold(msgspec.Struct, kw_only=True):
    """What a receiver knows already, of the life of the job that began then."""

    started_ms: int = 0
    traces: set[int] = set()
    """Incidents whose spans it has taken."""
    logs: ToldOf = msgspec.field(default_factory=ToldOf)


def is_installed() -> bool:
    """Whether the packages of the extra are there."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def require_exporter(job: Job) -> None:
    """Raise `Error` otlp-missing if this job asks for what is not installed."""
    if job.otlp is not None and not is_installed():
        raise Error(
            "otlp-missing",
            "OpenTelemetry, which the job file asks for (otlp), is not installed",
            why="traces and logs are exported by the packages opentelemetry-sdk and "
            "opentelemetry-exporter-otlp-proto-http",
            help="pip install 'holdfast[otel]'   (or remove otlp from the job file)",
        )


class Telemetry:
    """What one job exports, if it asks for that. `clock` is the controller's."""

    def __init__(
        self,
        job: Job,
        state: State,
        books: JobBooks,
        journal_path: Path,
        clock: Callable[[], float],
    ) -> None:
        self._job, self._state, self._books, self._clock = job, state, books, clock
        self._journal = journal_path
        price = job.cost.gpu_hour if job.cost is not None else None
        self._id = JobIdentity(job.name, books.ledger().start_ms, price)
        self._told, self._kept = _known(self._journal.with_name(FILE), self._id.started_ms), ""
        self._given: set[int] = set()  # incidents whose spans wait, or are taken
        self._moments, self._unsettled = Moments(), False
        self._notices = Notices(job.name, EVERY_NOTICE, self._told.logs)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._sending: Sending | None = None

    def begin(self) -> None:
        """A controller has begun; from now on what it says is heard, too."""
        if self._job.otlp is None or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return
        if not is_installed():  # a controller's image; `holdfast run` refuses
            say_aside("otlp: OpenTelemetry is not installed here: nothing is exported")
            return
        loop = asyncio.get_running_loop()

        def taken(incidents: set[int]) -> None:
            self._told.traces |= incidents
            with suppress(RuntimeError):  # the loop is closed: `close` has waited long enough
                loop.call_soon_threadsafe(self._changed.set)

        try:
            from holdfast.drivers.otlp.sending import Sending

            self._sending = Sending(self._job, self._id, taken)
        except Exception as error:  # of a variable that the exporters cannot use
            say_aside(f"otlp: nothing is exported: {type(error).__name__}: {error}")
            return
        self._resume()
        LISTENER.set(self._said)
        self._task = asyncio.create_task(keep_running("exporting", self._run, say_aside))

    def heard(self, entry: Entry) -> None:
        """Something has been decided."""
        if self._sending is not None:
            self._moments.hear(entry)
            self._changed.set()

    async def close(self) -> None:
        """Export the end, if it has come, and what waits; within a bound."""
        if self._task is None or self._sending is None:
            return
        try:
            self._look()
        except Exception as error:  # the end of a job does not hang on what is told of it
            say_aside(f"otlp: the end is not exported: {type(error).__name__}: {error}")
        LISTENER.set(None)
        self._task.cancel()
        await asyncio.to_thread(self._sending.close, LAST_S)
        self._keep()

    def _resume(self) -> None:
        """Where nothing is known of what was taken, what is over counts as such."""
        if not self._told.started_ms:
            self._told.started_ms = self._id.started_ms
            self._told.traces = {one.id for one in self._state.incidents if one.ended_at}
        self._notices.resume(self._state)
        if any(one.id not in self._told.traces for one in self._state.incidents):
            for entry in until_damage(self._journal):
                self._moments.hear(entry)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self._look()
            pending = self._notices.next_look(self._state) is not None or self._unsettled
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LOOK_S if pending else None)

    def _look(self) -> None:
        """Export what is new, and write down what is known to be taken."""
        assert self._sending is not None
        ettr = self._books.goodput().ettr if self._state.ended else 0.0
        now = self._clock()
        for notice in self._notices.look(self._state, ettr, now):
            self._sending.notice(dated(notice, time.time() - now))
        done, known = settled(self._state, now), self._told.traces | self._given
        if new := [one for one in done if one.id not in known]:
            ledger = self._books.ledger()
            for one in new:
                trace = trace_of(one, self._state, ledger, self._moments, self._id)
                self._sending.incident(on_the_wall(trace, time.time() - now))
                self._given.add(one.id)
        self._unsettled = len(done) < len(self._state.incidents)
        if not self._unsettled:
            self._moments.forget()
        self._keep()

    def _keep(self) -> None:
        told = msgspec.json.encode(self._told).decode()
        if told == self._kept:
            return
        self._kept = told
        try:
            write_private(self._journal.with_name(FILE), told)
        except OSError as error:
            say_aside(f"{FILE} cannot be written: {error.strerror}")

    def _said(self, text: str) -> None:
        """A line of the controller's log, which belongs to the incident that is open."""
        incident = self._state.open_incident
        if self._sending is not None:
            self._sending.line(text, incident.id if incident is not None else None)


def _known(file: Path, started_ms: int) -> TelemetryTold:
    """What receivers have taken from former controllers of this life of the job; nothing if that is
    not known."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=TelemetryTold)
    except (OSError, msgspec.MsgspecError):
        return TelemetryTold()
    return found if found.started_ms == started_ms else TelemetryTold()
