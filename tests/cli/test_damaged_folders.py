"""Whatever a file in a job's folder has become, every verb ends: with an error, or the rest."""

import fcntl
import functools
import importlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer.main

from holdfast import cli, journal
from holdfast.actions import Entry, Outcome
from holdfast.cli import foreground
from holdfast.controller import Limits
from holdfast.drivers import records
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    Diagnosed,
    JobSubmitted,
    NodeJoined,
    NodeReady,
    Progress,
    StopRequested,
    Store,
    WorkerExited,
)
from holdfast.replay import replay
from holdfast.spec import job_from_dict
from tests.more import thinned

LOG = "logs/attempt-1/rank-0.log"
EVENTS: tuple[AnyEvent, ...] = (
    JobSubmitted(),
    NodeJoined(node="node-0-a", name="node-0", address="127.0.0.1", workers=1),
    NodeReady(node="node-0-a", store=Store("127.0.0.1", 1, True)),
    WorkerExited(
        node="node-0-a", attempt=1, rank=0, exit_code=1, signal=None, progress=Progress(step=7),
        log=LOG,
    ),
    AttemptStopped(attempt=1, store=Store("127.0.0.1", 2, True)),
    Diagnosed(attempt=1, cause="worker-killed", summary="it was killed", confidence=1.0),
    StopRequested(by="test", now=True),
    AttemptStopped(attempt=2, store=None),
)  # fmt: skip
VERBS = (
    ("list",), ("status", "--all"), ("status", "hurt"), ("watch", "hurt"), ("logs", "hurt"),
    ("why", "hurt"), ("incidents", "hurt"), ("goodput", "hurt"), ("stop", "hurt"),
    ("resume", "hurt"), ("checkpoint", "list", "hurt"),
)  # fmt: skip
FILES = (
    "job.json", "journal.jsonl", "journal.state", "lock", "token", "controller.json",
    "nodes/node-0/agent.json", LOG,
)  # fmt: skip


def _large(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 30)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path,
    "empty": lambda path: path.touch(),
    "no text": lambda path: path.write_bytes(b'{"journal":2,"host":"\xff\xfe\x00"}\n'),
    "other JSON": lambda path: path.write_bytes(b'{"journal":{},"host":"a b","port":-1,"pid":1}\n'),
    "deep": lambda path: path.write_bytes(b"[" * 100_000 + b"\n"),
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a loop": lambda path: path.symlink_to(path.name),
    "a gigabyte": _large,
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job that has had an incident and was stopped."""
    home = tmp_path_factory.mktemp("template")
    job = job_from_dict({"name": "hurt", "command": ["true"]}, where="test")
    folder = home / "jobs" / "hurt"
    records.create(job, folder, now=1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "STATE_EVERY", 5)
        controller, book = replay(folder / "journal.jsonl", Limits.of(job))
        for seq, event in enumerate(EVENTS, start=1):
            at = 1.0 + seq
            book.append(Entry(seq, at, event, tuple(controller.handle(event, at))))
            book.sync()
            book.save(controller.state)
        book.close()
    assert controller.state.ended
    (folder / "nodes/node-0").mkdir(parents=True)
    (folder / "nodes/node-0/agent.json").write_text('{"node":"node-0-a","name":"node-0","pid":1}')
    (folder / LOG).parent.mkdir(parents=True)
    (folder / LOG).write_text("what it printed\n")
    for name in ("lock", "controller.json"):
        (folder / name).touch()
    return folder


@pytest.fixture
def hurt(template: Path, home: Path) -> Path:
    """A job to be damaged, and a sound one beside it."""
    for name in ("hurt", "sound"):
        shutil.copytree(template, home / "jobs" / name)
    return home / "jobs" / "hurt"


@pytest.fixture(scope="module", autouse=True)
def built_once() -> Iterator[None]:
    """The parser of the command line, which takes longer to build than a verb to answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.main.get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True)
def awake() -> Iterator[None]:
    """Whoever waits for a pipe is woken after a while, by an error that no verb expects."""

    def waited(*_: object) -> None:
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def damage(path: Path, how: str) -> None:
    path.unlink()
    DAMAGES[how](path)


@pytest.mark.parametrize(
    ("name", "how"),
    thinned(
        [(name, how) for name in FILES for how in DAMAGES if (name, how) != (LOG, "a gigabyte")], 3
    ),
)
def test_every_verb_ends_and_no_other_job_suffers(
    hurt: Path, name: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(hurt / name, how)
    for words in VERBS:
        status = cli.main(words)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err, words
        if status:
            assert status in (2, 3, 4), (words, status, err)
            assert any(line.startswith("error[") for line in err.splitlines()), (words, err)
            assert "\n  why: " in err and "\n  help: " in err, (words, err)
        if words in (("list",), ("status", "--all")):
            assert status == 0 and "\nsound " in out and "\nhurt " in out, (words, out, err)


def test_an_undamaged_folder_answers_every_verb(
    hurt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in VERBS:
        status = cli.main(words)
        out, err = capsys.readouterr()
        refused = {"resume": "error[job-ended]", "checkpoint": "error[usage]"}.get(words[0])
        assert err.startswith(refused) if refused else status == 0, (words, out, err)
        assert refused or "error[" not in err, (words, err)
    assert hurt.exists()


def test_a_job_that_has_ended_is_not_resumed_in_the_background_either(
    hurt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = set()
    for words in (["resume", "hurt"], ["resume", "-d", "hurt"]):
        assert cli.main(words) == 2
        said.add(capsys.readouterr().err)
    assert len(said) == 1
    assert said.pop().startswith("error[job-ended]")
    assert not (hurt / "controller.log").exists()


def test_a_damaged_journal_is_shown_up_to_the_damage_with_a_warning(
    hurt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.state_path(hurt / "journal.jsonl").unlink()
    path = hurt / "journal.jsonl"
    at = path.read_bytes().rindex(b"\n", 0, path.read_bytes().index(b'"by":"test"')) + 1
    path.write_bytes(path.read_bytes().replace(b'"by":"test"', b'"by":"tess"'))
    for verb in ("status", "why", "goodput"):
        assert cli.main([verb, "hurt", "--json"]) == 3, "what it prints is not the whole truth"
        lacks = json.loads(capsys.readouterr().out)["incomplete"]
        where = f"{path}, line 8, at byte {at}"
        assert lacks == f"{where}: checksum mismatch; everything before it is intact"
    assert cli.main(["incidents", "hurt"]) == 3
    out, err = capsys.readouterr()
    assert "it was killed" in out
    assert err.startswith(f"error[journal-corrupt]: {path}, line 8, at byte ")
    assert cli.main(["resume", "hurt"]) == 3
    assert "error[journal-corrupt]" in capsys.readouterr().err


def test_a_job_whose_journal_was_damaged_while_it_ran_ends_with_a_word_about_that(
    hurt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is told of its end comes from the journal, as far as that can be read."""
    journal.state_path(hurt / "journal.jsonl").unlink()
    path = hurt / "journal.jsonl"
    os.truncate(path, path.stat().st_size - 30)
    with path.open("ab") as file:
        file.write(b'{"seq":9}\n')
    job = job_from_dict(
        {"name": "hurt", "command": ["true"], "logs": {"terminal": "none"}}, where=""
    )
    foreground.run_shown(job, hurt, lambda _: Outcome.SUCCEEDED, as_json=True)
    out, err = capsys.readouterr()
    assert f"error[journal-corrupt]: {path}, line " in err
    assert str(path) in json.loads(out)["incomplete"]


@pytest.mark.parametrize("how", ["no text", "a folder", "deep"])
def test_a_damaged_state_beside_a_sound_journal_is_told_and_loses_nothing(
    hurt: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["why", "hurt", "--json"]) == 0
    sound = capsys.readouterr().out
    damage(hurt / "journal.state", how)
    assert cli.main(["why", "hurt", "--json"]) == 0
    out, err = capsys.readouterr()
    assert out == sound and json.loads(out)["incomplete"] is None
    assert err.startswith(f"error[journal-state-damaged]: {hurt / 'journal.state'} is ignored")


def test_a_refused_resumption_announces_no_controller(
    hurt: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    resume = importlib.import_module("holdfast.cli.resume")
    monkeypatch.setattr(resume, "status_of", lambda _: SimpleNamespace(outcome=None))
    assert cli.main(["resume", hurt.name]) == 2
    assert capsys.readouterr().err.startswith("error[job-ended]")


def test_a_description_in_which_a_bit_has_flipped_is_not_resumed(
    hurt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (hurt / "job.json").read_text()
    assert '"max_restarts": null' in text
    (hurt / "job.json").write_text(text.replace('"max_restarts": null', '"max_restarts": 21'))
    assert cli.main(["resume", "hurt"]) == 3
    err = capsys.readouterr().err
    assert err.startswith("error[record-damaged]") and "jq .job" in err
    assert cli.main(["status", "hurt"]) == 0


def test_a_controller_that_is_being_killed_holds_its_lock_a_moment_longer_than_its_port(
    hurt: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = (hurt / "lock").open()
    fcntl.flock(lock, fcntl.LOCK_EX)

    def gone(*_: object) -> None:
        lock.close()
        raise ConnectionError

    monkeypatch.setattr("holdfast.drivers.client.request", gone)
    assert cli.main(["stop", "hurt"]) == 0
    assert "hurt had already ended: stopped" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["controller.json", "token"])
def test_of_a_living_controller_that_cannot_be_asked_nothing_is_ended(
    hurt: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("holdfast.drivers.local.stop_abandoned", pytest.fail)
    monkeypatch.setattr("holdfast.cli.stop.DYING_S", 0)
    (hurt / "controller.json").write_text('{"host":"127.0.0.1","port":9,"pid":1}')
    damage(hurt / name, "no text")
    with (hurt / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert cli.main(["stop", "hurt"]) == 3
        assert capsys.readouterr().err.startswith("error[")
        assert cli.main(["list"]) == 0
        assert "\nsound " in capsys.readouterr().out
