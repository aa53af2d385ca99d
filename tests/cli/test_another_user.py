"""Records of somebody else: what may be read is told, what may not is not said to be missing.

For root rights mean nothing, so under root the commands run with another effective user. Modules
are imported before, by running each of them once: their files may be out of that user's reach."""

import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import recorded_job
from holdfast import cli
from holdfast.errors import Error, ExitStatus
from holdfast.reporting import changes
from holdfast.spec import Job
from holdfast.spec.files import require_files
from tests.patience import PATIENCE_S

NOBODY = 65534
VERBS = [
    ["status", "job"],
    ["why", "job"],
    ["incidents", "job"],
    ["goodput", "job"],
    ["logs", "job", "--level", "debug"],
    ["report", "job"],
    ["list"],
    ["top", "--ended"],
]


@contextmanager
def _as_another() -> Iterator[None]:
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(was)


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A record that everybody may read and nobody may write."""
    with tempfile.TemporaryDirectory() as home:
        monkeypatch.setenv("HOLDFAST_HOME", home)
        folder = Path(home, "jobs", "job")
        recorded_job.record(folder, days=0.4, nodes=4, until=1.7e9, rate=4000.0)
        (folder / "lock").touch()
        _allow(Path(home), stat.S_IWUSR)
        yield folder
        _allow(Path(home), 0, stat.S_IWUSR)


def _allow(home: Path, take: int, give: int = 0) -> None:
    for path in (home, *home.rglob("*")):
        rights = 0o555 if path.is_dir() else 0o444
        path.chmod((path.stat().st_mode | rights | give) & ~take)


@pytest.mark.usefixtures("record")
def test_what_may_only_be_read_is_told_as_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SEEDS", "SEEDS_LEAST"):
        monkeypatch.setattr(changes, name, 1)
    monkeypatch.setattr(changes, "ENOUGH_S", PATIENCE_S)  # as many worlds for both
    for verb in VERBS:
        status, told = cli.main(verb), _ageless(capsys.readouterr().out)
        with _as_another():
            assert cli.main(verb) == status, capsys.readouterr().err
        assert _ageless(capsys.readouterr().out) == told, verb


def _ageless(text: str) -> str:
    """Without what changes by the minute."""
    return re.sub(r"\d+ h \d+ min", "", text.partition("now ")[0])


@pytest.mark.parametrize("verb", [["status", "job"], ["status"]])
def test_a_job_that_may_not_be_looked_into_is_not_said_to_be_missing(
    verb: list[str], record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status"]) == 0
    record.chmod(0)
    with _as_another():
        assert cli.main(verb) != 0
    record.chmod(0o555)
    assert "Permission denied" in capsys.readouterr().err


def test_of_another_users_job_it_is_not_said_that_nothing_of_it_runs(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its processes are not to be seen, and what is not seen was said not to be there."""
    (record / "lock").chmod(0o400 if os.geteuid() else 0o444)
    assert cli.main(["list"]) == 0
    with _as_another():
        assert cli.main(["stop", "job"]) == ExitStatus.PLATFORM
    told = capsys.readouterr()
    assert "Permission denied" in told.err and "no process" not in told.out


@pytest.mark.parametrize(("closed", "words"), [("", "folder"), ("train.py", "script")])
def test_what_may_not_be_read_is_refused_before_anything_starts(closed: str, words: str) -> None:
    """A script without the right to read it was started twice, to fail each time."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(name="job", script=f"{folder}/train.py", workdir=folder)
        for path in (Path(folder), Path(folder, "train.py")):
            path.touch()
            path.chmod(0o555)
        with _as_another():
            require_files(job)
        Path(folder, closed).chmod(0)
        with _as_another(), pytest.raises(Error, match=f"the.* {words} {folder}") as raised:
            require_files(job)
        assert raised.value.why == "Permission denied"
