"""What is scraped as protobuf is what Prometheus' own messages say, and Prometheus takes it."""

import json
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from hypothesis import given
from hypothesis import strategies as st

from holdfast.monitoring.protobuf import native_bucket
from holdfast.monitoring.table import METRICS
from holdfast.scrape import DurationTally, Exposition
from tests.monitoring.prometheus import prometheus
from tests.patience import until

ASKS = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
MESSAGES = {
    "LabelPair": "1 name string, 2 value string",
    "Number": "1 value double",
    "BucketSpan": "1 offset sint32, 2 length uint32",
    "Bucket": "1 cumulative_count uint64, 2 upper_bound double",
    "Histogram": "1 sample_count uint64, 2 sample_sum double, 3 bucket *Bucket, 5 schema sint32, "
    "6 zero_threshold double, 7 zero_count uint64, 12 positive_span *BucketSpan, "
    "13 positive_delta *sint64",
    "Metric": "1 label *LabelPair, 2 gauge Number, 3 counter Number, 7 histogram Histogram",
    "MetricFamily": "1 name string, 2 help string, 3 type int32, 4 metric *Metric",
}
"""Of prometheus/client_model's metrics.proto: what is used of it. `*`: repeated."""


def family_type() -> Any:
    """The class of MetricFamily, made by the protobuf library."""
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="m", syntax="proto2")
    field_type = descriptor_pb2.FieldDescriptorProto
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind in (one.split() for one in fields.split(", ")):
            made = message.field.add(name=field, number=int(number))
            repeated = kind.startswith("*")
            made.label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            kind = kind.removeprefix("*")
            if kind in MESSAGES:
                made.type, made.type_name = field_type.TYPE_MESSAGE, f".m.{kind}"
            else:
                made.type = field_type.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("m.MetricFamily"))


FAMILY = family_type()


def families(body: bytes) -> dict[str, Any]:
    """Each has its length in front of it."""
    found, at = {}, 0
    while at < len(body):
        size = shift = 0
        while True:
            byte = body[at]
            size |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        one = FAMILY.FromString(body[at : at + size])
        found[one.name] = one
        at += size
    return found


def exposition(*seconds: float) -> Exposition:
    found = Exposition({"node": "n"})
    tally = DurationTally(METRICS["holdfast_step_duration_seconds"].bounds)
    for one in seconds:
        tally.add(one)
    found.add_tally("holdfast_step_duration_seconds", tally)
    found.add("holdfast_node_tokens", 7)
    found.add("holdfast_gpu_power_watts", -0.5, gpu="a")
    return found


def native(histogram: Any) -> dict[int, int]:
    """Bucket → count, as client libraries read spans and deltas."""
    found, index, count, deltas = {}, 0, 0, iter(histogram.positive_delta)
    for span in histogram.positive_span:
        index += span.offset
        for _ in range(span.length):
            count += next(deltas)
            found[index] = count
            index += 1
    return found


def test_a_scraper_that_would_rather_have_protobuf_gets_it_and_nobody_else() -> None:
    page = exposition(0.3).page
    assert page(ASKS).kind.startswith("application/vnd.google.protobuf")
    last = "text/plain,application/vnd.google.protobuf;encoding=delimited;q=0.3"
    for accept in (last, "", "*/*", "application/vnd.google.protobuf;encoding=text", "a;q=x"):
        assert "protobuf" not in page(accept).kind


def test_every_kind_of_series_is_in_its_message() -> None:
    found = families(exposition(0.3).page(ASKS).body)
    assert [one.type for one in found.values()] == [0, 4, 1]
    tokens = found["holdfast_node_tokens_total"]
    assert (
        tokens.metric[0].counter.value == 7 and tokens.help == METRICS["holdfast_node_tokens"].help
    )
    power = found["holdfast_gpu_power_watts"].metric[0]
    assert power.gauge.value == -0.5
    assert {pair.name: pair.value for pair in power.label} == {"gpu": "a", "node": "n"}


@given(st.lists(st.floats(0, 1e7), max_size=40))
def test_whatever_was_counted_is_in_the_native_and_in_the_classic_buckets(
    seconds: list[float],
) -> None:
    page = exposition(*seconds).page(ASKS)
    histogram = families(page.body)["holdfast_step_duration_seconds"].metric[0].histogram
    assert histogram.sample_count == len(seconds) == histogram.bucket[-1].cumulative_count
    assert histogram.sample_sum == pytest.approx(sum(seconds))
    for bucket in histogram.bucket:
        assert bucket.cumulative_count == sum(one <= bucket.upper_bound for one in seconds)
    growth = 2 ** (2**-histogram.schema)
    found = native(histogram)
    assert histogram.zero_count == sum(one <= histogram.zero_threshold for one in seconds)
    assert sum(found.values()) + histogram.zero_count == len(seconds)
    for one in seconds:
        index = native_bucket(one)
        assert index is None or (
            found[index] and growth ** (index - 1) * 0.999999 <= one <= growth**index * 1.000001
        )


@pytest.mark.parametrize(("value", "bucket"), [(1.0, 0), (1.0000001, 1), (0.5, -8), (2.0, 8)])
def test_a_value_on_a_bound_belongs_below_it(value: float, bucket: int) -> None:
    assert native_bucket(value) == bucket


@pytest.fixture
def scraped() -> Iterator[str]:
    """HOST:PORT of a server that answers as an agent does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = exposition(*(0.2 for _ in range(99)), 7.0).page(self.headers["Accept"])
            self.send_response(page.status)
            self.send_header("Content-Type", page.kind)
            self.end_headers()
            self.wfile.write(page.body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@prometheus
@pytest.mark.slow
def test_a_real_prometheus_takes_native_histograms(scraped: str, tmp_path: Path) -> None:
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "a", "static_configs": [{"targets": [scraped]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        here = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        ["prometheus", "--config.file", tmp_path / "prometheus.yml", "--storage.tsdb.path",
         tmp_path / "data", "--web.listen-address", here, "--enable-feature=native-histograms"],
        stdout=subprocess.DEVNULL, stderr=(tmp_path / "prometheus.log").open("wb"),
    )  # fmt: skip
    try:
        found: list[float] = []

        def answered() -> bool:
            query = "histogram_quantile(0.5, holdfast_step_duration_seconds)"
            text = urllib.parse.urlencode({"query": query})
            try:
                with urllib.request.urlopen(f"http://{here}/api/v1/query?{text}") as answer:
                    result = json.load(answer)["data"]["result"]
            except OSError:
                return False
            found.extend(float(one["value"][1]) for one in result)
            return bool(found)

        assert until(answered), (tmp_path / "prometheus.log").read_text()
        assert 0.18 < found[0] < 0.21, "a classic bucket would say 0.15"
    finally:
        process.kill()
        process.wait()
