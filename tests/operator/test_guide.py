"""The guide to operating: what it shows is accepted, and what it names exists."""

import json
import re
from pathlib import Path

import pytest
import yaml

from holdfast.operator.conditions import ENDED
from holdfast.operator.definition import CONDITIONS
from holdfast.operator.federation.run import places_of
from holdfast.operator.wanted import wanted
from holdfast.spec import job_from_dict
from tests.operator.test_definition import problems
from tests.operator.test_rights import UID
from tests.operator.test_rules import broken
from tests.tidy.source import ROOT

GUIDE = ROOT / "docs" / "guides" / "operate.md"
CONCEPT = ROOT / "docs" / "concepts" / "kubernetes.md"
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def blocks(word: str) -> list[str]:
    return re.findall(rf"^```yaml {word}\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("text", blocks("trainingjob"))
def test_the_training_job_is_accepted(text: str) -> None:
    body = yaml.safe_load(text)
    assert problems(body["spec"]) == [] and broken(body["spec"]) == []
    body["metadata"] |= {"namespace": "team", "uid": UID}
    assert wanted(body, (1, 37)).objects


def test_a_job_that_the_guide_suspends_is_resumed_by_it() -> None:
    """`kubectl apply` leaves alone what it has not set itself, as by a patch."""
    given = re.findall(r"^kubectl patch tj gpt --type merge -p '(.+?)'", GUIDE.read_text(), re.M)
    spec = yaml.safe_load(blocks("trainingjob")[0])["spec"]
    assert "suspend" not in spec["lifetime"]
    for wish in (True, False):
        patch = json.loads(given.pop(0))["spec"]
        assert patch == {"lifetime": {"suspend": wish}}
        assert problems(spec | {"lifetime": spec["lifetime"] | patch["lifetime"]}) == []


def test_the_federated_job_can_be() -> None:
    (text,) = blocks("job")
    assert len(places_of(job_from_dict(yaml.safe_load(text), where="guide"))) == 2


def test_every_condition_is_explained() -> None:
    assert [name for name in CONDITIONS if f"`{name}`" not in GUIDE.read_text()] == []
    assert len(ENDED) == 4


@pytest.mark.parametrize("reason", ["NameTaken", "QuotaExceeded", "Forbidden", "KindMissing"])
def test_reasons_are_those_of_the_code(reason: str) -> None:
    code = [path.read_text() for path in (ROOT / "holdfast" / "operator").glob("*.py")]
    assert any(f'"{reason}"' in text for text in code)
    assert f"`{reason}`" in GUIDE.read_text()


@pytest.mark.parametrize("path", [GUIDE, CONCEPT], ids=lambda path: path.parent.name)
def test_links_and_folders_lead_somewhere(path: Path) -> None:
    text = path.read_text()
    assert [link for link in LINK.findall(text) if not (path.parent / link).exists()] == []
    folders = re.findall(r"`?(deploy/[\w/.]+)", text)
    assert [folder for folder in folders if not (ROOT / folder).exists()] == []
