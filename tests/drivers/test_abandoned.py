"""A job whose controller died, after any line of its journal, is stopped in its record, too."""

import json
import os
import shutil
from pathlib import Path

import pytest

import recorded_job
from holdfast import cli, journal
from holdfast.cli.sweep_run import stop_trials
from holdfast.drivers import engines, records, sweeps
from holdfast.drivers.fencing import Fenced, Stuck
from holdfast.drivers.local import stop_abandoned
from holdfast.errors import Error
from holdfast.planning.trials import trials_of
from holdfast.spec import Job

NOW = 1.7e9
LINES = 120  # of a journal with several faults


@pytest.fixture
def whole(home: Path) -> Path:
    """The record of a job of which nothing runs."""
    folder = home / "jobs" / "job"
    recorded_job.record(folder, days=3, nodes=4, until=NOW, rate=2000.0)
    return folder


def test_it_is_stopped_wherever_its_journal_ends(whole: Path) -> None:
    lines = (whole / "journal.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) > LINES
    phases = set()
    for kept in range(1, LINES, 3):
        folder = whole.with_name(f"job-{kept}")
        folder.mkdir()
        shutil.copy(whole / "job.json", folder)
        (folder / "journal.jsonl").write_bytes(b"".join(lines[:kept]))
        phases.add(records.state_of(folder).phase)
        assert stop_abandoned(folder, "holdfast stop").killed == 0
        found = records.status(folder, NOW)
        assert (found.phase, found.controller) == ("stopped", "ended"), kept
        journal.state_path(folder / "journal.jsonl").unlink(missing_ok=True)
        assert records.state_of(folder).phase == "stopped", kept
    assert phases >= {"waiting", "starting", "running", "recovering"}


def test_a_record_that_has_ended_is_left_alone(whole: Path) -> None:
    stop_abandoned(whole, "holdfast stop")
    path = whole / "journal.jsonl"
    files = [one for one in (path, journal.state_path(path)) if one.exists()]
    before = [(one.read_bytes(), one.stat().st_mtime_ns) for one in files]
    stop_abandoned(whole, "holdfast stop")
    assert [(one.read_bytes(), one.stat().st_mtime_ns) for one in files] == before


def test_a_damaged_journal_is_left_as_it_is_and_that_is_said(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = whole / "journal.jsonl"
    text = bytearray(path.read_bytes())
    text[len(text) // 2] ^= 1
    path.write_bytes(text)
    assert cli.main(["stop", "job"]) == 0
    said = capsys.readouterr()
    assert "does not say that it was stopped" in said.err and "no process of job" in said.out
    assert path.read_bytes() == text


def test_a_controller_that_has_it_meanwhile_keeps_its_nodes_and_its_record(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when `holdfast resume` takes the job over while `holdfast stop` begins."""
    monkeypatch.setattr("holdfast.drivers.engines.Processes.clear", pytest.fail)
    before = (whole / "journal.jsonl").read_bytes()
    with records.locked(whole), pytest.raises(Error, match="already running"):
        stop_abandoned(whole, "holdfast stop")
    assert (whole / "journal.jsonl").read_bytes() == before
    assert journal.read_saved(whole / "journal.jsonl") is None


def test_nobody_can_take_a_job_over_while_its_nodes_are_killed(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear, taken = engines.Processes.clear, []

    def cleared(engine: engines.Processes) -> Fenced:
        taken.append(records.controller_alive(whole))
        return clear(engine)

    monkeypatch.setattr(engines.Processes, "clear", cleared)
    stop_abandoned(whole, "holdfast stop")
    assert taken == [True] and not records.controller_alive(whole)


def test_a_controller_that_has_just_taken_it_over_is_asked(
    whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = iter((False, True))
    monkeypatch.setattr("holdfast.cli.stop.ask_to_stop", lambda *_: next(asked))
    monkeypatch.setattr("holdfast.cli.stop._stopped", lambda _: True)
    with records.locked(whole):
        assert cli.main(["stop", "job"]) == 0
    assert "job has stopped" in capsys.readouterr().out


def test_a_job_whose_lock_cannot_be_had_for_lack_of_rights_is_ended_all_the_same(
    whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(records, "_open_lock", refused)
    assert stop_abandoned(whole, "holdfast stop").killed == 0
    assert "does not say that it was stopped" in capsys.readouterr().err


@pytest.fixture
def ray_is_gone(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job was one on a Ray cluster that does not answer any more."""

    def away() -> None:
        raise Error(
            "ray-unreachable", "there is no Ray cluster at 10.0.0.1:6379", why="x", help="y"
        )

    engines.use_ray(whole, "10.0.0.1:6379")
    monkeypatch.setattr(engines, "ray_engine", away)


@pytest.mark.usefixtures("ray_is_gone")
def test_a_job_that_has_ended_needs_its_ray_cluster_no_more(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (whole / engines.RAY_FILE).rename(aside := whole / "aside")
    stop_abandoned(whole, "holdfast stop")
    aside.rename(whole / engines.RAY_FILE)
    capsys.readouterr()
    assert cli.main(["stop", "job"]) == 0
    said = capsys.readouterr()
    assert said.out == "job had already ended: stopped\n"
    assert "there is no Ray cluster at 10.0.0.1:6379" in said.err
    os.close(records.create(records.load_job(whole), whole, replace=True, now=NOW))
    assert [path.name for path in whole.parent.iterdir()] == ["job"], "and may be replaced"


@pytest.mark.usefixtures("ray_is_gone")
@pytest.mark.parametrize("ends", [["stop", "job"], ["resume", "job"], ["run", "--replace"]])
def test_one_that_has_not_may_run_there_and_is_kept(
    whole: Path, tmp_path: Path, ends: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused with the command that ends it all the same."""
    if ends == ["run", "--replace"]:
        (tmp_path / "t.py").touch()
        ends = [*ends, "--name", "job", str(tmp_path / "t.py")]
    before = (whole / "journal.jsonl").read_bytes()
    assert cli.main(ends) == 3
    said = capsys.readouterr().err
    assert "error[ray-unreachable]: there is no Ray cluster at 10.0.0.1:6379" in said
    assert "or: holdfast stop --force job   (if that cluster is gone for good)" in said
    assert (whole / "journal.jsonl").read_bytes() == before
    assert not records.state_of(whole).ended


@pytest.mark.usefixtures("ray_is_gone")
def test_one_whose_cluster_is_gone_for_good_is_ended_and_its_record_says_what_is_not_known(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [node.name for node in records.state_of(whole).nodes.values()]
    before = (whole / "journal.jsonl").read_bytes()
    assert nodes and cli.main(["stop", "job", "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "job": "job",
        "asked": False,
        "killed_count": 0,
        "unreached": "there is no Ray cluster at 10.0.0.1:6379 (x)",
    }
    assert (whole / "journal.jsonl").read_bytes().startswith(before), "nothing is forgotten"
    state = records.state_of(whole)
    assert state.ended and state.why == (
        "holdfast stop --force (there is no Ray cluster at 10.0.0.1:6379 (x); whether its nodes "
        "still run is not known) asked to stop"
    )
    assert cli.main(["why", "job"]) == 0
    assert "whether it still runs is not known" in capsys.readouterr().out
    assert cli.main(["stop", "job"]) == 0
    assert capsys.readouterr().out == "job had already ended: stopped\n"
    os.close(records.create(records.load_job(whole), whole, replace=True, now=NOW))


@pytest.mark.usefixtures("ray_is_gone")
def test_what_runs_here_of_a_job_whose_cluster_is_gone_is_killed_and_stays_in_the_record(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = [Fenced(2, (Stuck(7, "node-0", "D", ""),)), Fenced(2, ())]
    monkeypatch.setattr("holdfast.drivers.local.fence_job", lambda _: stuck.pop(0))
    with pytest.raises(Error, match="still running"):
        stop_abandoned(whole, "holdfast stop --force", force=True)
    assert not records.state_of(whole).ended
    assert stop_abandoned(whole, "holdfast stop --force", force=True).killed == 2
    assert records.state_of(whole).ended


def test_a_forced_stop_of_a_job_that_is_reached_is_a_stop(whole: Path) -> None:
    assert not stop_abandoned(whole, "holdfast stop --force", force=True).unreached
    assert "not known" not in records.state_of(whole).why


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("damaged", [False, True])
def test_a_trial_whose_controller_has_died_is_stopped_with_its_sweep(
    damaged: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job.model_validate({"name": "find", "script": "t.py", "sweep": {"over": {"lr": [1, 2]}}})
    first, *_ = trials_of(job)
    folder = records.job_dir(first.job.name)
    recorded_job.record(folder, days=3, nodes=4, until=NOW, rate=2000.0)
    if damaged:
        path = folder / "journal.jsonl"
        text = bytearray(path.read_bytes())
        text[len(text) // 2] ^= 1
        path.write_bytes(text)
    else:
        assert sweeps.phase_of(first.job.name) == sweeps.LOST
    assert stop_trials(trials_of(job)) == 1
    if damaged:
        assert "does not say that it was stopped" in capsys.readouterr().err
    else:
        assert sweeps.phase_of(first.job.name) == "stopped"
        assert stop_trials(trials_of(job)) == 0
