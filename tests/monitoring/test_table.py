"""Names, units and labels are those of Prometheus' conventions, and nothing else can be served."""

import re

import pytest

from holdfast.monitoring.table import METRICS, SCRAPED, MetricRow
from holdfast.scrape import DurationTally, Exposition

BOUNDED = frozenset(
    ("phase", "state", "condition", "severity", "bucket", "window", "cause", "tier", "name", "of",
     "node", "gpu", "xid", "folder", "device", "machine", "UUID", "reason", "kind")
)  # fmt: skip
UNITS = ("ms", "milliseconds", "minutes", "hours", "percent", "kb", "mb", "gib", "mw")


@pytest.mark.parametrize("row", METRICS.values(), ids=METRICS)
def test_a_metric_follows_the_conventions(row: MetricRow) -> None:
    assert re.fullmatch(r"holdfast(_[a-z0-9]+)+", row.name) and not row.name.endswith("_total")
    assert not set(row.name.split("_")) & set(UNITS), "base units"
    assert row.help.endswith(".")
    assert set(row.labels) <= BOUNDED | (
        {"rank"} if row.name.endswith("straggler_ratio") else set()
    )
    assert list(row.bounds) == sorted(row.bounds) and bool(row.bounds) == (row.kind == "histogram")
    assert (row.labels[:1] == ("node",)) or row.server == "controller"


def test_no_name_is_scraped_twice() -> None:
    assert len(SCRAPED) == len(METRICS)


def test_what_is_not_in_the_table_cannot_be_served() -> None:
    with pytest.raises(KeyError):
        Exposition().add("holdfast_of_my_own", 1)
    with pytest.raises(KeyError):
        Exposition().add("holdfast_step", 1, rank="3")


def test_a_scraper_gets_the_format_that_it_asks_for() -> None:
    found, tally = Exposition({"node": "n"}), DurationTally((0.1, 1.0))
    for seconds in (0.1, 0.5, 0.5, 9.0):
        tally.add(seconds)
    found.add_tally("holdfast_step_duration_seconds", tally)
    found.add("holdfast_node_tokens", 7)
    found.add("holdfast_mfu_ratio", None)
    modern = found.page("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert modern.kind.startswith("application/openmetrics-text")
    assert modern.body.endswith(b"# EOF\n")
    plain = found.page("")
    assert plain.kind.startswith("text/plain")
    for body in (modern.body.decode(), plain.body.decode()):
        assert 'holdfast_node_tokens_total{node="n"} 7.0\n' in body
        assert 'holdfast_step_duration_seconds_bucket{le="1.0",node="n"} 3.0\n' in body
        assert 'holdfast_step_duration_seconds_count{node="n"} 4.0\n' in body
        assert "mfu" not in body, "what is not known is left out"
