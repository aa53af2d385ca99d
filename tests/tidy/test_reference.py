"""The reference is what the code says; `make docs` writes it anew."""

import re

import msgspec
import pytest

from docs.generate import BY_HAND, GUIDES, NOTICE, PAGES, REFERENCE
from docs.troubleshooting import guide_notice
from holdfast.checkpoint import manifest
from holdfast.controller.policies.situation import Rung
from holdfast.errors import SLUGS, ExitStatus
from holdfast.spec.load import job_schema


def text(page: str) -> str:
    return (REFERENCE / page).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_up_to_date(page: str) -> None:
    assert text(page) == NOTICE + PAGES[page](), "run `make docs`"


@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_from_a_template_is_up_to_date(page: str) -> None:
    assert (REFERENCE.parent / "guides" / page).read_text() == guide_notice(page) + GUIDES[page]()


def test_the_picture_of_the_ladder_has_each_of_its_steps() -> None:
    page = (REFERENCE.parent / "concepts" / "recovery.md").read_text()
    picture = page.partition("```mermaid\n")[2].partition("```")[0]
    assert not [step for step in Rung if not re.search(rf"\b{step}\b", picture)]


def test_there_is_no_page_that_nobody_writes() -> None:
    assert {path.name for path in REFERENCE.iterdir()} == set(PAGES) | BY_HAND


@pytest.mark.parametrize("slug", SLUGS)
def test_every_error_is_documented(slug: str) -> None:
    assert f"## {slug}\n" in text("errors.md")


@pytest.mark.parametrize("status", ExitStatus)
def test_every_exit_status_is_documented(status: ExitStatus) -> None:
    assert f"| {int(status)} | `{status.name}` |" in text("exit-status.md")


def test_every_setting_is_documented() -> None:
    schema = job_schema()
    keys = set(schema["properties"])
    for section in ("nodes", "warm", "snapshots", "recovery", "logs"):
        inner = schema["$defs"][section.capitalize()]["properties"]
        keys |= {f"{section}.{key}" for key in inner}
    assert not {key for key in keys if f"| `{key}` |" not in text("job.md")}


@pytest.mark.parametrize(
    "record",
    [
        manifest.Lineage,
        manifest.Manifest,
        manifest.PartFile,
        manifest.RankPart,
        manifest.SavedPart,
        manifest.SavedLeaf,
        manifest.Chunk,
    ],
)
def test_every_key_of_a_checkpoint_is_documented(record: type[msgspec.Struct]) -> None:
    page = text("checkpoint-format.md")
    assert not [key for key in record.__struct_fields__ if f"`{key}`" not in page]
    fields = {field.name: field.default for field in msgspec.structs.fields(record)}
    assert "format" not in fields or f"| `format` | {fields['format']} |" in page
    assert f"{manifest.CHUNK_BYTES:,} bytes" in page
