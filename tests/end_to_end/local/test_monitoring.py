"""A real Prometheus scrapes a real job while a worker and then the controller are killed.

Alerts are told, counters go on, and every query of the dashboards is answered."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.monitoring.alerts import AlertLimits, rule_group
from holdfast.monitoring.dashboards import DASHBOARDS, queries_of
from holdfast.monitoring.table import METRICS
from tests.end_to_end.local.jobs import RunningJob, program
from tests.monitoring.prometheus import prometheus
from tests.patience import ENOUGH_S, PATIENCE_S, Patience
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left"), prometheus]

AT_ONCE = AlertLimits(restarts=0, hold=0.0)
SCRIPT = """
import time
for step in range(1, 100_000):
    print(f"step {step} loss {1 / step}", flush=True)
    time.sleep(0.02)
"""
COUNTERS = [row.scraped for row in METRICS.values() if row.kind != "gauge"]
PATTERNS = {"step_pattern": r"step (\d+)", "loss_pattern": r"loss (\S+)"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Watcher:
    """A Prometheus that looks each second."""

    def __init__(self, folder: Path, job_port: int) -> None:
        self._url = f"http://127.0.0.1:{free_port()}"
        rules = {"groups": [rule_group("g", limits=AT_ONCE)]}
        (folder / "rules.yml").write_text(yaml.safe_dump(rules))
        found = {"url": f"http://127.0.0.1:{job_port}/targets", "refresh_interval": "1s"}
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config = {
            "global": every,
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "holdfast", "http_sd_configs": [found]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._process = subprocess.Popen(
            ["prometheus", "--config.file", folder / "prometheus.yml", "--storage.tsdb.path",
             folder / "data", "--web.listen-address", self._url.removeprefix("http://")],
            stdout=subprocess.DEVNULL, stderr=(folder / "prometheus.log").open("wb"),
        )  # fmt: skip

    def close(self) -> None:
        """It ends."""
        self._process.kill()
        self._process.wait()

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The answer, by its API; fails where it does not understand the query."""
        text = urllib.parse.urlencode({"query": query})
        url = f"{self._url}/api/v1/query?{text}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return result
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it is still starting
                raise
            raise AssertionError(f"{query}: {error.read().decode()}") from error

    def wait(self, query: str) -> list[dict[str, Any]]:
        """Until there is an answer."""
        patience = Patience()
        while not patience.is_over:
            with contextlib.suppress(OSError):
                if found := self.ask(query):
                    return found
            time.sleep(0.2)
        raise AssertionError(f"not within {ENOUGH_S:g} s: {query}")


@pytest.fixture
def watched(home: Path) -> Iterator[tuple[RunningJob, Watcher]]:
    port = free_port()
    job = program(home, SCRIPT, monitoring={"port": port}, progress=PATTERNS, nodes=1).start()
    watcher = Watcher(home.parent, port)
    yield job, watcher
    watcher.close()


def firing(name: str) -> str:
    return f'ALERTS{{alertname="{name}",alertstate="firing",holdfast_dev_job="job"}}'


def test_alerts_are_told_and_counters_go_on_while_a_worker_and_the_controller_are_killed(
    watched: tuple[RunningJob, Watcher],
) -> None:
    job, watcher = watched
    watcher.wait("holdfast_phase{phase='running'} == 1 and on() holdfast_node_up == 1")
    assert not watcher.ask(firing("HoldfastRestartStorm"))
    for _ in range(2):  # `increase` is of counters that Prometheus has seen to rise
        restarts = int(watcher.wait("holdfast_restarts_total")[0]["value"][1])
        os.kill(job.worker(0), signal.SIGKILL)
        watcher.wait(f"holdfast_restarts_total > {restarts}")
    watcher.wait(firing("HoldfastRestartStorm"))
    job.kill_controller()
    watcher.wait(firing("HoldfastControllerAbsent"))
    job.resume()
    watcher.wait("holdfast_node_up == 1 and on() holdfast_restarts_total == 2")
    watcher.wait("holdfast_incidents_total{cause='worker-killed'} >= 2")
    assert not [name for name in COUNTERS if watcher.ask(f"resets({name}[10m]) > 0")]
    for panels in DASHBOARDS.values():
        for query in queries_of(panels):
            watcher.ask(query.replace("$__rate_interval", "1m").replace("$job", ".*"))
    assert holdfast("stop", job.name, "--now").returncode == 0
    assert job.process is not None
    job.process.wait(PATIENCE_S)
