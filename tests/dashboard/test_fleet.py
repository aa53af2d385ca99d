"""A list of jobs, some of which cannot be read, or are gone, or are many."""

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import recorded_job
from holdfast.dashboard import fleet as fleets
from holdfast.dashboard.api import fields, fleet_rows, row
from holdfast.dashboard.fleet import FolderFleet, Glances
from holdfast.dashboard.job_record import JobLook, JobRecord, LocalSite
from holdfast.dashboard.journal_reader import JournalReader
from holdfast.drivers import client, records
from holdfast.errors import Error
from holdfast.messages import StacksReply, StatusReply, ToClient
from tests.patience import PATIENCE_S, until


class Known:
    """A fleet of records that give what is said here, or raise it."""

    title = "made up"

    def __init__(self, **given: Any) -> None:
        self.given, self.looks = given, Counter[str]()
        self.versions: dict[str, object] = {}
        self.free = threading.Event()
        self.free.set()

    def names(self) -> list[str]:
        return list(self.given)

    def record(self, name: str) -> "KnownRecord":
        return KnownRecord(self, name)

    def version(self, name: str) -> object | None:
        return self.versions.get(name)


class KnownRecord:
    """One of these."""

    def __init__(self, fleet: Known, name: str) -> None:
        self._fleet, self._name = fleet, name

    def look(self) -> Any:
        assert self._fleet.free.wait(PATIENCE_S)
        self._fleet.looks[self._name] += 1
        found = self._fleet.given[self._name]
        if isinstance(found, Exception):
            raise found
        return found


@pytest.mark.parametrize(
    "reply",
    [msgspec.ValidationError("Object missing required field"), msgspec.DecodeError("truncated"),
     StacksReply(groups=()), StatusReply(status=b"{}"), StatusReply(status=b"garbage")],
)  # fmt: skip
def test_a_controller_of_another_version_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: ToClient | Exception
) -> None:
    def answered(*_: object, **__: object) -> ToClient:
        if isinstance(reply, Exception):
            raise reply
        return reply

    monkeypatch.setattr(client, "request", answered)
    monkeypatch.setattr(records, "controller_alive", lambda _: True)
    assert LocalSite(tmp_path).status() is None


@pytest.mark.parametrize("error", [ValueError("odd"), AssertionError(), OSError(28, "full")])
def test_a_job_that_cannot_be_read_hinders_no_other(error: Exception) -> None:
    refused = Error("job-not-found", "it is gone", why="removed", help="holdfast list")
    glances = Glances(Known(odd=error, refused=refused), row)  # type: ignore[arg-type]
    assert until(lambda: all("error" in one for one in fleet_rows(glances)))
    odd, other = fleet_rows(glances)
    assert odd["error"]["slug"] in ("system-error", "disk-full") and odd["error"]["why"]
    assert other["error"] == fields(refused)


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A folder with three jobs."""
    home, now = tmp_path / "jobs", time.time()
    for name in ("over", "open", "other"):
        recorded_job.record(home / name, days=0.01, nodes=1, until=now, rate=1.0)
    return home


def test_what_was_seen_last_is_shown_until_there_is_something_newer(jobs: Path) -> None:
    look = JobRecord(jobs / "open").look()
    fleet = Known(open=look)
    glances = Glances(fleet, row)  # type: ignore[arg-type]
    assert until(lambda: "phase" in fleet_rows(glances)[0])
    fleet.free.clear()
    for _ in range(2):
        assert "phase" in fleet_rows(glances)[0]
    fleet.given["open"] = look._replace(loss=9.0)
    fleet.free.set()
    assert until(lambda: fleet_rows(glances)[0]["loss"] == 9.0)
    del fleet.given["open"]
    assert fleet_rows(glances) == [] and not glances._known and not glances._under_way


def test_a_job_that_has_ended_is_read_again_only_when_its_record_differs(jobs: Path) -> None:
    look = JobRecord(jobs / "open").look()
    ended = look._replace(
        status=msgspec.structs.replace(look.status, outcome="succeeded", controller="ended")
    )
    fleet = Known(over=ended, live=look)
    fleet.versions = {"over": 1, "live": 1}
    glances = Glances(fleet, row)  # type: ignore[arg-type]
    assert until(lambda: fleet_rows(glances) and fleet.looks["live"] >= 4)
    assert fleet.looks["over"] == 1
    fleet.versions["over"] = 2
    fleet.given["over"] = look
    assert until(lambda: fleet_rows(glances)[0]["outcome"] is None)


def test_a_folder_of_more_jobs_than_are_kept_is_not_read_for_ever(
    jobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that have ended are no longer asked for; of the others the readers are kept."""
    monkeypatch.setattr(fleets, "RECORDS_MAX", 2)
    fleet = FolderFleet(jobs, "here")
    first = fleet.record("open")
    fleet.record("other")
    assert fleet.record("open") is first
    fleet.record("over")
    assert fleet.record("open") is first, "what was asked for lately is kept"
    version = fleet.version("over")
    assert version is not None and version == fleet.version("over")
    with (jobs / "over" / records.JOURNAL).open("ab") as file:
        file.write(b"\n")
    assert fleet.version("over") != version and fleet.version("none") is None


def test_a_journal_whose_successor_cannot_be_read_is_begun_anew_once_it_can(jobs: Path) -> None:
    path, other = jobs / "open" / records.JOURNAL, jobs / "other" / records.JOURNAL
    reader = JournalReader(path)
    reader.read_on()
    before = reader.last_at
    fresh = path.with_suffix(".new")
    fresh.write_bytes(b"garbage\n")
    fresh.replace(path)
    for _ in range(2):
        with pytest.raises(Error):
            reader.read_on()
    lines = other.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))  # the same file by its number
    reader.read_on()
    assert 0 < reader.last_at < before and reader.trouble is None


def test_a_look_of_a_job_tells_where_a_rank_is(jobs: Path) -> None:
    look: JobLook = JobRecord(jobs / "open").look()
    names = {node.rank: node.name for node in look.status.nodes}
    assert look.node_of(look.workers_per_node - 1) == names[0]
    assert look.node_of(10_000) is None
