"""The campaign of faults counts what it did: in a real job, and in its matrix."""

import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fault_stage
import faults
from holdfast import journal
from holdfast.actions import Entry
from holdfast.events import AnyEvent, HealthChanged, Severity, StragglersFound
from holdfast.slow_ranks import SlowBy, Straggler
from holdfast.status import ActionTaken, Incident
from tests.more import long
from tests.patience import PATIENCE_S, until

CAMPAIGN = Path(faults.__file__)
STOPPED = ActionTaken(at=10.5, action="StopAttempt", reason="")


@long
@pytest.mark.slow
def test_a_campaign_tells_programs_what_it_tells_people() -> None:
    words = ("--rounds", "1", "--only", "SIGKILL", "exit with status 3", "--json")
    ran = subprocess.run(
        [sys.executable, str(CAMPAIGN), *words], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert (told["rounds"], told["not_come_to_pass"], told["false_alarms"]) == (1, 0, 0)
    assert told["could_not_be_done"] == 0
    row = told["faults"]["all"]
    assert (row["faults"], row["detected"], row["right_cause"], row["right_rank"]) == (2, 2, 2, 2)
    assert 0 <= row["median_s"] <= row["worst_s"]
    assert (
        sum(count or 0 for causes in told["confusion"].values() for count in causes.values()) == 2
    )
    for cause in next(iter(told["confusion"].values())):
        assert cause in ran.stdout.split("Named as:")[1]


ENDLESS = """#!/bin/sh
echo $$ > "$HOLDFAST_HOME.part"
mv "$HOLDFAST_HOME.part" "$HOLDFAST_HOME.pid"
exec sleep 600
"""
CAMPAIGN_WITH = """
import sys
import faults
faults.HOLDFAST = sys.argv.pop(1)
faults.main()
"""


@pytest.mark.parametrize("words", [("--clean", "600"), ("--only", "SIGKILL")])
def test_a_campaign_that_is_terminated_ends_its_job(tmp_path: Path, words: tuple[str, str]) -> None:
    """Found by hand: the job trained on, for as long as the machine ran."""
    job, kept = tmp_path / "holdfast", tmp_path / "kept"
    job.write_text(ENDLESS)
    job.chmod(0o700)
    command = [sys.executable, "-c", CAMPAIGN_WITH, str(job), *words, "--keep", str(kept)]
    path = f"{CAMPAIGN.parent}:{CAMPAIGN.parents[1]}"
    environment = {**os.environ, "PYTHONPATH": path, fault_stage.ENTERED: ""}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    until(lambda: process.poll() is not None or bool(list(kept.rglob("home.pid"))))
    [pid] = [int(path.read_text()) for path in kept.rglob("home.pid")]
    process.terminate()
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{pid}").exists()


def test_what_was_not_seen_or_not_done_is_counted_as_that() -> None:
    campaign = [
        faults.Fault("SIGKILL", 0, at=1.0, cause="worker-killed", blamed=0, after_s=0.1),
        faults.Fault("SIGKILL", 1, at=2.0, cause="worker-killed", blamed=0, after_s=0.3),
        faults.Fault("SIGKILL", 1, at=3.0),
        faults.Fault("NaN", 1),
    ]
    row = faults._rows(campaign)["all"]
    assert (row["faults"], row["detected"], row["right_rank"], row["of"]) == (3, 2, 1, 2)
    assert faults._confusion(campaign) == {"SIGKILL": {"(not seen)": 1, "worker-killed": 2}}


def test_an_incident_before_any_fault_or_after_its_own_is_a_false_alarm() -> None:
    fault = faults.Fault("SIGKILL", 1, at=10.0)
    incidents = [{"cause": "hang", "rank": 0, "actions": [{"at": at}]} for at in (9.0, 10.5, 11.0)]
    assert faults._matched([fault], incidents) == 2
    assert (fault.cause, fault.blamed, fault.after_s) == ("hang", 0, 0.5)


def test_an_incident_of_what_is_no_fault_is_a_false_alarm() -> None:
    meant = faults.Fault("no steps: all sleep", 1, at=10.0)
    incident = {"cause": "hang", "rank": 0, "actions": [{"at": 12.0}]}
    assert faults._matched([meant], []) == 0
    assert faults._matched([meant], [incident]) == 1 and not meant.cause
    assert faults._rows([meant])["all"]["faults"] == 0


def test_what_no_steps_are_seen_of_is_done_in_jobs_of_its_own_and_what_is_no_fault_last() -> None:
    kinds = ["no steps: all sleep", "SIGKILL", "no steps: rank reads", "no steps: rank stopped"]
    first, *others = faults._jobs(kinds, 2, random.Random(1))
    assert first == ["SIGKILL", "SIGKILL"]
    assert [(sorted(job[:2]), job[2:]) for job in others] == [(sorted(kinds[2:]), kinds[:1])] * 2
    assert faults._jobs(["SIGKILL"], 9, random.Random(1)) == [["SIGKILL"] * 8, ["SIGKILL"]]


def _journal(*facts: tuple[float, AnyEvent]) -> Callable[[Path], Iterator[Entry]]:
    return lambda _book: (
        Entry(seq=n, at=at, event=fact, actions=()) for n, (at, fact) in enumerate(facts)
    )


def _straggles(rank: int) -> StragglersFound:
    one = Straggler(rank=rank, share=0.2, cause=SlowBy.ITSELF, text="")
    return StragglersFound(attempt=1, stragglers=(one,))


def test_what_is_told_after_the_next_fault_is_told_of_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow disk that was not seen is not found because a slow rank is, minutes later."""
    told = (12.0, StragglersFound(attempt=1, stragglers=())), (160.0, _straggles(1))
    monkeypatch.setattr(journal, "entries", _journal(*told))
    disk, slow = faults.Fault("slow disk", 0, at=10.0), faults.Fault("slow rank", 1, at=140.0)
    faults._noted([disk, slow], Path())
    assert (disk.cause, disk.after_s) == ("", None)
    assert (slow.cause, slow.blamed, slow.after_s) == ("straggler", 1, 20.0)


def test_a_node_that_is_named_as_silent_is_detected_then_and_acted_upon_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def silent(severity: Severity, node: str = "n") -> HealthChanged:
        return HealthChanged(node=node, condition="silent", severity=severity)

    before = (9.5, silent(Severity.WARN)), (10.5, silent(Severity.OK))
    other = (10.6, silent(Severity.WARN, "other"))
    told = _journal(*before, other, (11.8, silent(Severity.WARN)))
    monkeypatch.setattr(journal, "entries", told)
    fault = faults.Fault("agent stopped", 0, at=10.0, node="n")
    faults._noted([fault], Path())
    incident = {"cause": "node-lost", "rank": None, "actions": [{"at": 15.0}]}
    assert faults._matched([fault], [incident]) == 0
    row = faults._rows([fault])["all"]
    assert (row["median_s"], row["worst_s"], row["acted_s"], row["acted_worst_s"]) == (
        1.8,
        1.8,
        5,
        5,
    )


def _port_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        socket.create_server(other.getsockname())


def _read_only() -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/data/record")


def _bug() -> None:
    [][1]


def _incident(raises: Callable[[], None], cause: str, folder: Path) -> dict[str, Any]:
    """As the campaign reads it, of a worker that ended with this exception."""
    try:
        raises()
    except Exception:
        text = traceback.format_exc()
    found = Incident(
        id=1, cause=cause, summary="", node="node-0", rank=1, attempt=1, step=None, started_at=10.5,
        ended_at=None, lost_s=0.0, steps_lost=0, bill={}, actions=(STOPPED,), traceback=text,
    )  # fmt: skip
    read: dict[str, Any] = msgspec.to_builtins(found)
    return read | {"known_problem": faults._problem_of(read, folder)}


@pytest.mark.parametrize(
    ("kind", "raises", "cause", "right"),
    [
        ("port taken", _port_taken, "worker-exception", 1),
        ("port taken", _bug, "worker-exception", 0),
        ("port taken", _read_only, "worker-exception", 0),
        ("port taken", _port_taken, "environment", 0),
        ("read-only folder", _read_only, "worker-exception", 1),
        ("read-only folder", _bug, "worker-exception", 0),
        ("read-only folder", _port_taken, "worker-exception", 0),
        ("exception", _bug, "worker-exception", 1),
    ],
)
def test_where_any_exception_has_the_same_cause_the_known_problem_has_to_be_named(
    kind: str, raises: Callable[[], None], cause: str, right: int, tmp_path: Path
) -> None:
    fault = faults.Fault(kind, 1, at=10.0)
    assert faults._matched([fault], [_incident(raises, cause, tmp_path)]) == 0
    assert faults._rows([fault])["all"]["right_cause"] == right, fault.cause
