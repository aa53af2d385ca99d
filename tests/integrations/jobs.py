"""Jobs of trainers for tests, and what they wrote down."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import rank
from holdfast.integrations import drive
from holdfast.train import session
from tests.end_to_end.local.jobs import TOGETHER, RunningJob

SCRIPTS = Path(__file__).parent / "scripts"


def job(home: Path, script: str, name: str, env: dict[str, str], **spec: Any) -> RunningJob:
    """Two ranks on one node, a snapshot after each step; it has begun."""
    return RunningJob(
        home, name=name, script=str(SCRIPTS / script), args=[str(home.parent / name)],
        env=env, snapshots={"every_steps": 1}, **TOGETHER, **spec,
    ).start()  # fmt: skip


def written(home: Path, name: str) -> dict[str, list[str]]:
    """By file: each step's lines, of repeated steps once. What was repeated must be the same."""
    found = {}
    for path in sorted((home.parent / name).glob("*.jsonl")):
        lines = path.read_text().splitlines()
        by_step: dict[tuple[Any, ...], str] = {}
        for line in lines:
            said = json.loads(line)
            key = said["step"], *sorted(said)
            assert by_step.setdefault(key, line) == line, f"{path.name} repeated differently"
        found[path.name] = sorted(by_step.values())
    for path in sorted((home.parent / name).glob("final-*")):
        found[path.name] = [path.read_text()]
    return found


def own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not joined yet, without any launcher."""
    monkeypatch.setattr(session, "_joined", False)
    monkeypatch.setattr(drive, "_taken_by", "")
    for name in rank.VARIABLES:
        monkeypatch.delenv(name, raising=False)
