"""Where OpenTelemetry goes to."""

from typing import Annotated, Literal

from pydantic import Field

from holdfast.spec.notify import SecretKey
from holdfast.spec.section import Section

Signal = Literal["traces", "logs"]
Header = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}$")]
HeaderValue = Annotated[str, Field(pattern=r"^[!-~]([ -~]*[!-~])?$", max_length=4000)]

HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"
"""Where the exporter looks for headers, and where the controller's pod has those of a Secret."""


class Otlp(Section):
    """OpenTelemetry, sent by the controller over OTLP/HTTP. What is not said here is taken from the
    standard variables `OTEL_EXPORTER_OTLP_*` of its environment."""

    endpoint: Annotated[str, Field(pattern=r"^https?://[^\s/?#]+[^\s?#]*$")] | None = None
    """Base URL of the receiver, such as `http://collector:4318`; `/v1/traces` and `/v1/logs` are
    added. Default: what the variables say, else `http://localhost:4318`."""
    headers: dict[Header, HeaderValue] = {}
    """Headers of every request that are no secrets, such as the name of a tenant."""
    headers_secret: SecretKey | None = None
    """Secret that contains headers, as `name=value,name=value`. On Kubernetes; for local jobs set
    OTEL_EXPORTER_OTLP_HEADERS."""
    signals: tuple[Signal, ...] = Field(default=("traces", "logs"), min_length=1)
    """`traces`: one for each incident. `logs`: what the controller says, and the incidents."""
