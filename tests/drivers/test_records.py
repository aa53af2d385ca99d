"""The folder of a job is made whole or not at all, and replaced only by a whole one."""

import errno
import os
import time
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from holdfast.drivers import engines, records
from holdfast.drivers.local import stop_abandoned, withdraw_address
from holdfast.errors import Error
from holdfast.shell.clock import Clock
from holdfast.spec import Job, job_from_dict

JOB: Job = job_from_dict({"name": "run", "command": ["true"]}, where="test")


@pytest.mark.parametrize("set_by_s", [-28_800.0, 28_800.0])
def test_what_a_job_under_way_has_cost_does_not_depend_on_what_the_clock_is_set_to(
    tmp_path: Path, set_by_s: float
) -> None:
    """Nor on how long the machine has slept. Of another machine only the wall clock is known."""
    folder, began, clock = tmp_path / "run", time.time(), Clock()
    lock = records.create(JOB, folder, now=began - 3_600)
    address = records.Address(
        host="h", port=1, pid=1, ahead_s=clock.ahead_s, boot=records.this_boot()
    )
    records.write_private(folder / "controller.json", msgspec.json.encode(address).decode())
    assert 3_600 <= records.goodput(folder, time.time() + set_by_s).wall_s < 4_200
    elsewhere = msgspec.structs.replace(address, boot="another")
    records.write_private(folder / "controller.json", msgspec.json.encode(elsewhere).decode())
    assert records.goodput(folder, began + 25_200.0).wall_s == 28_800.0
    os.close(lock)


def failing(error: BaseException) -> object:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


FAILURES = [
    OSError(errno.ENOSPC, "No space left on device"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    "step", ["write_private", "journal.Journal.create", "secrets.token_urlsafe"]
)
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_where_making_a_folder_fails_everything_is_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, step: str, replace: bool
) -> None:
    folder = tmp_path / "run"
    if replace:
        os.close(records.create(JOB, folder, now=1.0))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(f"holdfast.drivers.records.{step}", failing(error))
    with pytest.raises(Error if isinstance(error, OSError) else type(error)) as raised:
        records.create(JOB, folder, replace=replace, now=2.0)
    if isinstance(raised.value, Error):
        assert (raised.value.slug, raised.value.why) == ("disk-full", "No space left on device")
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before
    assert os.listdir(tmp_path) == (["run"] if replace else [])


def test_whatever_ends_the_command_once_a_folder_is_there_it_is_known_to_run_on_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise `resume` would run the job on its own machine."""
    folder = tmp_path / "run"
    rename = Path.rename

    def then_killed(path: Path, target: Path) -> None:
        rename(path, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", then_killed)
    with pytest.raises(KeyboardInterrupt):
        records.create(JOB, folder, ray="10.0.0.1:6379", now=1.0)
    monkeypatch.setattr(engines, "ray_engine", failing(LookupError("asks Ray")))
    with pytest.raises(LookupError, match="asks Ray"), engines.opened(folder):
        pass


def test_a_record_that_cannot_be_put_in_place_gives_the_former_one_its_name_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    os.close(records.create(JOB, folder, now=1.0))
    token = records.read_secret(folder)
    rename = Path.rename

    def refused(path: Path, target: Path) -> Path:
        if target == folder and not path.name.endswith(".old"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(Error) as raised:
        records.create(JOB, folder, replace=True, now=2.0)
    assert raised.value.slug == "disk-failing"
    assert os.listdir(tmp_path) == ["run"]
    assert records.read_secret(folder) == token


def test_of_two_that_make_the_same_folder_the_second_hears_that_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    os.close(records.create(JOB, folder, now=1.0))
    token = records.read_secret(folder)
    monkeypatch.setattr("os.path.lexists", lambda _: False)  # as it was when the second one looked
    with pytest.raises(Error) as raised:
        records.create(JOB, folder, now=2.0)
    assert raised.value.slug == "job-exists"
    assert os.listdir(tmp_path) == ["run"]
    assert records.read_secret(folder) == token


def test_the_name_of_a_job_whose_controller_died_is_told_with_how_it_goes_on(
    tmp_path: Path,
) -> None:
    """To drop its record, as for a job that has ended, would kill workers that train."""
    folder = tmp_path / "run"
    os.close(records.create(JOB, folder, now=1.0))

    def refused() -> Error:
        with pytest.raises(Error) as raised:
            records.create(JOB, folder, now=2.0)
        assert raised.value.slug == "job-exists"
        return raised.value

    assert "holdfast resume run" in refused().help
    stop_abandoned(folder, "holdfast stop")
    assert "holdfast resume" not in refused().help


def test_a_replaced_record_is_gone_and_nothing_else_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    os.close(records.create(JOB, folder, now=1.0))
    token = records.read_secret(folder)
    records.create(JOB, folder, replace=True, now=2.0)
    assert os.listdir(tmp_path) == ["run"]
    assert records.read_secret(folder) != token


def test_whoever_reads_while_a_stopped_job_begins_again_finds_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    os.close(records.create(JOB, folder, now=1.0))
    (folder / "journal.state").write_text("state")
    (folder / "next-journal").write_text("of a process that died")
    before = (folder / records.JOURNAL).read_bytes()
    steps: list[str] = []

    def watched(name: str) -> None:
        does = getattr(os, name)

        def call(*given: object, **options: object) -> object:
            assert (folder / records.JOURNAL).exists()
            steps.append(name)
            return does(*given, **options)

        monkeypatch.setattr(os, name, call)

    for name in ("open", "link", "rename", "replace"):
        watched(name)
    records.begin_again(JOB, folder, now=2.0)
    assert (folder / records.JOURNAL).exists() and "link" in steps
    assert (folder / "journal-1.jsonl").read_bytes() == before
    assert (folder / "journal-1.state").read_text() == "state"
    assert (folder / records.JOURNAL).read_bytes() != before
    assert sorted(p.name for p in folder.glob("*journal*")) == [
        "journal-1.jsonl", "journal-1.state", records.JOURNAL,
    ]  # fmt: skip


def test_a_job_that_begins_again_tells_its_receivers_of_its_first_incident_anew(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    os.close(records.create(JOB, folder, now=1.0))
    (folder / records.NOTIFIED).write_text('{"0":{"incidents":{"1":"over"},"ended":true}}')
    records.begin_again(JOB, folder, now=2.0)
    assert not (folder / records.NOTIFIED).exists()


def test_a_death_while_a_job_begins_again_keeps_its_former_journal_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    os.close(records.create(JOB, folder, now=1.0))
    (folder / "journal.state").write_text("state")
    before = (folder / records.JOURNAL).read_bytes()
    with monkeypatch.context() as dying:
        dying.setattr(os, "replace", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            records.begin_again(JOB, folder, now=2.0)
    records.begin_again(JOB, folder, now=3.0)
    assert (folder / "journal-1.jsonl").read_bytes() == before
    assert sorted(p.name for p in folder.glob("*journal*")) == [
        "journal-1.jsonl", "journal-1.state", records.JOURNAL,
    ]  # fmt: skip


def test_an_address_that_cannot_be_removed_does_not_hide_how_the_job_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "controller.json").mkdir()  # as in a folder that has become read-only
    withdraw_address(tmp_path)
    assert "the address of the controller cannot be removed" in capsys.readouterr().err


def test_the_address_of_another_controller_stays(tmp_path: Path) -> None:
    """The folder was removed while a job ran, and another job has been made there."""
    other = records.Address(host="127.0.0.1", port=7, pid=os.getppid())
    records.write_private(tmp_path / "controller.json", msgspec.json.encode(other).decode())
    withdraw_address(tmp_path)
    assert records.read_address(tmp_path) == other
    own = msgspec.structs.replace(other, pid=os.getpid())
    records.write_private(tmp_path / "controller.json", msgspec.json.encode(own).decode())
    withdraw_address(tmp_path)
    assert records.read_address(tmp_path) is None
