"""Manifests as they were when a person last read them, per engine and feature.

`golden/CASE.job.yaml` says on its first line what it is rendered to: `# renders: job.managed
pods.managed@1.36`. A second line `# kinds: Job Service` leaves only these kinds, so that a case of
one feature stays small enough to read. What is rendered lies in `CASE.ENGINE.MODE[@VERSION].yaml`;
`pytest --update-golden` writes it anew and prints the difference.
"""

import difflib
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from holdfast.drivers.kubernetes.lint import lint
from holdfast.drivers.kubernetes.manifests.render import as_text, render, requested
from holdfast.drivers.kubernetes.manifests.request import NEWEST, Body
from holdfast.spec.cluster import ENGINES, Engine, Mode
from holdfast.spec.load import job_as_written
from tests import quick_yaml
from tests.drivers.kubernetes.schemas import problems

GOLDEN = Path(__file__).parent / "golden"
LINES_MAX = 600  # of one file; a person is to read it
LEAST = {"1.33", "1.37"}  # versions against which every object of a case without gangs is checked


class Case(NamedTuple):
    """One rendering of a job file."""

    job: str
    engine: Engine
    mode: Mode
    version: str  # "" for the newest

    @property
    def file(self) -> Path:
        at = f"@{self.version}" if self.version else ""
        return GOLDEN / f"{self.job}.{self.engine}.{self.mode}{at}.yaml"


def directive(job: Path, word: str) -> list[str]:
    """The words after `# WORD:` at the head of a job file."""
    head = (line for line in job.read_text().splitlines()[:2] if line.startswith(f"# {word}:"))
    return next(head, ":").partition(":")[2].split()


def cases() -> list[Case]:
    """Every rendering that is kept."""
    return [
        Case(job.name.removesuffix(".job.yaml"), *_parsed(word))
        for job in sorted(GOLDEN.glob("*.job.yaml"))
        for word in directive(job, "renders")
    ]


def _parsed(word: str) -> tuple[Engine, Mode, str]:
    place, _, version = word.partition("@")
    engine, _, mode = place.partition(".")
    return cast("Engine", engine), cast("Mode", mode), version


def bodies(case: Case) -> list[Body]:
    """All objects of a case."""
    major, _, minor = case.version.partition(".")
    version = (int(major), int(minor)) if case.version else NEWEST
    job = job_as_written(GOLDEN / f"{case.job}.job.yaml")
    return render(requested(job, engine=case.engine, mode=case.mode, version=version))


def kept(case: Case) -> str:
    """The text of what the case keeps of them."""
    kinds = directive(GOLDEN / f"{case.job}.job.yaml", "kinds")
    return as_text([b for b in bodies(case) if not kinds or b["kind"] in kinds])


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.file.name)
def test_what_is_rendered_is_what_was_read(case: Case, request: pytest.FixtureRequest) -> None:
    found = kept(case)
    before = case.file.read_text() if case.file.exists() else ""
    if request.config.getoption("--update-golden"):
        case.file.write_text(found)
        _show("".join(_difference(before, found, case.file.name)), request)
        return
    assert found == before, "".join(_difference(before, found, case.file.name)) + (
        "\nif this is meant: pytest tests/drivers/kubernetes/test_golden.py --update-golden"
    )


def _difference(before: str, now: str, name: str) -> list[str]:
    old, new = before.splitlines(keepends=True), now.splitlines(keepends=True)
    return list(difflib.unified_diff(old, new, f"{name} (before)", f"{name} (now)"))


def _show(text: str, request: pytest.FixtureRequest) -> None:
    """Print it although pytest catches what tests print."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    if text and capture is not None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}")


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.file.name)
def test_a_golden_file_is_sound_and_small_enough_to_read(case: Case) -> None:
    assert case.file.read_text().count("\n") <= LINES_MAX
    found = bodies(case)
    for version in {case.version} if case.version else LEAST:
        assert [f"{b['kind']}: {p}" for b in found for p in problems(b, version)] == []
    assert [f for f in lint(found) if f.level == "error"] == []


def test_there_is_no_golden_file_that_nobody_renders() -> None:
    known = {case.file for case in cases()} | set(GOLDEN.glob("*.job.yaml"))
    assert set(GOLDEN.iterdir()) == known


def test_every_engine_has_a_golden_file_in_each_mode() -> None:
    places = {(case.engine, case.mode) for case in cases()}
    assert places == {(engine, mode) for engine in ENGINES for mode in ("managed", "plain")}


def test_a_golden_file_is_yaml_that_reads_back() -> None:
    for case in cases():
        assert all(quick_yaml.load_all(case.file.read_text()))
