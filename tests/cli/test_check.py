"""`holdfast check`: a table or JSON, status 0 or 1, and errors in our form."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.checks import plan, runner
from holdfast.checks.outcome import CheckResult
from holdfast.cli import main, output
from holdfast.drivers import machine_book
from holdfast.links import Link, LinkFigures, LinkReport
from holdfast.messages import ChecksReply
from tests.more import long

NOTHING = LinkReport()
GOOD = CheckResult(name="matmul", state="ok", found="right", seconds=0.5, digest="cpu=aa")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_json_wanted", False)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))


def finds(monkeypatch: pytest.MonkeyPatch, *results: CheckResult) -> list[Any]:
    """What the checks find, and which places they were told."""
    places: list[Any] = []

    def groups(told: list[str], *, quick: bool) -> list[Any]:
        places.append((told, quick))
        return [plan.CheckGroup(names=(), module="", order=plan.CheckOrder())]

    monkeypatch.setattr(plan, "groups", groups)
    monkeypatch.setattr(runner, "run", lambda _group: list(results))
    return places


@long
def test_the_real_checks_of_this_machine_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--quick", "--json", "--path", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    states = {one["name"]: one["state"] for one in told["checks"]}
    assert states["matmul"] == states["model step"] == states[f"disk {tmp_path}"] == "ok"
    assert {one.name for one in tmp_path.iterdir()} == {"home"}


def test_a_check_that_fails_is_shown_with_what_helps_and_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = CheckResult(name="memory", state="failed", found="1 of 2 blocks", help="replace it")
    places = finds(monkeypatch, GOOD, bad)
    assert main(["check", "--path", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["check", "result", "time", "found"]
    assert lines[2].split() == ["memory", "failed", "1", "of", "2", "blocks"]
    assert lines[-1] == "help: memory: replace it"
    assert machine_book.memory().failed == "memory: 1 of 2 blocks", "it is remembered"
    assert places == [([str(tmp_path)], False)]


def test_without_a_place_the_disk_of_the_jobs_is_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places = finds(monkeypatch, GOOD)
    assert main(["check", "--quick"]) == 0
    assert places == [([str(tmp_path)], True)], "the nearest folder that exists"


def test_what_another_machine_has_found_is_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finds(monkeypatch, GOOD)
    file = tmp_path / "b.json"
    main(["check", "--json"])
    file.write_text(capsys.readouterr().out)
    assert main(["check", "--against", str(file)]) == 0
    file.write_text(file.read_text().replace("cpu=aa", "cpu=ab"))
    assert main(["check", "--against", str(file)]) == 1
    assert "other bits: matmul" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "", "{}", '{"machine": "b", "checks": [3]}', "\0"])
def test_a_file_that_no_check_has_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
) -> None:
    finds(monkeypatch, GOOD)
    if content is not None:
        (tmp_path / "b.json").write_text(content)
    assert main(["check", "--against", str(tmp_path / "b.json")]) == 2
    assert capsys.readouterr().err.startswith("error[usage]: ")


def asking(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    found: dict[str, str],
    missing: tuple[str, ...],
    network: LinkReport = NOTHING,
) -> None:
    """A controller that lives and answers this."""
    (tmp_path / "home" / "jobs" / "gpt").mkdir(parents=True)
    monkeypatch.setattr("holdfast.cli.question.job_folder", lambda _: tmp_path / "gpt")
    monkeypatch.setattr("holdfast.drivers.records.controller_alive", lambda _: True)
    reply = ChecksReply(found=found, missing=missing, network=network)
    monkeypatch.setattr("holdfast.drivers.client.checks", lambda _: reply)


def test_the_spares_of_a_job_are_shown_and_one_that_fails_is_status_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asking(monkeypatch, tmp_path, {"node-3": "", "node-2": "disk /data: full"}, ("node-4",))
    assert main(["check", "gpt"]) == 1
    told = capsys.readouterr()
    rows = [line.split() for line in told.out.splitlines()]
    assert rows[1:] == [["node-2", "failed", "disk", "/data:", "full"], ["node-3", "ok"]]
    assert "node-4 did not answer" in told.err
    assert main(["check", "gpt", "--json"]) == 1
    told_json = json.loads(capsys.readouterr().out)
    assert (told_json["ok"], told_json["missing"]) == (False, ["node-4"])


def link(node: str, other: str, there: float, back: float, **more: Any) -> Link:
    found = LinkFigures(there_bytes_per_s=there, back_bytes_per_s=back, **more)
    return Link(node=node, other=other, found=found)


def test_links_between_spares_are_shown_and_fail_where_one_is_slow_or_cut(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = {"node-1": "node-1 sends only 10 MB/s to node-2, 11 MB/s to node-4"}
    links = (
        Link(node="node-4", other="node-1"),
        link("node-3", "node-4", 0.0, 0.0, trouble="timed out"),
        link("node-1", "node-2", 1e7, 1.25e9),
        link("node-2", "node-3", 2e9, 3e9, same_machine=True),
    )
    report = LinkReport(links=links, lines=tuple(slow.values()), slow=slow)
    found = dict.fromkeys(("node-1", "node-2", "node-3", "node-4"), "")
    asking(monkeypatch, tmp_path, found, (), report)
    assert main(["check", "gpt"]) == 1
    told = capsys.readouterr()
    lines = [line.split() for line in told.out.splitlines()]
    assert lines[6:11] == [
        ["NODE", "NEXT", "NODE", "THERE", "BACK", "NOTE"],
        ["node-4", "node-1", "did", "not", "answer"],
        ["node-3", "node-4", "timed", "out"],
        ["node-1", "node-2", "10", "MB/s", "1.25", "GB/s"],
        ["node-2", "node-3", "2.00", "GB/s", "3.00", "GB/s", "same", "machine"],
    ]
    assert told.out.splitlines()[-1] == slow["node-1"] and "are replaced" not in told.err
    assert main(["check", "gpt", "--json"]) == 1
    told_json = json.loads(capsys.readouterr().out)
    assert (told_json["ok"], told_json["network"]["slow"]) == (False, slow)
    assert told_json["network"]["links"][2]["found"]["there_bytes_per_s"] == 1e7


@pytest.mark.parametrize(
    ("report", "status"),
    [
        (LinkReport(), 0),
        (LinkReport(links=(link("a", "b", 1e9, 1e9),)), 0),
        (LinkReport(links=(Link(node="a", other="b"),)), 0),
        (LinkReport(links=(link("a", "b", 0.0, 0.0, trouble="timed out"),)), 1),
    ],
)
def test_a_pair_that_cannot_talk_is_status_1(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    report: LinkReport,
    status: int,
) -> None:
    asking(monkeypatch, tmp_path, {"a": "", "b": ""}, (), report)
    assert main(["check", "gpt"]) == status
    assert ("not measured" in capsys.readouterr().err) == (not report.links)


def test_a_job_without_spares_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asking(monkeypatch, tmp_path, {}, ())
    assert main(["check", "gpt"]) == 0
    assert "no spare that can be checked" in capsys.readouterr().err


def test_options_of_this_machine_and_a_job_do_not_go_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "gpt", "--quick"]) == 2
    assert capsys.readouterr().err.startswith("error[usage]: ")
    assert main(["check", "gpt"]) == 4


def test_a_folder_or_a_job_that_is_not_there_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--path", str(tmp_path / "none")]) == 2
    assert main(["check", "--name", "none"]) == 4
    assert "error[job-not-found]" in capsys.readouterr().err


def test_without_a_name_nobody_takes_a_check_of_this_machine_for_one_of_a_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_ON", "kubernetes")
    assert main(["check", "--quick"]) == 2
    assert "a check on Kubernetes needs the name of a job" in capsys.readouterr().err
