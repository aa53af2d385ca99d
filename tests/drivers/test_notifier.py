"""Notices on their way: to a real server that answers, refuses, is away, or comes back."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.actions import Outcome
from holdfast.controller import IncidentRecord, Limits, State
from holdfast.controller.phases import Phase
from holdfast.drivers import notifier
from holdfast.drivers.notifier import Notifier, post
from holdfast.drivers.records import NOTIFIED
from holdfast.spec.load import job_from_dict
from holdfast.status import Goodput
from tests.receiving import Receiving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiving]:
    monkeypatch.setattr(notifier, "FIRST_PAUSE_S", 0.01)
    found = Receiving()
    yield found
    found.close()


Said = list[str]
ACCOUNT = Goodput(job="gpt", wall_s=2.0, ettr=0.5, ettr_1h=0.5, buckets={}, observed=True)


def told(
    folder: Path,
    *rules: dict[str, Any],
    change: Callable[[State], None],
    clock: Callable[[], float] = time.time,
) -> Said:
    """What is said while a job whose state is changed like this is told of."""
    job = job_from_dict({"name": "gpt", "script": "t.py", "notify": list(rules)}, where="test")
    said: Said = []

    async def life() -> None:
        state = State(limits=Limits(node_count=1), phase=Phase.RUNNING, attempt=1)
        it = Notifier(job, state, folder, lambda: ACCOUNT, clock)
        it.begin(said.append)
        await asyncio.sleep(0)
        change(state)
        it.heard()
        await it.close()

    asyncio.run(life())
    return said


def ends(state: State) -> None:
    """The job has succeeded."""
    state.phase, state.outcome = Phase.SUCCEEDED, Outcome.SUCCEEDED


def test_each_receiver_is_told_in_its_format(
    tmp_path: Path, server: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAT", f"{server.url}/chat?token=geheim")
    monkeypatch.setenv("HOLDFAST_NOTIFY_2", f"{server.url}/alerts")
    rules = (
        {"url": f"{server.url}/plain"},
        {"url_env": "CHAT", "format": "slack"},
        {"url_secret": {"name": "a", "key": "b"}, "format": "alertmanager"},
    )
    assert told(tmp_path, *rules, change=ends) == []
    found = dict(server.got)
    assert found["/plain"]["outcome"] == "succeeded"
    assert found["/chat?token=geheim"]["text"].startswith("gpt: succeeded")
    assert found["/alerts"][0]["labels"]["alertname"] == "HoldfastEnded"
    assert told(tmp_path, *rules, change=ends) == [] and len(server.got) == 3, "told already"


def test_what_is_refused_for_now_is_sent_again_and_said_once(
    tmp_path: Path, server: Receiving
) -> None:
    server.answers = [503, 429, 500]
    (line,) = told(tmp_path, {"url": f"{server.url}/x?token=geheim"}, change=ends)
    assert line.endswith("the receiver answered 503 Service Unavailable; retrying")
    assert "geheim" not in line and len(server.got) == 4


@pytest.mark.parametrize("answer", [400, 404, 302])
def test_what_is_refused_for_good_is_dropped_and_said(
    tmp_path: Path, server: Receiving, answer: int
) -> None:
    server.answers = [answer]
    (line,) = told(tmp_path, {"url": server.url}, change=ends)
    assert f"answered {answer}" in line and "not delivered: succeeded" in line
    assert len(server.got) == 1, "no redirect is followed"


def test_a_receiver_that_is_away_holds_up_neither_the_others_nor_the_end(
    tmp_path: Path, server: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "LAST_S", 0.5)
    gone = Receiving()
    gone.close()
    said = told(tmp_path, {"url": gone.url}, {"url": server.url}, change=ends)
    assert len(server.got) == 1
    assert "cannot be reached" in said[0] and said[-1].endswith("not delivered in time")


@pytest.mark.parametrize("set_by_s", [-28_800.0, 28_800.0])
@pytest.mark.parametrize("lasted_s", [1.0, 100.0])
def test_a_wall_clock_that_is_set_during_a_job_changes_neither_what_is_told_nor_how_long_it_took(
    tmp_path: Path, server: Receiving, set_by_s: float, lasted_s: float
) -> None:
    began = time.time() - set_by_s  # by the controller, whose clock goes on as it was

    def is_struck(state: State) -> None:
        record = IncidentRecord(
            id=1, cause="hang", summary="it hangs", node="n", rank=0, attempt=1, step=3,
            started_at=began - lasted_s, detected_at=began - lasted_s,
        )  # fmt: skip
        state.incidents.append(record)

    told(
        tmp_path, {"url": server.url, "after_s": 30}, change=is_struck,
        clock=lambda: time.time() - set_by_s,
    )  # fmt: skip
    if lasted_s < 30:
        assert server.got == []
        return
    ((_, body),) = server.got
    assert "stopped for 100." in body["text"]
    assert abs(body["at"] - time.time()) < 60, "by the clock that its receiver has, too"
    assert body["at"] - body["began_at"] == pytest.approx(lasted_s, abs=30)


def test_a_url_that_is_missing_is_said_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    said = told(
        tmp_path, {"url_env": "NOWHERE"}, {"url_secret": {"name": "a", "key": "b"}}, change=ends
    )
    assert said == [
        "notify[0]: variable NOWHERE is not set; notifications are disabled",
        "notify[1]: url_secret is for jobs on Kubernetes; notifications are disabled",
    ]


@pytest.mark.parametrize(
    "url", ["http://", "nonsense", "http://127.0.0.1:99999/", "http://\x00/", "http://[abc"]
)
def test_a_url_that_is_none_raises_nothing(url: str) -> None:
    why, _ = post(url, b"{}")
    assert why


def test_a_url_with_white_space_is_taken_and_a_malformed_one_keeps_no_controller_from_starting(
    tmp_path: Path, server: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_NOTIFY_0", f"{server.url}/a\n")  # as in many a Secret
    secret = {"url_secret": {"name": "a", "key": "b"}}
    (line,) = told(tmp_path, secret, {"url": "http://[abc"}, change=ends)
    assert [place for place, _ in server.got] == ["/a"]
    assert line.startswith("notify[1]: its URL is not valid; not delivered")


def test_a_damaged_or_unwritable_memory_of_what_was_told_stops_nothing(
    tmp_path: Path, server: Receiving
) -> None:
    (tmp_path / NOTIFIED).write_text("{broken")
    assert told(tmp_path, {"url": server.url}, change=ends) == []
    missing = tmp_path / "no" / "such"
    (line,) = told(missing, {"url": server.url}, change=ends)
    assert "cannot be written" in line and len(server.got) == 2
