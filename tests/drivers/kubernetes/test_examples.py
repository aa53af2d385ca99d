"""What lies in deploy/examples is what the recipes render to today."""

import pytest

from docs.manifests import EXAMPLES, FOLDER, Example, examples
from holdfast.drivers.kubernetes.lint import lint
from tests import quick_yaml
from tests.drivers.kubernetes.schemas import problems

STALE = "run `make docs`, which writes deploy/examples anew"


def test_every_file_is_up_to_date_and_there_is_no_other() -> None:
    written = examples()
    assert set(FOLDER.iterdir()) == set(written), STALE
    assert [path.name for path, text in written.items() if path.read_text() != text] == [], STALE


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.file.stem)
def test_a_file_is_sound_as_it_lies_there(example: Example) -> None:
    found = quick_yaml.load_all(example.file.read_text())
    assert [f"{body['kind']}: {p}" for body in found for p in problems(body)] == []
    assert [finding for finding in lint(found) if finding.level == "error"] == []


def test_every_kind_that_people_ask_for_is_there() -> None:
    plain = {example.engine for example in EXAMPLES if example.mode == "plain"}
    wanted = {"pods", "job", "cronjob", "jobset", "pytorchjob", "tfjob", "mpijob", "trainjob"}
    assert plain >= wanted | {"volcano"}


def test_the_native_job_comes_with_its_service_and_its_storage() -> None:
    text = (FOLDER / "infiniband.job.plain.yaml").read_text()
    kinds = [body["kind"] for body in quick_yaml.load_all(text)]
    assert {"Service", "PersistentVolumeClaim", "Job"} <= set(kinds)
