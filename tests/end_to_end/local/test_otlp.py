"""Real jobs whose incidents are exported to a real receiver of OpenTelemetry."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.local.jobs import RunningJob, program
from tests.more import long
from tests.otlp import OtlpReceiver, attributes, events
from tests.patience import PATIENCE_S, until
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

ENDLESS = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.1)\n"
FAILS = "raise RuntimeError('the key is geheimnis')\n"


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    found = OtlpReceiver()
    yield found
    found.close()


def expected(job: RunningJob) -> list[str | None]:
    """The ids of the traces of its incidents."""
    return [incident.trace_id for incident in job.incidents()]


def test_an_incident_is_a_trace_whose_spans_are_its_bill_and_a_failed_job_is_an_error(
    home: Path, receiver: OtlpReceiver
) -> None:
    job = program(
        home, FAILS, nodes=1, env={"API_KEY": "geheimnis"}, cost={"gpu_hour": 3.6},
        otlp={"endpoint": receiver.url},
    ).start()  # fmt: skip
    job.wait_end(1)
    incidents = job.incidents()
    roots = receiver.roots()
    assert [root.trace_id.hex() for root in roots] == expected(job)
    for root, incident in zip(roots, incidents, strict=True):
        spans = [span for span in receiver.spans() if span.parent_span_id == root.span_id]
        bill: dict[str, float] = {}
        for span in spans:
            seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
            bill[span.name] = round(bill.get(span.name, 0.0) + seconds, 3)
            assert root.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= root.end_time_unix_nano
        assert bill == pytest.approx(incident.bill, abs=0.0011) and bill
        said = attributes(root.attributes)
        assert said["holdfast.rank"] == 0 and said["error.type"] == "worker-exception"
        assert said["holdfast.cost"] == pytest.approx(incident.lost_s / 1000, abs=1e-4)
        assert {"detected", "verdict", "decision", "exception"} <= set(events(root))
    last = roots[-1]
    assert last.status.code == last.status.STATUS_CODE_ERROR and "failed" in last.status.message
    assert attributes(last.attributes)["holdfast.ladder.step"] == "give-up"
    assert b"geheimnis" not in b"".join(one.SerializeToString() for _, one in receiver.got)
    logs = [json.loads(line) for line in holdfast("logs", job.name, "--json").stdout.splitlines()]
    assert {line["trace_id"] for line in logs} == {last.trace_id.hex()}, "of the newest attempt"
    ended = [record for record in receiver.logs() if record.event_name == "holdfast.ended"]
    assert [record.severity_text for record in ended] == ["ERROR"]
    told = [r for r in receiver.logs() if r.event_name == "holdfast.incident"]
    assert {record.trace_id for record in told} == {root.trace_id for root in roots}


@long
def test_a_controller_that_takes_over_sends_what_was_not_taken_and_nothing_twice(
    home: Path, receiver: OtlpReceiver
) -> None:
    receiver.close()  # away
    job = program(home, ENDLESS, nodes=1, otlp={"endpoint": receiver.url}).start()
    over = 0

    def kill_worker() -> None:
        nonlocal over
        over += 1
        os.kill(job.worker(0), signal.SIGKILL)
        job.wait_until(
            lambda s: (
                s.attempt == over + 1
                and s.phase == "running"
                and job.incidents()[-1].ended_at is not None
            ),
            "the next attempt",
        )

    kill_worker()
    assert until(lambda: "retrying" in job.said()), "and training goes on"
    kill_worker()
    job.kill_controller()
    here = OtlpReceiver(receiver.port)
    job.resume()
    assert until(lambda: len(here.roots()) == 2), job.said()
    kill_worker()
    assert until(lambda: len(here.roots()) == 3), job.said()
    taken = job.folder / "telemetry.json"
    assert until(lambda: '"traces":[1,2,3]' in taken.read_text()), taken.read_text()
    job.kill_controller()
    job.resume()
    kill_worker()
    assert holdfast("stop", job.name, "--now").returncode == 0
    assert job.process is not None
    job.process.wait(PATIENCE_S)
    here.close()
    assert [one.trace_id.hex() for one in here.roots()] == expected(job)
    ids = [(one.trace_id, one.span_id) for one in here.spans()]
    assert len(ids) == len(set(ids))
    assert job.said().count("; retrying") <= 2, "once for each signal"
