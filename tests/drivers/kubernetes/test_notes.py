"""Comments stand where they belong, once, and none is for a place that never comes."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.manifests.checks.frameworks import PLAIN
from holdfast.drivers.kubernetes.manifests.notes import NOTES
from holdfast.drivers.kubernetes.manifests.render import as_text, render
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.spec.cluster import ENGINES, Mode
from tests import quick_yaml
from tests.drivers.kubernetes.asking import asked

RICH: dict[str, Any] = {
    "nodes": {"count": 4, "spares": 2},
    "network": {"host": True},
    "resources": {"gpus": 8, "memory": "512Gi"},
    "checkpoints": {
        "shared": {"pvc": "c", "storage_class": "rwx", "volume_snapshot_class": "snap"}
    },
    "scheduling": {"spread": [{"key": "zone"}]},
}


def requests() -> list[Request]:
    """A rich job and a plain one on every engine, with each kind of gang where there is one."""
    found = []
    for engine in ENGINES:
        more: dict[str, Any] = {"schedule": {"cron": "@daily"}} if engine == "cronjob" else {}
        rich = {**RICH, "nodes": 4} if engine == "rayjob" else RICH  # without spares
        found.append(asked(engine, **rich, **more))
        found.append(asked(engine, "plain", framework=PLAIN[engine][0], nodes=4, **more))
    for kind in ("native", "volcano", "coscheduling"):
        found.append(asked("job", **{**RICH, "scheduling": {"gang": kind}}))
    return found


def plain(text: str) -> str:
    """A text with its comments on one line each, so that they can be looked for."""
    lines = [line.strip().removeprefix("- ") for line in text.splitlines()]
    return " ".join(line.removeprefix("# ") for line in lines if line.startswith("#"))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [plain(as_text(render(request))) for request in requests()]


@pytest.mark.parametrize("place", NOTES)
def test_every_comment_is_seen_somewhere(place: str, texts: list[str]) -> None:
    assert any(NOTES[place] in text for text in texts)


@pytest.mark.parametrize("mode", ["managed", "plain"])
def test_a_comment_is_given_once_and_changes_nothing(mode: Mode) -> None:
    bodies: list[Body] = render(asked("job", mode, nodes=8))
    text = as_text(bodies)
    assert quick_yaml.load_all(text) == bodies
    said = [note for note in set(NOTES.values()) if note in plain(text)]
    assert said
    assert all(plain(text).count(note) == 1 for note in said)


def test_the_launcher_of_each_mode_has_its_own_reason() -> None:
    managed = plain(as_text(render(asked("mpijob", nodes=2))))
    stock = plain(as_text(render(asked("mpijob", "plain", framework="mpi", nodes=2))))
    assert NOTES["*.launcherCreationPolicy=AtStartup"] in managed
    assert NOTES["*.launcherCreationPolicy=WaitForWorkersReady"] in stock
    assert "mpirun" not in managed


def test_comments_are_sentences() -> None:
    assert all(note[0].isupper() and note.endswith((".", "?")) for note in NOTES.values())
