"""Pieces of Markdown that the generated pages are made of."""

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def prose(text: str) -> str:
    """Paragraphs without the line breaks of a docstring."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
