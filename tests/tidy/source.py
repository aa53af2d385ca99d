"""The Python files of this repository, parsed once."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("holdfast", "tests", "examples", "benchmarks", "docs")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    """One file: where it is from the root, its text and its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    def __str__(self) -> str:
        return str(self.path)

    def functions(self) -> Iterator[Function]:
        """Every function and method."""
        yield from (n for n in ast.walk(self.tree) if isinstance(n, Function))

    def classes(self) -> Iterator[ast.ClassDef]:
        """Every class."""
        yield from (n for n in ast.walk(self.tree) if isinstance(n, ast.ClassDef))


@functools.cache
def sources() -> list[Source]:
    """Every Python file of the repository."""
    paths = sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py"))
    return [_source(path) for path in paths]


@functools.cache
def package() -> list[Source]:
    """Every Python file of the package that is shipped."""
    return [source for source in sources() if source.path.parts[0] == "holdfast"]


def _source(path: Path) -> Source:
    text = path.read_text()
    return Source(path.relative_to(ROOT), text, ast.parse(text, str(path)))


def body_lines(function: Function) -> int:
    """Lines of a function's body, its docstring left out."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body:
        return 1
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1
