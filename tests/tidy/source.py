"""The Python files of this repository: read, parsed and walked once for all rules.

They are parsed as the oldest Python that is supported, so what only a newer one knows is an error.
"""

import ast
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
OLDEST = (3, 11)
FOLDERS = ("holdfast", "tests", "examples", "benchmarks", "docs")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True, eq=False)
class Source:
    """One file: where it is from the root, its text and its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    def __str__(self) -> str:
        return str(self.path)

    def functions(self) -> list[Function]:
        """Every function and method."""
        return [*self.all(ast.FunctionDef), *self.all(ast.AsyncFunctionDef)]

    def classes(self) -> list[ast.ClassDef]:
        """Every class."""
        return self.all(ast.ClassDef)

    def all(self, kind: type[Node]) -> list[Node]:
        """Every node of exactly this kind."""
        return [node for node in self._nodes.get(kind, ()) if isinstance(node, kind)]

    @functools.cached_property
    def _nodes(self) -> dict[type[ast.AST], list[ast.AST]]:
        """In the order of the text. This is `ast.walk` at a third of its cost, without contexts:
        there are two million others."""
        found: dict[type[ast.AST], list[ast.AST]] = {}
        left: list[ast.AST] = [self.tree]
        while left:
            node = left.pop()
            found.setdefault(type(node), []).append(node)
            for name in reversed(node._fields):
                value = getattr(node, name, None)
                if isinstance(value, list):
                    left += [one for one in reversed(value) if isinstance(one, ast.AST)]
                elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                    left.append(value)
        return found


def sources() -> list[Source]:
    """Every Python file of the repository."""
    return [source for folder in FOLDERS for source in _below(folder)]


def package() -> list[Source]:
    """Every Python file of the package that is shipped."""
    return _below("holdfast")


def forget() -> None:
    """They are large."""
    _below.cache_clear()


@functools.cache
def _below(folder: str) -> list[Source]:
    return [_source(path) for path in sorted((ROOT / folder).rglob("*.py"))]


def _source(path: Path) -> Source:
    text = path.read_text()
    return Source(path.relative_to(ROOT), text, ast.parse(text, str(path), feature_version=OLDEST))


def body_lines(function: Function) -> int:
    """Lines of a function's body, its docstring left out."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body:
        return 1
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1
