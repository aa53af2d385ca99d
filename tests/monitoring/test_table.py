"""Names, units and labels are those of Prometheus' conventions, and nothing else can be served."""

import math
import re

import pytest
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

from holdfast.monitoring.table import METRICS, SCRAPED, MetricRow
from holdfast.scrape import MANY, DurationTally, Exposition, FamilyList, WrittenLines

BOUNDED = frozenset(
    ("phase", "state", "condition", "severity", "bucket", "window", "cause", "tier", "name", "of",
     "node", "gpu", "xid", "folder", "device")
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


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text;version=1.0.0"])
def test_kept_lines_are_those_that_the_library_writes(accept: str) -> None:
    """Whatever changed, came or went since the scrape before."""
    lines, states = WrittenLines(), {f"n{n}": "ready" for n in range(2 * MANY)}

    def filled(kept: WrittenLines | None) -> Exposition:
        found = Exposition(lines=kept)
        found.add("holdfast_step", 7)
        for node, state in states.items():
            value = math.nan if state == "odd" else 1
            found.add("holdfast_node_state", value, node=node, state=state)
        found.add("holdfast_attempt", 2)
        return found

    def same() -> None:
        kept, encode = filled(lines).page(accept).body, choose_encoder(accept)[0]
        whole = encode(FamilyList(filled(None).collect()))
        assert sorted(kept.splitlines()) == sorted(whole.splitlines())
        assert kept.endswith(b"# EOF\n") == bool(accept)
        names = [f.name for f in text_string_to_metric_families(kept.decode())]
        assert len(names) == len(set(names)), "lines of a family stand together"

    same()
    same()
    states |= {"n3": "odd", 'a"\n\\b': "lost", "n5": "ready"}
    same()
    for node in list(states)[MANY // 2 :: 2]:
        del states[node]
    same()
    states.clear()
    same()


def test_what_has_not_changed_is_not_written_again() -> None:
    lines, written = WrittenLines(), list[int]()
    encode, kind = choose_encoder("")

    def writes(part: FamilyList) -> bytes:
        written.append(len(part.families[0].samples))
        return bytes(encode(part))

    for state in ("ready", "ready", "lost", "ready"):
        found = Exposition()
        for n in range(MANY):
            found.add("holdfast_node_state", 1, node=f"n{n}", state="ready" if n else state)
        lines.of(found.collect()[0], kind, writes)
    assert written == [MANY, 1, 1]
