"""Panels ask for what is served, in its unit, by queries that Prometheus understands."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from docs.generate import DEPLOYED, ROOT
from holdfast.monitoring.dashboards import DASHBOARDS, METRIC, PanelSpec, as_json, queries_of
from holdfast.monitoring.table import METRICS, NATIVE, SCRAPED
from tests.monitoring.prometheus import ask_promtool, promtool

PANELS = [panel for panels in DASHBOARDS.values() for panel in panels]


@pytest.mark.parametrize("file", DEPLOYED)
def test_what_is_deployed_is_current(file: str) -> None:
    assert (ROOT / "deploy" / file).read_text() == DEPLOYED[file](), "run `make docs`"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_shows_what_is_served_of_the_chosen_jobs(panel: PanelSpec) -> None:
    for query, _ in panel.queries:
        used = METRIC.findall(query)
        assert used and set(used) <= SCRAPED.keys() | NATIVE.keys()
        assert query.count("$S") == len(used), "every metric is selected by job"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_of_a_dashboard_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(as_json(name))["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


def parts_lost(before: Any, after: Any, place: str = "") -> list[str]:
    """What is in the one and not, or otherwise, in the other."""
    match before, after:
        case dict(), dict():
            pairs = [(before[key], after.get(key), f"{place}.{key}") for key in before]
        case list(), list() if len(before) == len(after):
            both = zip(before, after, strict=True)
            pairs = [(a, b, f"{place}[{n}]") for n, (a, b) in enumerate(both)]
        case _:
            return [] if before == after else [place]
    return [lost for pair in pairs for lost in parts_lost(*pair)]


def as_grafana_reads(board: dict[str, Any]) -> Any:
    """The dashboard, read into the types that Grafana publishes of its schema, and written."""
    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(board)))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_has_nothing_that_grafana_s_own_types_do_not_know(name: str) -> None:
    board = json.loads(as_json(name))
    assert not parts_lost(board, as_grafana_reads(board))
    board["panels"][0]["targets"][0]["refID"] = board["panels"][0]["heigth"] = "wrong"
    wrong = [".panels[0].heigth", ".panels[0].targets[0].refID"]
    assert sorted(parts_lost(board, as_grafana_reads(board))) == wrong


def test_most_of_what_is_served_is_shown_somewhere() -> None:
    shown = {
        name for panel in PANELS for query, _ in panel.queries for name in METRIC.findall(query)
    }
    left = {row.name for row in METRICS.values() if row.scraped not in shown}
    assert len(left) <= len(METRICS) // 4, left


@promtool
def test_every_query_is_one_to_prometheus(tmp_path: Path) -> None:
    """As recording rules, of which promtool checks the expressions."""
    every = [query for panels in DASHBOARDS.values() for query in queries_of(panels)]
    plain = [query.replace("$__rate_interval", "1m").replace("$job", ".*") for query in every]
    rules = [{"record": f"panel:{n}", "expr": query} for n, query in enumerate(plain)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    ask_promtool("check", "rules", file)
