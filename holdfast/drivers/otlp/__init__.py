"""OpenTelemetry: incidents as traces, and what a controller says as logs, over OTLP/HTTP."""
