"""The series that the alerts are made of, as Prometheus would scrape them."""

import re
import urllib.request

import msgspec

from holdfast.drivers.kubernetes.manifests.support.monitors import alerts
from holdfast.drivers.kubernetes.metrics import Metrics
from holdfast.status import JobStatus, NodeStatus, TierStatus
from tests.drivers.kubernetes.asking import asked
from tests.patience import PATIENCE_S


def status(**more: object) -> JobStatus:
    """A status of a job that trains."""
    nodes = (
        NodeStatus(name="a", state="member", rank=0, node="u"),
        NodeStatus(name="b", state="spare", rank=None, node="v"),
    )
    found = JobStatus(
        job="run", phase="running", attempt=3, step=17, ettr=0.97, nodes=nodes, incidents_count=2,
        restarts_count=2, waiting_for=None, started_at=0.0, wall_s=100.0, loss=1.5,
    )  # fmt: skip
    return msgspec.structs.replace(found, **more)


def scraped(metrics: Metrics) -> dict[str, float]:
    """Every series over real HTTP."""
    port = metrics.serve(0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    found = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in found}


def test_a_scrape_tells_how_the_job_stands() -> None:
    metrics = Metrics()
    metrics.observe(status(), now=50.0)
    metrics.observe(status(loss=1.4), now=60.0)
    series = scraped(metrics)
    assert series['holdfast_phase{phase="running"}'] == 1
    assert series['holdfast_phase{phase="waiting"}'] == 0
    assert series["holdfast_step"] == 17
    assert series["holdfast_spares"] == 1
    assert series["holdfast_restarts_total"] == 2
    assert series["holdfast_last_step_timestamp_seconds"] == 50.0, "it stood still since"
    assert series["holdfast_loss"] == 1.4


def test_a_scrape_tells_of_durable_checkpoints() -> None:
    tier = TierStatus(
        tier="shared", step=9, attempt=1, age_s=5.0, every_s=None, seconds=2.0, bytes=1,
        commits_count=4, failures=1, failures_count=3,
    )  # fmt: skip
    metrics = Metrics()
    metrics.observe(status(checkpoints=(tier,)))
    series = scraped(metrics)
    assert series['holdfast_checkpoints_total{tier="shared"}'] == 4
    assert series['holdfast_checkpoint_failures_total{tier="shared"}'] == 3
    assert series['holdfast_checkpoint_age_seconds{tier="shared"}'] == 5


def test_before_anything_is_known_there_is_nothing() -> None:
    assert not {name for name in scraped(Metrics()) if name.startswith("holdfast")}


def test_every_alert_is_about_a_series_that_exists() -> None:
    request = asked(nodes={"count": 2, "spares": 1}, monitoring={"enabled": True})
    metrics = Metrics()
    metrics.observe(status())
    there = {re.split("[{ ]", name)[0] for name in scraped(metrics)}
    for alert in alerts(request):
        used = set(re.findall(r"holdfast_(?!dev)\w+", alert["expr"]))
        assert used and used <= there, alert["alert"]
