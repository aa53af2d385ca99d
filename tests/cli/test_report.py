"""`holdfast report` of finished, running, damaged and missing jobs, as text, JSON and a page."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import recorded_job
from holdfast.drivers import records
from holdfast.spec import job_from_dict
from tests.cli.test_jobs import documented, printed
from tests.patience import MAY_BE_SILENT, until
from tests.warm import Warm, holdfast, program

NEW = {"name": "new", "script": "train.py", "cost": {"gpu_hour": 1}}
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def told(*words: str) -> Any:
    run = holdfast("report", *words, "--json")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture
def gpt(home: Path) -> Path:
    """The folder of a job with a curve and incidents, whose controller is away."""
    folder, now = home / "jobs" / "gpt", time.time()
    recorded_job.record(folder, days=1.0, nodes=4, until=now, rate=1500.0)
    recorded_job.draw_curve(folder, 3000, begin=now - 86_400, end=now)
    return folder


def refused(slug: str, status: int, *words: str) -> str:
    run = holdfast("report", *words)
    assert (run.returncode, run.stdout) == (status, ""), run.stdout
    assert run.stderr.startswith(f"error[{slug}]: "), run.stderr
    return run.stderr


@pytest.mark.usefixtures("gpt")
def test_the_guide_works_and_what_it_writes_is_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in documented("guides/report.md", "gpt"):
        if "kubernetes" not in words:
            asked = words if "--html" in words else [*words, "--no-advice"]  # once is enough
            assert program("tests.cli.few_worlds", *asked).returncode == 0, words
    page = (tmp_path / "gpt.html").read_text()
    assert page.startswith("<!doctype html>") and page.endswith("</html>\n")
    assert "What to change" in page
    assert [path.name for path in tmp_path.glob("*gpt*")] == ["gpt.html"], "nothing else is left"
    assert (tmp_path / "gpt.html").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_text_and_json_tell_the_same_from_a_name_a_folder_and_a_copy_elsewhere(
    gpt: Path, tmp_path: Path
) -> None:
    found = told("gpt", "--no-advice")
    assert (
        found["goodput"]["buckets"]
        == json.loads(holdfast("goodput", "gpt", "--json").stdout)["buckets"]
    )
    assert [one["incident"]["id"] for one in found["incidents"]] == [
        one["id"] for one in json.loads(holdfast("incidents", "gpt", "--json").stdout)
    ]
    assert found["changes"] is None and found["incomplete"] is None
    text = holdfast("report", "gpt", "--no-advice").stdout
    assert f"{found['goodput']['ettr'] * 100:.2f} %" in text and "\x1b" not in text
    assert "WHAT TO CHANGE" not in text
    copy = shutil.copytree(gpt, tmp_path / "elsewhere" / "gpt")
    again = told(f"{copy}/", "--no-advice")
    assert again["incidents"] == found["incidents"] and again["curve"] == found["curve"]


def test_a_file_that_is_there_stays_unless_it_is_to_be_replaced(gpt: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    words = ("gpt", "--no-advice", "--html", str(page))
    assert "--force" in refused("usage", 2, *words) and page.read_text() == "mine"
    assert holdfast("report", *words, "--force").returncode == 0
    assert page.read_text().startswith("<!doctype html>")
    link = tmp_path / "link.html"
    link.symlink_to(page)
    page.write_text("mine")
    assert holdfast("report", *words[:-1], str(link), "--force").returncode == 0
    assert link.is_symlink() and page.read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.glob("*.html*")) == ["link.html", "page.html"]
    assert gpt.exists()


def test_wrong_input_is_one_error_with_a_next_command(gpt: Path, tmp_path: Path) -> None:
    refused("job-not-found", 4, "other")
    refused("job-not-found", 4, str(tmp_path))
    refused("path-unusable", 3, "--html", str(tmp_path / "no" / "page.html"))
    refused("path-unusable", 3, "--html", str(tmp_path), "--force")
    refused("path-unusable", 3, "--no-advice", "--html", "/proc/self/page.html")
    refused("path-unusable", 3, "--html", "/dev/null", "--force")
    refused("usage", 2, "--force")
    (gpt / "journal.jsonl").write_text("nonsense\n")
    refused("journal-corrupt", 3, "gpt")
    (gpt / "journal.jsonl").unlink()
    refused("path-unusable", 3, "gpt")


def test_a_job_that_has_not_begun_has_a_report(home: Path, tmp_path: Path) -> None:
    folder = home / "jobs" / "new"
    os.close(records.create(job_from_dict(NEW, where="new"), folder, now=time.time()))
    found = told("new")
    assert found["goodput"]["wall_s"] >= 0 and found["incidents"] == []
    assert "no steps" in found["changes_missing"]
    assert holdfast("report", "new", "--html", str(tmp_path / "new.html")).returncode == 0
    assert "There is no curve" in (tmp_path / "new.html").read_text()


def test_a_journal_with_a_damaged_tail_is_told_as_far_as_it_goes(gpt: Path, tmp_path: Path) -> None:
    path = gpt / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    half = len(lines) // 2
    path.write_bytes(b"".join([*lines[:half], lines[half].replace(b"e", b"f", 1), *lines[half:]]))
    page = tmp_path / "page.html"
    run = holdfast("report", "gpt", "--no-advice", "--html", str(page), "--json")
    found = json.loads(run.stdout)
    assert run.returncode == 3 and "error[journal-corrupt]" in run.stderr
    assert "checksum" in found["incomplete"] or "line" in found["incomplete"]
    assert found["goodput"]["wall_s"] > 0 and found["setup"]["nodes_count"] == 4
    assert "Incomplete: " in page.read_text()


def test_a_running_job_without_steps_has_a_report_too(home: Path, tmp_path: Path) -> None:
    tool = tmp_path / "tool.sh"
    tool.write_text("#!/bin/sh\necho up\nexec sleep 600\n")
    tool.chmod(0o755)
    said = {"name": "tool", "command": ["./tool.sh"], "recovery": MAY_BE_SILENT}
    (tmp_path / "tool.yaml").write_text(json.dumps(said))
    run = Warm(["run", str(tmp_path / "tool.yaml")])
    try:
        assert until(printed(home, "tool", "up"))
        found = told()
        assert found["job"] == "tool" and found["status"]["controller"] == "alive"
        assert found["learning"]["steps"] is None and "no steps" in found["changes_missing"]
        text = holdfast("report").stdout
        assert "none reported" in text and "not known: no steps were reported" in text
    finally:
        assert holdfast("stop", "tool", "--now").returncode == 0
        run.wait()
    assert told()["status"]["outcome"] == "stopped"
