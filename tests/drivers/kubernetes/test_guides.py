"""Every manifest in the guides is rendered, every other block of YAML in them is checked."""

import re
from pathlib import Path

import pytest

from docs.manifests import BLOCK, GUIDES, job_of, page
from holdfast.spec.load import job_from_dict
from tests import quick_yaml
from tests.drivers.kubernetes.schemas import problems
from tests.tidy.source import ROOT

MANIFEST = re.compile(r"^```yaml manifest\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
TEXTS = {guide.stem: guide.read_text() for guide in GUIDES}
PATH = re.compile(r"`((?:network|checkpoints|scheduling|resources|recovery)(?:\.[a-z_]+)+)")


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_shows_what_is_rendered_today(guide: Path) -> None:
    assert page(guide.read_text(), guide.name) == guide.read_text(), "run `make docs`"


@pytest.mark.parametrize("guide", TEXTS)
def test_there_is_no_yaml_that_nobody_checks(guide: str) -> None:
    known = len(BLOCK.findall(TEXTS[guide])) + len(MANIFEST.findall(TEXTS[guide]))
    assert TEXTS[guide].count("```yaml") == known
    assert known


@pytest.mark.parametrize("guide", TEXTS)
def test_what_is_not_rendered_is_valid_all_the_same(guide: str) -> None:
    for text in MANIFEST.findall(TEXTS[guide]):
        for body in quick_yaml.load_all(text):
            assert problems(body) == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_links_lead_somewhere(guide: Path) -> None:
    targets = LINK.findall(guide.read_text())
    assert [target for target in targets if not (guide.parent / target).exists()] == []


@pytest.mark.parametrize("guide", TEXTS)
def test_keys_of_the_job_file_that_a_guide_names_exist(guide: str) -> None:
    reference = (ROOT / "docs" / "reference" / "job.md").read_text()
    named = set(PATH.findall(TEXTS[guide]))
    assert [path for path in named if f"| `{path}` |" not in reference] == []


def test_a_snippet_that_is_changed_by_hand_is_noticed() -> None:
    old = TEXTS["kubernetes"]
    edited = old.replace("completions: 2\n", "completions: 3\n", 1)
    assert edited != old
    assert page(edited, "kubernetes.md") == old


def test_a_part_of_a_job_file_is_completed() -> None:
    job = job_of("part", "network: {profile: roce}", "test")
    assert job.network.profile == "roce"
    assert job == job_from_dict(job.model_dump(), where="test")
