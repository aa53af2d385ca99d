"""Every part of a job file that a page of the documentation shows is one that is taken."""

import re
from pathlib import Path

import pytest

from holdfast.spec.job import Job
from holdfast.spec.load import job_from_text

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"^```yaml(?! rendered)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)

KEY = re.compile(r"^(\w+):", re.MULTILINE)


def shown() -> list[tuple[str, str]]:
    """Page and text of each part, made whole where it leaves out what each job has."""
    found = []
    for page in PAGES:
        for block in BLOCK.findall(page.read_text()):
            keys = set(KEY.findall(block))
            if keys and keys <= set(Job.model_fields):
                whole = "" if "name" in keys else "name: gpt\n"
                whole += "" if keys & {"script", "module", "command"} else "script: train.py\n"
                found.append((page.name, whole + block))
    return found


SHOWN = shown()


def test_there_are_many_and_of_the_guides_that_change_a_running_job() -> None:
    pages = [page for page, _ in SHOWN]
    assert len(pages) > 20 and {"elastic.md", "replicas.md", "in-process.md"} <= set(pages)


@pytest.mark.parametrize(("page", "text"), SHOWN)
def test_it_is_taken(page: str, text: str) -> None:
    job_from_text(text, where=page)
