"""The parts of OpenTelemetry's SDK that are used: its exporters, its shapes and its resource.

Spans are made as finished facts, not by a tracer: an incident is told when it is over, with ids and
times of the journal. Imported only where a job asks for it. Text leaves for somebody else's
service, so secrets are taken out of it.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from opentelemetry import trace as api
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import _log_exporter, trace_exporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from holdfast import __version__
from holdfast.drivers.notices import Notice
from holdfast.drivers.otlp.export_queue import ExportQueue
from holdfast.drivers.otlp.traces import (
    FAILED,
    Attributes,
    IncidentTrace,
    JobIdentity,
    SpanFacts,
    nanoseconds,
    root_of,
)
from holdfast.drivers.talk import say_aside
from holdfast.masking import masker
from holdfast.spec import Job
from holdfast.spec.otlp import HEADERS_VARIABLE, Otlp, Signal

SCOPE = InstrumentationScope("holdfast", __version__)
SPOKEN = "http/protobuf"
DEFAULT_ENDPOINT = "http://localhost:4318"
ITSELF = ("opentelemetry", "urllib3", "requests")  # whose log would feed itself
HEADERS_READER = "opentelemetry.util.re"


class Sending:
    """The queues of one job. `taken` is called, in another thread, with the incidents whose
    spans have been taken."""

    def __init__(self, job: Job, identity: JobIdentity, taken: Callable[[set[int]], None]) -> None:
        assert job.otlp is not None
        for words in _unheeded(job.otlp):
            say_aside(f"otlp: {words}")
        self._id, self._taken = identity, taken
        self._mask = masker({**os.environ, **job.env, **_header_values(os.environ)})
        logging.getLogger(HEADERS_READER).addFilter(_quote_no_header)
        self._resource = resource_of(job.name, os.environ)
        self._traces = self._logs = None
        if _is_on(job.otlp, "traces"):
            self._traces = self._trace_queue(job.otlp)
        if _is_on(job.otlp, "logs"):
            self._logs = self._log_queue(job.otlp)
        self._warnings = Warnings(self._put)
        logging.getLogger().addHandler(self._warnings)
        for queue in self._queues():
            queue.begin()

    def _queues(self) -> list[ExportQueue[Any]]:
        return [queue for queue in (self._traces, self._logs) if queue is not None]

    def close(self, within_s: float) -> None:
        """Deliver what waits, within that time for all."""
        logging.getLogger().removeHandler(self._warnings)
        until = time.monotonic() + within_s
        for queue in self._queues():
            queue.end()
        for queue in self._queues():
            queue.close(max(0.0, until - time.monotonic()))

    def incident(self, trace: IncidentTrace) -> None:
        """An incident that is over."""
        if self._traces is not None:
            self._traces.put([self._spans(trace)])

    def notice(self, notice: Notice) -> None:
        """An incident has begun or is over, the job waits, or has ended."""
        facts = {
            "holdfast.attempt": notice.attempt,
            "holdfast.step": notice.step,
            "holdfast.incident": notice.incident,
            "holdfast.verdict": notice.cause,
            "holdfast.node": notice.node,
            "holdfast.rank": notice.rank,
            "holdfast.steps_lost": notice.steps_lost,
            "holdfast.outcome": notice.outcome,
            "holdfast.ettr": notice.ettr,
        }
        known = {name: value for name, value in facts.items() if value is not None}
        severity = SeverityNumber.INFO if notice.over else SeverityNumber.WARN
        if notice.outcome in FAILED:
            severity = SeverityNumber.ERROR
        self._put(
            notice.text, severity, notice.incident, at=notice.at, attributes=known,
            event=f"holdfast.{notice.event}",
        )  # fmt: skip

    def line(self, text: str, incident: int | None) -> None:
        """A line of the controller's log."""
        self._put(text, SeverityNumber.INFO, incident)

    def _put(
        self,
        text: str,
        severity: SeverityNumber,
        incident: int | None = None,
        *,
        at: float | None = None,
        attributes: Attributes | None = None,
        event: str | None = None,
    ) -> None:
        if self._logs is None:
            return
        context = None
        if incident is not None:
            trace = self._id.trace(incident)
            span = api.NonRecordingSpan(_context(trace, root_of(trace)))
            context = api.set_span_in_context(span)
        record = LogRecord(
            timestamp=nanoseconds(time.time() if at is None else at),
            context=context,
            severity_text=severity.name,
            severity_number=severity,
            body=self._mask(text),
            attributes={"holdfast.job": self._id.name, **self._masked(attributes or {})},
            event_name=event,
        )
        self._logs.put([ReadableLogRecord(record, self._resource, SCOPE)])

    def _trace_queue(self, otlp: Otlp) -> ExportQueue[list[ReadableSpan]]:
        """Of whole traces: one that is dropped is dropped with all its spans."""
        exporter = trace_exporter.OTLPSpanExporter(_endpoint(otlp, "traces"), headers=otlp.headers)

        def export(traces: Sequence[list[ReadableSpan]]) -> bool:
            spans = [span for trace in traces for span in trace]
            return exporter.export(spans) is SpanExportResult.SUCCESS

        def taken(traces: Sequence[list[ReadableSpan]]) -> None:
            roots = (trace[0].attributes or {} for trace in traces)
            numbers = (root["holdfast.incident"] for root in roots)
            self._taken({number for number in numbers if isinstance(number, int)})

        return ExportQueue(
            _words(otlp, "traces"), export, trace_exporter.__name__, self._say, taken
        )

    def _log_queue(self, otlp: Otlp) -> ExportQueue[ReadableLogRecord]:
        exporter = _log_exporter.OTLPLogExporter(_endpoint(otlp, "logs"), headers=otlp.headers)

        def export(records: Sequence[ReadableLogRecord]) -> bool:
            return exporter.export(records) is LogRecordExportResult.SUCCESS

        return ExportQueue(_words(otlp, "logs"), export, _log_exporter.__name__, self._say)

    def _say(self, text: str) -> None:
        say_aside(self._mask(text))

    def _spans(self, trace: IncidentTrace) -> list[ReadableSpan]:
        """The root first."""
        root, fine = _context(trace.id, trace.root.id), api.Status()
        failed = api.Status(api.StatusCode.ERROR, self._mask(trace.error))
        made = [self._span(trace.root, root, None, failed if trace.error else fine)]
        for bucket in trace.buckets:
            made.append(self._span(bucket, _context(trace.id, bucket.id), root, fine))
        return made

    def _span(
        self,
        facts: SpanFacts,
        context: api.SpanContext,
        parent: api.SpanContext | None,
        status: api.Status,
    ) -> ReadableSpan:
        return ReadableSpan(
            facts.name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=self._masked(facts.attributes),
            events=[
                Event(one.name, self._masked(one.attributes), nanoseconds(one.at))
                for one in facts.moments
            ],
            status=status,
            start_time=facts.start_ns,
            end_time=facts.end_ns,
            instrumentation_scope=SCOPE,
        )

    def _masked(self, attributes: Attributes) -> dict[str, Any]:
        return {k: self._mask(v) if isinstance(v, str) else v for k, v in attributes.items()}


class Warnings(logging.Handler):
    """What libraries warn of, such as a task whose exception nobody has looked at."""

    def __init__(self, put: Callable[[str, SeverityNumber], None]) -> None:
        super().__init__(logging.WARNING)
        self._put = put

    def emit(self, record: logging.LogRecord) -> None:
        """Export it; where nobody else prints it, it is printed as before."""
        if logging.getLogger().handlers == [self] and logging.lastResort is not None:
            logging.lastResort.handle(record)
        if record.name.partition(".")[0] not in ITSELF:
            grave = record.levelno >= logging.ERROR
            self._put(self.format(record), SeverityNumber.ERROR if grave else SeverityNumber.WARN)


def resource_of(job: str, environ: Mapping[str, str]) -> Resource:
    """Who tells. Another name of the service, and more, may stand in OpenTelemetry's variables."""
    known = {
        "service.name": "holdfast",
        "service.version": __version__,
        "holdfast.job": job,
        "k8s.namespace.name": environ.get("HOLDFAST_NAMESPACE"),
        "k8s.pod.name": environ.get("HOLDFAST_POD"),
    }
    if {"OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"} & environ.keys():
        named = Resource.create().attributes.get("service.name", "")
        if not str(named).startswith("unknown_service"):
            del known["service.name"]
    return Resource.create({name: value for name, value in known.items() if value})


def _quote_no_header(record: logging.LogRecord) -> bool:
    """What is quoted, because it cannot be read, is a secret all the same."""
    record.msg = f"{HEADERS_VARIABLE}: a header is not in the form name=value; it is not sent"
    record.args = ()
    return True


def _header_values(environ: Mapping[str, str]) -> dict[str, str]:
    """Each header's value by a name that is one of a secret."""
    return {
        f"{name}_{number}_SECRET": unquote(header.partition("=")[2]).strip()
        for name, value in environ.items()
        if name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("HEADERS")
        for number, header in enumerate(value.split(","))
    }


def _context(trace: int, span: int) -> api.SpanContext:
    return api.SpanContext(trace, span, False, api.TraceFlags(api.TraceFlags.SAMPLED))


def _endpoint(otlp: Otlp, signal: Signal) -> str | None:
    """None: the exporter asks the variables."""
    return f"{otlp.endpoint.rstrip('/')}/v1/{signal}" if otlp.endpoint else None


def _words(otlp: Otlp, signal: Signal) -> str:
    """What goes where, of the URL no more than the host: the rest may be a secret."""
    variables = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    found = [otlp.endpoint, *map(os.environ.get, variables), DEFAULT_ENDPOINT]
    url = next(one for one in found if one)
    try:
        place = urlsplit(url).hostname
    except ValueError:
        place = None
    return f"otlp {signal} ({place or 'its endpoint is not valid'})"


def _unheeded(otlp: Otlp) -> Iterator[str]:
    """What was asked for and cannot be had."""
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", SPOKEN)
    if protocol != SPOKEN:
        yield f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}, and only {SPOKEN} is supported"
    if otlp.headers_secret is not None and not os.environ.get(HEADERS_VARIABLE):
        yield f"headers_secret: {HEADERS_VARIABLE} is not set; requests go without its headers"


def _is_on(otlp: Otlp, signal: Signal) -> bool:
    """Asked for, and not switched off by OpenTelemetry's variable."""
    return signal in otlp.signals and os.environ.get(f"OTEL_{signal.upper()}_EXPORTER") != "none"
