"""Errors: one table of slugs, and nothing beside it."""

import ast

from holdfast.errors import SLUGS
from tests.tidy.source import Source, package


def _error_calls(source: Source) -> list[ast.Call]:
    return [call for call in source.all(ast.Call) if _name(call.func) == "Error"]


def _name(function: ast.expr) -> str:
    """The last part of what is called."""
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _slug(call: ast.Call) -> str | None:
    first = call.args[0] if call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def _used() -> dict[str, str]:
    """Every slug that the package raises, and where."""
    found = ((s, c) for s in package() for c in _error_calls(s) if s.path.name != "errors.py")
    return {_slug(call) or f"not a literal at {s}:{call.lineno}": str(s) for s, call in found}


def test_every_slug_that_is_raised_is_in_the_table() -> None:
    assert not {slug: where for slug, where in _used().items() if slug not in SLUGS}


def test_every_slug_of_the_table_is_raised_somewhere() -> None:
    assert not set(SLUGS) - set(_used())


def test_every_explanation_is_whole_sentences() -> None:
    for slug, entry in SLUGS.items():
        assert slug == slug.lower()
        assert " " not in slug
        assert entry.explanation.endswith("."), slug
        assert len(entry.explanation.split()) > 10, slug


def test_every_error_says_why_and_what_helps() -> None:
    lacking = [
        f"{source}:{call.lineno}"
        for source in package()
        for call in _error_calls(source)
        if {k.arg for k in call.keywords} != {"why", "help"}
    ]
    assert not lacking
