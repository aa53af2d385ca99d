"""A list of jobs, some of which cannot be read, or are gone, or are many."""

from pathlib import Path

import msgspec
import pytest

from holdfast.dashboard.api import fields, fleet_rows
from holdfast.dashboard.fleet import Glances
from holdfast.dashboard.job_record import JobLook, LocalSite
from holdfast.drivers import client, records
from holdfast.errors import Error
from holdfast.messages import StacksReply, StatusReply, ToClient
from tests.patience import until


class Known:
    """A fleet of records that are no more than what a look at them gives, or raises."""

    title = "made up"

    def __init__(self, *names: str) -> None:
        self.listed = list(names)
        self.raised: dict[str, Exception] = {}

    def names(self) -> list[str]:
        return self.listed

    def record(self, name: str) -> "KnownRecord":
        return KnownRecord(self, name)


class KnownRecord:
    """One of these."""

    latest = None

    def __init__(self, fleet: Known, name: str) -> None:
        self._fleet, self._name = fleet, name

    def look(self) -> JobLook:
        raise self._fleet.raised[self._name]


@pytest.mark.parametrize(
    "reply",
    [msgspec.ValidationError("Object missing required field"), msgspec.DecodeError("truncated"),
     StacksReply(groups=()), StatusReply(status=b"{}"), StatusReply(status=b"garbage")],
)  # fmt: skip
def test_a_controller_of_another_version_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: ToClient | Exception
) -> None:
    def answered(*_: object) -> ToClient:
        if isinstance(reply, Exception):
            raise reply
        return reply

    monkeypatch.setattr(client, "request", answered)
    monkeypatch.setattr(records, "controller_alive", lambda _: True)
    assert LocalSite(tmp_path).status() is None


@pytest.mark.parametrize("error", [ValueError("odd"), AssertionError(), OSError(28, "full")])
def test_a_job_that_cannot_be_read_hinders_no_other(error: Exception) -> None:
    fleet = Known("odd", "refused")
    refused = Error("job-not-found", "it is gone", why="removed", help="holdfast list")
    fleet.raised = {"odd": error, "refused": refused}
    glances = Glances(fleet)  # type: ignore[arg-type]
    assert until(lambda: all("error" in row for row in fleet_rows(glances)))
    odd, other = fleet_rows(glances)
    assert odd["error"]["slug"] in ("system-error", "disk-full") and odd["error"]["why"]
    assert other["error"] == fields(refused)
