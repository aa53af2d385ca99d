"""Traces and logs on their way to a real receiver: one that answers, refuses, hangs or is away."""

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.exporter.otlp.common import http

from holdfast.actions import Entry
from holdfast.controller import IncidentRecord, Limits, Phase, State
from holdfast.drivers import records
from holdfast.drivers.job_books import JobBooks
from holdfast.drivers.otlp import export_queue, telemetry
from holdfast.drivers.otlp.export_queue import ExportQueue
from holdfast.drivers.otlp.ids import span_id, trace_id, written
from holdfast.drivers.otlp.sending import Sending
from holdfast.drivers.otlp.traces import (
    SETTLES_S,
    IncidentTrace,
    JobIdentity,
    Moments,
    SpanFacts,
    nanoseconds,
    root_of,
    settled,
)
from holdfast.drivers.talk import LISTENER, say
from holdfast.errors import Error
from holdfast.events import Diagnosed
from holdfast.spec.load import job_from_dict
from tests.otlp import OtlpReceiver, attributes
from tests.patience import PATIENCE_S, until

JOB = JobIdentity("gpt", 1_700_000_000_250)
SECRET = "geheimnis"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    monkeypatch.setattr(export_queue, "FIRST_PAUSE_S", 0.01)
    found = OtlpReceiver()
    yield found
    found.close()


def sending(taken: set[int] | None = None, **otlp: object) -> Sending:
    """Of a job with these settings."""
    keys = {"name": "gpt", "script": "t.py", "env": {"MY_TOKEN": SECRET}, "otlp": otlp}
    job = job_from_dict(keys, where="test")
    return Sending(job, JOB, (taken if taken is not None else set()).update)


def trace(incident: int) -> IncidentTrace:
    """An incident of a second, with one bucket."""
    number, facts = JOB.trace(incident), {"holdfast.incident": incident}
    start = incident * 10**9
    bucket = SpanFacts(span_id(number, "0 detect"), "detect", start, start + 10**9, facts)
    root = SpanFacts(root_of(number), "incident x", start, start + 10**9, facts)
    return IncidentTrace(incident, number, root, (bucket,), "")


def test_ids_are_worked_out_from_the_journal_and_differ_between_jobs_lives_and_incidents() -> None:
    ids = {trace_id(*of) for of in (("a", 1, 1), ("a", 1, 2), ("a", 2, 1), ("b", 1, 1))}
    assert len(ids) == 4 and all(0 < one < 1 << 128 for one in ids)
    assert trace_id("a", 1, 1) == JobIdentity("a", 1).trace(1)
    assert written(trace_id("a", 1, 1)) == "df1190f7f39ade60e708c3d6899036b2", "as ever"
    assert 0 < span_id(5, "a") < 1 << 64 and span_id(5, "a") != span_id(5, "b")


def test_headers_and_names_come_from_the_job_and_from_the_standard_variables(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x,x-team=b")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{receiver.url}/")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
    box = sending(headers={"X-Team": "a"})
    box.line("one line", None)
    box.close(PATIENCE_S)
    assert receiver.headers[0]["authorization"] == "Bearer x"
    assert receiver.headers[0]["x-team"] == "a"
    (said,) = receiver.resources()
    assert (said["service.name"], said["holdfast.job"]) == ("holdfast", "gpt")
    assert said["deployment.environment.name"] == "lab"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "training")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    box = sending()
    box.incident(trace(1))
    box.line("another", None)
    box.close(PATIENCE_S)
    assert receiver.resources()[-1]["service.name"] == "training" and not receiver.spans()
    assert capsys.readouterr().err == ""


def test_a_line_of_the_log_has_the_trace_of_its_incident_and_no_secrets(
    receiver: OtlpReceiver,
) -> None:
    box = sending(endpoint=receiver.url)
    box.line(f"rank 3 was started with {SECRET}", 2)
    logging.getLogger("asyncio").error("a task has failed")
    logging.getLogger("urllib3").warning("not ours to tell")
    box.close(PATIENCE_S)
    first, second = receiver.logs()
    assert first.body.string_value == "rank 3 was started with ***"
    assert first.trace_id.hex() == written(JOB.trace(2))
    assert first.span_id == root_of(JOB.trace(2)).to_bytes(8, "big")
    assert (second.severity_text, second.body.string_value) == ("ERROR", "a task has failed")
    assert not second.trace_id and attributes(second.attributes) == {"holdfast.job": "gpt"}


@pytest.mark.parametrize("written_as", ["Authorization: {}", "x-team={}%0A", "x-team={}"])
def test_headers_of_requests_are_not_said_whether_they_can_be_sent_or_not(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    receiver: OtlpReceiver,
    written_as: str,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", written_as.format("so-private"))
    box = sending(endpoint=receiver.url, signals=["logs"])
    box.line("told with so-private" if "=" in written_as else "told", None)
    box.close(PATIENCE_S)
    said = capsys.readouterr().err + caplog.text
    assert "so-private" not in said + "".join(one.body.string_value for one in receiver.logs())
    assert ("a header is not in the form name=value" in said) is (":" in written_as)


def test_what_is_refused_for_now_is_sent_again_and_said_once(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")  # below its first pause
    receiver.answers = [503, 401, 503]
    taken: set[int] = set()
    box = sending(taken, endpoint=f"{receiver.url}", signals=["traces"])
    box.incident(trace(1))
    assert until(lambda: taken == {1})
    box.incident(trace(2))
    box.close(PATIENCE_S)
    assert taken == {1, 2}
    away, back = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"holdfast: otlp traces \(127.0.0.1\): .*; retrying", away)
    assert back.endswith("delivered again")
    ids = [span.span_id for span in receiver.spans()]
    assert len(ids) >= 2 * 5 and len(set(ids)) == 4, "the same ids each time"


def test_that_it_is_sent_again_is_said_once_in_a_line(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exporter says so of its own attempts, which have all failed by then."""
    monkeypatch.setattr(http, "_MAX_RETRIES", 2)  # of the exporter, in each of ours
    receiver.answers = [503, 503]
    box = sending(endpoint=receiver.url, signals=["traces"])
    box.incident(trace(1))
    assert until(lambda: len(receiver.spans()) == 3 * 2)
    box.close(PATIENCE_S)
    away, _back = capsys.readouterr().err.splitlines()
    assert away.startswith("holdfast: otlp traces (127.0.0.1): Transient error ")
    assert away.count("retrying") == 1 and away.endswith("; retrying")


def test_a_receiver_that_hangs_holds_up_nobody_and_what_it_has_not_taken_is_counted(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(PATIENCE_S))
    receiver.answers = [receiver.HANGS]
    box = sending(endpoint=receiver.url, signals=["logs"])
    box.line("first", None)
    assert until(lambda: not receiver.answers)
    for number in range(export_queue.QUEUE + 9):
        box.line(str(number), None)
    began = time.monotonic()
    box.close(0.1)
    assert time.monotonic() - began < PATIENCE_S, "not as long as the request"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"logs (127.0.0.1): {export_queue.QUEUE + 10} records were not delivered")
    receiver.close()
    assert until(lambda: "; retrying" in capsys.readouterr().err), "and its thread ends"


def test_of_more_than_there_is_room_for_the_newest_are_kept_and_the_rest_is_counted() -> None:
    said: list[str] = []
    got: list[int] = []
    open_now: list[bool] = []

    def export(batch: object) -> bool:
        if open_now:
            got.extend(batch)  # type: ignore[arg-type]
        return bool(open_now)

    box = ExportQueue[int]("it", export, "tests.nobody", said.append)
    box.put(range(export_queue.QUEUE + 50))
    open_now.append(True)
    box.begin()
    box.end()
    box.close(PATIENCE_S)
    assert got == list(range(50, export_queue.QUEUE + 50))
    assert said == ["it: 50 records were not delivered"]


def test_a_batch_that_is_never_taken_is_given_up_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("FIRST_PAUSE_S", 0.001), ("GIVE_UP_S", 0.01), ("BATCH", 1)):
        monkeypatch.setattr(export_queue, name, value)
    said: list[str] = []
    taken: list[int] = []

    def export(batch: Sequence[int]) -> bool:
        if 7 in batch:
            raise ValueError("seven")
        return True

    box = ExportQueue[int]("it", export, "tests.nobody", said.append, taken.extend)
    box.put([1, 7, 2])
    box.begin()
    assert until(lambda: taken == [1, 2])
    box.end()
    box.close(PATIENCE_S)
    assert said == [
        "it: ValueError: seven; retrying",
        "it: delivered again; 1 records were dropped meanwhile",
    ]


def test_only_the_tasks_of_a_job_are_listened_to(capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []
    token = LISTENER.set(heard.append)
    say("a")
    LISTENER.reset(token)
    say("b")
    assert heard == ["a"] and capsys.readouterr().err == "holdfast: a\nholdfast: b\n"


def exported(
    folder: Path, change: Callable[[State], None], set_by_s: float = 0.0, **otlp: object
) -> None:
    """The life of a controller of a job in this folder, whose state is changed like this."""
    job = job_from_dict({"name": "gpt", "script": "t.py", "otlp": otlp}, where="test")
    if not folder.exists():
        os.close(records.create(job, folder, now=JOB.started_ms / 1000))
    path = folder / records.JOURNAL
    state = State(limits=Limits(node_count=1), attempt=1)
    books = JobBooks("gpt", path, state, time.time, dict)

    async def life() -> None:
        it = telemetry.Telemetry(job, state, books, path, lambda: time.time() - set_by_s)
        it.begin()
        change(state)
        await it.close()

    asyncio.run(life())


def has_failed(state: State) -> None:
    """A node was lost, and training went on."""
    record = IncidentRecord(
        id=1, cause="node-lost", summary="it was lost", node="n", rank=None, attempt=1, step=3,
        started_at=10.0, detected_at=11.0, ended_at=12.0, nodes=[f"n-{i}" for i in range(100)],
    )  # fmt: skip
    state.incidents.append(record)


def test_an_incident_is_told_of_once_the_next_fault_can_change_its_end_no_more() -> None:
    state = State(limits=Limits(node_count=1), attempt=1)
    assert settled(state, 12.0) == []
    has_failed(state)
    assert settled(state, 12.0 + SETTLES_S / 2) == []
    assert settled(state, 12.0 + SETTLES_S) == state.incidents
    open_one = msgspec.structs.replace(state.incidents[0], id=2, ended_at=None)
    state.incidents.append(open_one)
    assert settled(state, 99.0) == [], "it may have begun before the first was over"
    state.phase = Phase.FAILED
    assert settled(state, 12.0) == state.incidents


def test_spans_are_told_by_the_clock_of_the_machine_though_it_was_set_since(
    tmp_path: Path, receiver: OtlpReceiver
) -> None:
    exported(tmp_path / "gpt", has_failed, 28_800.0, endpoint=receiver.url)
    (root,) = receiver.roots()
    began_s, ended_s = root.start_time_unix_nano / 1e9, root.end_time_unix_nano / 1e9
    assert began_s == pytest.approx(10.0 + 28_800.0, abs=0.5)
    assert ended_s - began_s == pytest.approx(2.0, abs=1e-3)


def test_what_was_taken_is_known_to_the_next_controller_of_this_life_and_no_other(
    tmp_path: Path, receiver: OtlpReceiver
) -> None:
    folder = tmp_path / "gpt"
    exported(folder, has_failed, endpoint=receiver.url)
    (root,) = receiver.roots()
    assert root.trace_id.hex() == written(JOB.trace(1))
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (10 * 10**9, 12 * 10**9)
    assert len(attributes(root.attributes)["holdfast.blame"]) == 32, "bounded"
    exported(folder, has_failed, endpoint=receiver.url)
    assert len(receiver.roots()) == 1
    kept = folder / telemetry.FILE
    kept.write_text(kept.read_text().replace(str(JOB.started_ms), "7"))  # the job has begun again
    exported(folder, has_failed, endpoint=receiver.url)
    assert len(receiver.roots()) == 2


@pytest.mark.parametrize("at", [1700000000.1234561, 1700000000.1234567, 1700000000.5])
def test_what_was_found_out_at_the_very_end_belongs_to_the_incident(at: float) -> None:
    moments = Moments()
    verdict = Diagnosed(attempt=1, cause="nan", summary="it was not finite", confidence=0.9)
    for seq, when in enumerate((at - 1, at, at + 1)):
        moments.hear(Entry(seq=seq, at=when, event=verdict, actions=()))
    found = moments.between(nanoseconds(at - 0.5), nanoseconds(at))
    assert [(one.name, one.at) for one in found] == [("verdict", at)]


def test_settings_that_the_exporters_cannot_use_keep_no_controller_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "nobody")
    exported(tmp_path / "gpt", has_failed)
    assert "otlp: nothing is exported: RuntimeError: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value", "otlp", "said"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", {}, "is grpc, and only http/protobuf is supported"),
        ("NOTHING", "", {"headers_secret": {"name": "a", "key": "b"}}, "HEADERS is not set"),
    ],
)
def test_what_is_asked_for_and_cannot_be_had_is_said(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    otlp: dict[str, Any],
    said: str,
) -> None:
    monkeypatch.setenv(variable, value)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_HEADERS", raising=False)
    sending(**otlp).close(PATIENCE_S)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("holdfast: otlp: ") and said in line


def test_a_job_that_asks_for_what_is_not_installed_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = job_from_dict({"name": "gpt", "script": "t.py", "otlp": {}}, where="test")
    telemetry.require_exporter(job)
    monkeypatch.setattr(telemetry, "is_installed", lambda: False)
    with pytest.raises(Error) as raised:
        telemetry.require_exporter(job)
    assert raised.value.slug == "otlp-missing"
    telemetry.require_exporter(job.model_copy(update={"otlp": None}))


@pytest.mark.parametrize(
    "otlp",
    [
        {"endpoint": "collector:4318"},
        {"endpoint": "http://collector:4318/?token=x"},
        {"headers": {"a b": "c"}},
        {"headers": {"a": "b\nc"}},
        {"signals": []},
        {"signals": ["metrics"]},
    ],
)
def test_settings_that_no_receiver_could_be_reached_with_are_refused(otlp: object) -> None:
    with pytest.raises(Error, match="otlp"):
        job_from_dict({"name": "gpt", "script": "t.py", "otlp": otlp}, where="test")
