"""Nodes of another version are left alone: their agents would end, and their workers with them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import recorded_job
from holdfast.drivers import engines
from holdfast.drivers.local import require_unended, resume_job
from holdfast.drivers.nodes import known_nodes
from holdfast.errors import Error
from holdfast.messages import PROTOCOL


@pytest.fixture
def folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The record of a job of which one node lives; whoever would touch it fails."""
    found = home / "jobs" / "job"
    recorded_job.record(found, days=1, nodes=4, until=1.7e9)
    (found / "nodes" / "node-0").mkdir(parents=True)

    def touched(*_: object) -> None:
        pytest.fail("nodes are ended or taken over")

    monkeypatch.setattr(engines.Processes, "living", lambda _: [SimpleNamespace(node="n")])
    monkeypatch.setattr(engines.Processes, "clear", touched)
    return found


def _says(folder: Path, **more: int) -> None:
    card: dict[str, Any] = {"node": "n", "name": "node-0", "pid": 1, **more}
    (folder / "nodes" / "node-0" / "agent.json").write_bytes(msgspec.json.encode(card))


def test_they_are_refused_before_anything_is_done(folder: Path) -> None:
    _says(folder, protocol=PROTOCOL - 1)
    journal = (folder / "journal.jsonl").read_bytes()
    for taken_over in (lambda: resume_job(folder, on_event=print), lambda: require_unended(folder)):
        with pytest.raises(Error) as raised:
            taken_over()
        assert raised.value.slug == "agent-version" and str(PROTOCOL - 1) in raised.value.why
    assert (folder / "journal.jsonl").read_bytes() == journal


@pytest.mark.parametrize("more", [{}, {"protocol": PROTOCOL}])
def test_others_are_not(folder: Path, more: dict[str, int]) -> None:
    _says(folder, **more)
    require_unended(folder)
    assert known_nodes(folder)[0].protocol in (0, PROTOCOL)
