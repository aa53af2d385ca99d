"""The troubleshooting guide has an entry for each error of a cluster, and its commands exist."""

import re
import shlex

import typer.main

from holdfast.cli.app import app
from holdfast.diagnosis.signatures import SIGNATURES
from holdfast.errors import SLUGS
from tests.tidy.source import ROOT

GUIDE = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text()
ENTRIES = re.findall(r"^### (\S+)$", GUIDE, re.MULTILINE)
RAISERS = ("submit", "remote", "doctor", "listing", "config", "api")  # modules of the driver


def raised() -> set[str]:
    """Slugs that the laptop's side of the Kubernetes driver raises."""
    folder = ROOT / "holdfast" / "drivers" / "kubernetes"
    sources = [p.read_text() for p in folder.glob("*.py") if p.stem.startswith(RAISERS)]
    return {slug for text in sources for slug in re.findall(r'Error\(\s*"([a-z-]+)"', text)}


def test_every_error_of_a_cluster_has_an_entry() -> None:
    assert raised() - {"job-not-found"} <= set(ENTRIES)
    assert {"kubernetes-missing", "machine-not-cordoned"} <= set(ENTRIES)


def test_every_entry_is_an_error_and_stands_once() -> None:
    assert set(ENTRIES) <= set(SLUGS)
    assert len(ENTRIES) == len(set(ENTRIES))


def test_it_answers_what_is_asked_most_with_known_problems_and_commands() -> None:
    asked = {
        "NCCL timeouts": "nccl-timeout",
        "NCCL: unhandled system error": "NCCL_DEBUG=INFO",
        "Rank mismatch": "invalid-rank",
        "Out of memory in backward": "gpu-memory",
        "A small /dev/shm": "df -h /dev/shm",
        "Slow training": "holdfast goodput",
        "Races at initialisation": "rendezvous-refused",
    }
    parts = dict(part.split("\n", 1) for part in GUIDE.split("\n### ")[1:])
    assert not {title for title, needed in asked.items() if needed not in parts.get(title, "")}
    assert "{{" not in GUIDE
    assert all(f"`{slug}`" in GUIDE for slug in SIGNATURES)


def test_every_command_of_the_guide_can_be_given() -> None:
    blocks = re.findall(r"^(holdfast .*)$", GUIDE, re.MULTILINE)
    inline = re.findall(r"`(holdfast [^`]+)`", GUIDE)
    assert len(blocks) >= 4
    for words in map(shlex.split, [*blocks, *inline]):
        parsed(words[1:])


def parsed(words: list[str]) -> None:
    """Parse as the command line would, without running anything. Raises if it does not fit."""
    group = typer.main.get_command(app)
    with group.make_context("holdfast", [*words[:1], "--help"], resilient_parsing=True) as top:
        command = group.get_command(top, words[0])  # type: ignore[attr-defined]
        assert command is not None, words
        known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
        assert {word for word in words if word.startswith("-")} <= known, words


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", GUIDE):
        assert (ROOT / "docs" / "guides" / target).exists()
