"""A job is asked for another size, and whoever asked is told if nobody will do it."""

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast import cli
from holdfast.drivers import client, records
from holdfast.spec import Job, job_from_dict
from holdfast.status import JobStatus

JOB: Job = job_from_dict(
    {"name": "run", "command": ["true"], "nodes": 2, "elasticity": {"min_nodes": 1}}, where="test"
)


def now(phase: str, outcome: str | None) -> JobStatus:
    return JobStatus(
        job="run", phase=phase, attempt=1, step=None, ettr=0.0, nodes=(), incidents_count=0,
        restarts_count=0, waiting_for=None, started_at=1.0, wall_s=1.0, outcome=outcome,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "why", "remedy"),
    [
        ("stopped", "it has ended (stopped)", "holdfast why run"),
        (None, "no controller is running", "holdfast resume run"),
    ],
)
def test_only_a_job_that_has_not_ended_is_said_to_lack_a_controller(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    outcome: str | None,
    why: str,
    remedy: str,
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    (tmp_path / "jobs").mkdir()
    os.close(records.create(JOB, tmp_path / "jobs" / "run", now=1.0))
    monkeypatch.setattr(client, "status", lambda _: now(outcome or "running", outcome))
    assert cli.main(["scale", "run", "1"]) == 2
    said = capsys.readouterr().err
    assert why in said and remedy in said


@pytest.mark.parametrize(
    ("phase", "outcome", "told"),
    [
        ("running", None, ""),
        ("closing", None, "it is being stopped"),
        ("stopped", "stopped", "it has ended (stopped)"),
    ],
)
def test_a_job_that_somebody_has_stopped_meanwhile_is_not_said_to_be_scaled(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    phase: str,
    outcome: str | None,
    told: str,
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    (tmp_path / "jobs").mkdir()
    os.close(records.create(JOB, tmp_path / "jobs" / "run", now=1.0))
    asked: list[Any] = []
    monkeypatch.setattr(client, "request", lambda _, message: asked.append(message))
    monkeypatch.setattr(client, "status", lambda _: now(phase, outcome))
    status = cli.main(["scale", "run", "1"])
    said = capsys.readouterr()
    assert [one.nodes for one in asked] == [1]
    assert (status == 0) is not bool(told) and told in said.err
    assert ("was asked to train on 1 node" in said.out) is not bool(told)
