"""Each alert is told when it should be, stays quiet when not, and has a runbook."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import yaml

from holdfast.monitoring.alerts import RUNBOOK, alert_rules, rule_group
from holdfast.monitoring.table import SCRAPED
from tests.monitoring.prometheus import ask_promtool, promtool

ROOT = Path(__file__).parents[2]
AT, EVERY = "6h", "5m"  # when it is looked at, and of samples: 72 of them


class Course(NamedTuple):
    """What differs from health, in the notation of promtool, and the labels of what is told."""

    series: dict[str, str]
    labels: Mapping[str, str] = MappingProxyType({})


HEALTHY = {
    "last_step_timestamp_seconds": "0+300x80",
    "loss": "9-0.05x80",
    'ettr_ratio{window="1h"}': "0.97x80",
    "restarts_total": "0+0.5x80",
    "spares": "2x80",
    "spares_wanted": "2x80",
    'checkpoint_age_seconds{tier="shared"}': "500x80",
    'checkpoint_interval_seconds{tier="shared"}': "300x80",
    'checkpoint_failing{tier="shared"}': "0x80",
    'straggler_ratio{node="n",rank="3"}': "0.02x80",
    'node_condition{node="n",condition="xid-43",severity="warn"}': "1x80",
    'node_up{node="n"}': "1x80",
    'node_up{node="m"}': "0x80",  # one may be away
    'disk_free_bytes{node="n",folder="/ckpt"}': "9e12-1e6x80",
    'disk_used_ratio{node="n",folder="/ckpt"}': "0.6x80",
}
NODE = {"node": "n"}
CASES = {
    "HoldfastStalled": Course({"last_step_timestamp_seconds": "0+300x60 18000x20"}),
    "HoldfastDiverging": Course({"loss": "3x66 4+1x10"}),
    "HoldfastLowEttr": Course({'ettr_ratio{window="1h"}': "0.97x60 0.6x20"}, {"window": "1h"}),
    "HoldfastRestartStorm": Course({"restarts_total": "0x60 0+2x20"}),
    "HoldfastSpareMissing": Course({"spares": "2x60 1x20"}),
    "HoldfastCheckpointTooOld": Course(
        {'checkpoint_age_seconds{tier="shared"}': "500x60 500+300x20"}, {"tier": "shared"}
    ),
    "HoldfastCheckpointsFail": Course(
        {'checkpoint_failing{tier="shared"}': "0x60 1x20"}, {"tier": "shared"}
    ),
    "HoldfastStraggler": Course(
        {'straggler_ratio{node="n",rank="3"}': "0.02x60 0.3x20"}, {**NODE, "rank": "3"}
    ),
    "HoldfastXid": Course(
        {'node_condition{node="n",condition="xid-79",severity="fatal"}': "_x71 1x10"},
        {**NODE, "condition": "xid-79"},
    ),
    "HoldfastThermalThrottle": Course(
        {'node_condition{node="n",condition="gpu-throttled",severity="warn"}': "_x68 1x10"},
        {**NODE, "condition": "gpu-throttled"},
    ),
    "HoldfastControllerAbsent": Course({'node_up{node="n"}': "1x68 0x12"}),
    "HoldfastDiskWillBeFull": Course(
        {'disk_free_bytes{node="n",folder="/ckpt"}': "9e12x50 9e12-3e11x28"},
        {**NODE, "folder": "/ckpt"},
    ),
}
NOT_A_NUMBER = {"record": "holdfast_loss", "expr": "0 * holdfast_spares / 0"}


def a_job(name: str, course: Course) -> list[dict[str, str]]:
    """Its series."""
    found = []
    for key, values in (HEALTHY | course.series).items():
        plain, _, labels = key.rstrip("}").partition("{")
        every = ",".join(filter(None, (f'holdfast_dev_job="{name}"', labels)))
        found.append({"series": f"holdfast_{plain}{{{every}}}", "values": values})
    return found


def firing(name: str, job: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """The alert as Prometheus has it."""
    rule = next(rule for rule in alert_rules() if rule.name == name)
    of_rule = {"alertname": name, "alertstate": "firing", "severity": rule.severity}
    every = {**of_rule, "holdfast_dev_job": job, **labels}
    text = ",".join(f'{key}="{value}"' for key, value in sorted(every.items()))
    return {"labels": f"ALERTS{{{text}}}", "value": 1}


def try_out(folder: Path, series: Any, told: Any, *more: dict[str, Any]) -> None:
    """Have promtool say whether exactly these alerts are told; with more rules before ours."""
    group = rule_group("g")
    group["rules"] = [*more, *group["rules"]]
    looks = {"expr": 'ALERTS{alertstate="firing"}', "eval_time": AT, "exp_samples": told}
    test = {"interval": EVERY, "input_series": series, "promql_expr_test": [looks]}
    whole = {"rule_files": ["rules.yml"], "evaluation_interval": EVERY, "tests": [test]}
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": [group]}))
    (folder / "tests.yml").write_text(yaml.safe_dump(whole))
    ask_promtool("test", "rules", folder / "tests.yml")


@promtool
def test_every_alert_is_told_when_it_is_so_and_no_other(tmp_path: Path) -> None:
    """A job for each alert, in which everything else is well, and one in which all is."""
    series = [one for name, course in CASES.items() for one in a_job(name.lower(), course)]
    told = [firing(name, name.lower(), course.labels) for name, course in CASES.items()]
    try_out(tmp_path, [*series, *a_job("well", Course({}))], told)


@promtool
def test_a_loss_that_is_not_a_number_is_told(tmp_path: Path) -> None:
    """There is no way to write such a sample down, so one is worked out."""
    series = [one for one in a_job("gpt", Course({})) if "_loss" not in one["series"]]
    try_out(tmp_path, series, [firing("HoldfastDiverging", "gpt", {})], NOT_A_NUMBER)


def test_every_alert_has_a_case_here() -> None:
    assert {rule.name for rule in alert_rules()} == set(CASES)


@pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: rule.name)
def test_an_alert_asks_for_what_there_is_and_has_a_runbook(rule: Any) -> None:
    used = set(re.findall(r"holdfast_(?!dev)\w+", rule.query))
    assert used and used <= SCRAPED.keys()
    asked = set(re.findall(r"\$labels\.(\w+)", rule.summary)) - {"holdfast_dev_job"}
    assert asked <= {label for name in used for label in SCRAPED[name].labels}
    assert f"\n## {rule.name}\n" in (ROOT / RUNBOOK).read_text()
    assert rule.runbook == f"{RUNBOOK}#{rule.name.lower()}"
    assert set(re.findall(r"(\w+)=", rule.query)) <= {
        label for name in used for label in SCRAPED[name].labels
    }


def test_alerts_of_one_job_are_about_that_job_alone() -> None:
    for rule in rule_group("g", "gpt")["rules"]:
        count = len(re.findall(r"holdfast_(?!dev)\w+", rule["expr"]))
        assert rule["expr"].count('holdfast_dev_job="gpt"') == count, rule["alert"]
