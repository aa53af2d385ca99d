"""A real Alertmanager and what it passes on to people, of incidents that are soon over and not."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from holdfast.drivers.notices import body_of
from holdfast.drivers.notifier import post
from tests.drivers.test_notices import Story
from tests.patience import until
from tests.receiving import Receiving

PROGRAM = "prometheus-alertmanager"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which(PROGRAM) is None and "CI" not in os.environ,
        reason=f"{PROGRAM} is not installed: make test-tools",
    ),
]


@pytest.fixture
def people() -> Iterator[Receiving]:
    """Who is to be woken up."""
    found = Receiving()
    yield found
    found.close()


@pytest.fixture
def alerts(people: Receiving, tmp_path: Path) -> Iterator[str]:
    """The URL of one that passes everything on at once."""
    hook = {"name": "people", "webhook_configs": [{"url": people.url}]}
    route = {"receiver": "people", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"}
    (tmp_path / "config.yml").write_text(yaml.safe_dump({"route": route, "receivers": [hook]}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        here = f"127.0.0.1:{free.getsockname()[1]}"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, "--config.file", tmp_path / "config.yml", "--storage.path", tmp_path / "data",
             "--web.listen-address", here, "--cluster.listen-address="],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        url = f"http://{here}/api/v2/alerts"
        assert until(lambda: post(url, b"[]") == ("", False)), (tmp_path / "log").read_text()
        yield url
    finally:
        process.kill()
        process.wait()


def heard(people: Receiving) -> list[tuple[str, str]]:
    """Which incident, and whether it is open, in the order in which people heard of it."""
    told = [alert for _, body in people.got for alert in body["alerts"]]
    return [(alert["labels"]["incident"], alert["status"]) for alert in told]


def test_people_hear_of_incidents_that_were_over_at_once_and_of_the_end_of_others(
    alerts: str, people: Receiving
) -> None:
    """Of what is over when it first hears of it, Alertmanager tells nobody."""
    it = Story(url=alerts, format="alertmanager", after_s=5)
    it.now = time.time() - 10.0

    def tell(after_s: float) -> None:
        for notice in it.look(after_s):
            assert post(alerts, body_of(notice, it.rule)) == ("", False)

    short = it.fault(1)
    short.ended_at = it.now + 1
    tell(2)
    assert until(lambda: ("1", "firing") in heard(people), 20), heard(people)
    long = it.fault(2)
    tell(6)
    assert until(lambda: ("2", "firing") in heard(people), 20), heard(people)
    long.ended_at = it.now
    tell(1)
    assert until(lambda: ("2", "resolved") in heard(people), 20), heard(people)
    assert ("1", "resolved") not in heard(people), "it stands until somebody has seen it"
