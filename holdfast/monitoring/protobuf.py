"""Series in Prometheus' protobuf format, which is the only one with native histograms.

A native histogram has no bounds that somebody chose: its buckets grow by a constant factor (here
2^(1/8), 9 %), and only those that something fell into are sent. The few messages that are needed
(io.prometheus.client.MetricFamily of github.com/prometheus/client_model) are written here: the
protobuf library would be one more package in every image that trains, in a version of its choosing.
"""

import bisect
import math
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from holdfast.monitoring.table import Kind

CONTENT_TYPE = (
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)
SCHEMA = 3  # 2^3 buckets for each power of two
ZERO_THRESHOLD = 2.0**-128  # what is not above it is zero; it also marks the histogram as native
_BOUNDS = [0.5 * 2 ** (i / 2**SCHEMA) for i in range(2**SCHEMA)]
_KINDS: dict[Kind, int] = {"counter": 0, "gauge": 1, "histogram": 4}
_VALUE = {"counter": 3, "gauge": 2}  # field of a metric
_VARINT, _DOUBLE, _BYTES = 0, 1, 2


class HistogramFacts(NamedTuple):
    """What was counted: into classic buckets (upper bound → how many up to it), and natively."""

    classic: tuple[tuple[float, int], ...]
    native: Mapping[int, int]  # bucket → how many; those of zero are not in it
    zero_count: int
    sum: float


class MetricFacts(NamedTuple):
    """One series."""

    labels: Mapping[str, str]
    value: float | HistogramFacts


def native_bucket(value: float) -> int | None:
    """The bucket of a value: that with the bounds (2^((i-1)/8), 2^(i/8)]; None for zero."""
    if value <= ZERO_THRESHOLD:
        return None
    fraction, exponent = math.frexp(value)
    return bisect.bisect_left(_BOUNDS, fraction) + (exponent - 1) * len(_BOUNDS)


def family(name: str, told: str, kind: Kind, metrics: Iterable[MetricFacts]) -> bytes:
    """All series of a name, with their length in front."""
    body = _text(1, name) + _text(2, told) + _whole(3, _KINDS[kind])
    body += b"".join(_bytes(4, _metric(kind, one)) for one in metrics)
    return _varint(len(body)) + body


def _metric(kind: Kind, one: MetricFacts) -> bytes:
    labels = (_bytes(1, _text(1, k) + _text(2, v)) for k, v in sorted(one.labels.items()))
    if isinstance(one.value, HistogramFacts):
        return b"".join(labels) + _bytes(7, _histogram(one.value))
    return b"".join(labels) + _bytes(_VALUE[kind], _double(1, one.value))


def _histogram(facts: HistogramFacts) -> bytes:
    count = facts.zero_count + sum(facts.native.values())
    classic = (_bytes(3, _whole(1, n) + _double(2, bound)) for bound, n in facts.classic)
    head = _whole(1, count) + _double(2, facts.sum) + b"".join(classic)
    head += _signed(5, SCHEMA) + _double(6, ZERO_THRESHOLD) + _whole(7, facts.zero_count)
    spans, deltas = _spans(sorted(facts.native.items()))
    written = (_bytes(12, _signed(1, offset) + _whole(2, length)) for offset, length in spans)
    return head + b"".join(written) + b"".join(_signed(13, delta) for delta in deltas)


def _spans(buckets: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """Runs of buckets, each with its distance from the end of the one before; and by how much each
    count differs from the one before."""
    spans: list[tuple[int, int]] = []
    deltas: list[int] = []
    end = before = 0
    for index, count in buckets:
        if spans and index == end:
            spans[-1] = spans[-1][0], spans[-1][1] + 1
        else:
            spans.append((index - end, 1))
        deltas.append(count - before)
        end, before = index + 1, count
    return spans, deltas


# ── protobuf's wire format ──


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _whole(field: int, number: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(number)


def _signed(field: int, number: int) -> bytes:
    """Zigzag: small numbers stay small, whatever their sign."""
    return _whole(field, number << 1 if number >= 0 else (-number << 1) - 1)


def _double(field: int, number: float) -> bytes:
    return _varint(field << 3 | _DOUBLE) + struct.pack("<d", number)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())
