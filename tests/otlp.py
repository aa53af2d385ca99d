"""A receiver of OpenTelemetry over HTTP: what it got, as OpenTelemetry's own protocol reads it."""

from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.receiving import Receiving

REQUESTS: dict[str, Any] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


class OtlpReceiver(Receiving):
    """Takes traces and logs."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(lambda path, body: REQUESTS[path].FromString(body), port)

    def spans(self) -> list[Span]:
        """All spans, in the order in which they came."""
        found = [request for path, request in list(self.got) if path == "/v1/traces"]
        scopes = [scope for one in found for r in one.resource_spans for scope in r.scope_spans]
        return [span for scope in scopes for span in scope.spans]

    def roots(self) -> list[Span]:
        """The incidents."""
        return [span for span in self.spans() if not span.parent_span_id]

    def logs(self) -> list[LogRecord]:
        """All log records."""
        found = [request for path, request in list(self.got) if path == "/v1/logs"]
        scopes = [scope for one in found for r in one.resource_logs for scope in r.scope_logs]
        return [record for scope in scopes for record in scope.log_records]

    def resources(self) -> list[dict[str, Any]]:
        """Of each request: who has sent it."""
        kinds = {"/v1/traces": "resource_spans", "/v1/logs": "resource_logs"}
        return [
            attributes(one.resource.attributes)
            for path, request in list(self.got)
            for one in getattr(request, kinds[path])
        ]


def attributes(pairs: Any) -> dict[str, Any]:
    """As a dictionary."""
    return {pair.key: _value(pair) for pair in pairs}


def _value(pair: KeyValue) -> Any:
    value = getattr(pair.value, pair.value.WhichOneof("value") or "string_value")
    return [one.string_value for one in value.values] if hasattr(value, "values") else value


def events(span: Span) -> list[str]:
    """The names of its events, in order."""
    return [event.name for event in span.events]
