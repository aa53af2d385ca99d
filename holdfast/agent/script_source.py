"""What the source of a script tells without being run.

Whether it calls `join()`, so that it can be run ahead; which libraries it imports before it does
anything else, so that they can be loaded ahead; and where it imports torch, because what it sets in
its environment above that line is meant for torch.
"""

import ast
import importlib.machinery
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.agent.fork_protocol import Program

TORCH_JOIN = frozenset(("holdfast.train.join", "holdfast.train.session.join"))
JOIN = TORCH_JOIN | {
    "holdfast.pytrees.join",
    "holdfast.integrations.accelerate.keep",  # which joins
}
FILES_MAX = 10_000  # of a folder that are looked at for modules beside the script
_LOADS_TORCH = frozenset(("torch", "holdfast"))
_CHANGES = ast.Call | ast.Await | ast.Yield | ast.YieldFrom
_DEFINES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Import(NamedTuple):
    """`from module import names`, or `import module` without names."""

    module: str
    names: tuple[str, ...] = ()

    @property
    def root(self) -> str:
        """The package it belongs to."""
        return self.module.partition(".")[0]


def tree_of(program: Program) -> ast.Module | None:
    """The script or module as Python parses it; None where there is nothing to parse."""
    try:
        return parsed(program)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def parsed(program: Program) -> ast.Module:
    """The same. Raises `OSError`, `SyntaxError` and what else `ast.parse` may raise."""
    source = _source(program)
    if source is None:
        raise FileNotFoundError(f"there is no module {program.module}")
    return ast.parse(source.read_bytes(), str(source))


def stamp(program: Program) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of the script and of the modules beside it, by which an edit is seen.

    Raises `OSError`.
    """
    source = _source(program)
    if source is None:
        return ()
    with os.scandir(source.parent) as found:
        some = list(itertools.islice(found, FILES_MAX))
    modules = (one for one in some if one.name.endswith(".py") and one.is_file())
    files = {one.name: one.stat() for one in modules} | {source.name: source.stat()}
    return tuple((name, at.st_mtime_ns, at.st_size) for name, at in sorted(files.items()))


def is_instrumented(program: Program) -> bool:
    """Whether it calls `holdfast.train.join()`, or what does: importing is not joining."""
    tree = tree_of(program)
    return tree is not None and joins(tree)


def joins(tree: ast.Module) -> bool:
    """The same, of one that was parsed."""
    return any(_calls(tree, JOIN))


def declares_in_process(tree: ast.Module) -> bool | None:
    """Whether it calls `join(in_process=True)`, or with what is only known when it runs; None if it
    does not call `join()` of `holdfast.train`."""
    calls = [*_calls(tree, TORCH_JOIN)]
    given = (one.value for call in calls for one in call.keywords if one.arg == "in_process")
    return any(not isinstance(v, ast.Constant) or bool(v.value) for v in given) if calls else None


def _calls(tree: ast.Module, functions: frozenset[str]) -> Iterator[ast.Call]:
    names = dict(_bindings(tree))
    calls = (found for found in ast.walk(tree) if isinstance(found, ast.Call))
    return (call for call in calls if _full_name(call.func, names) in functions)


def _bindings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that imports bind, anywhere in the file, and what each one stands for."""
    for found in ast.walk(tree):
        match found:
            case ast.Import(names=names):
                for alias in names:
                    root = alias.name.partition(".")[0]
                    yield (alias.asname, alias.name) if alias.asname else (root, root)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    for name in ("join", "keep") if alias.name == "*" else (alias.name,):
                        yield alias.asname or name, f"{module}.{name}"
            case _:
                pass


def _full_name(called: ast.expr, names: dict[str, str]) -> str:
    match called:
        case ast.Name(id=name):
            return names.get(name, "")
        case ast.Attribute(value=value, attr=attribute):
            return f"{_full_name(value, names)}.{attribute}"
        case _:
            return ""


# ── imports ───────────────────────────────────────────────────────────────────────────────────


def first_imports(tree: ast.Module) -> list[Import]:
    """What it imports before the first statement that does anything else.

    From there on the environment, `sys.path` or the like may be different.
    """
    found: list[Import] = []
    for statement in tree.body:
        if _acts(statement):
            break
        found += _imports_of(statement)
    return found


def torch_at(tree: ast.Module) -> int | None:
    """The first statement that imports torch, if anything above may have changed the environment.

    Without such a statement: the first import of any library after something was done.
    """
    imported = [{found.root for found in _imports_of(s)} for s in tree.body]
    direct = next((at for at, roots in enumerate(imported) if roots & _LOADS_TORCH), None)
    acted = [_acts(s) or bool(imported[at] - _KNOWN) for at, s in enumerate(tree.body)]
    if direct is not None:
        return direct if any(acted[:direct]) else None
    acts = (at for at, statement in enumerate(tree.body) if _acts(statement))
    start = next(acts, len(tree.body))
    later = range(start + 1, len(tree.body))
    return next((at for at in later if imported[at] - sys.stdlib_module_names), None)


_KNOWN = sys.stdlib_module_names | {"__future__"}


def _imports_of(statement: ast.stmt) -> list[Import]:
    """Those it makes for certain when it is run; not those of its handlers and branches."""
    match statement:
        case ast.Import(names=names):
            return [Import(alias.name) for alias in names]
        case ast.ImportFrom(module=str(module), names=names, level=0):
            return [Import(module, tuple(alias.name for alias in names if alias.name != "*"))]
        case ast.Try(body=body):
            return [found for inner in body for found in _imports_of(inner)]
        case _:
            return []


def _acts(statement: ast.stmt) -> bool:
    """Whether it may do more than bind names."""
    if isinstance(statement, _DEFINES):
        return False
    return any(isinstance(found, _CHANGES) or _is_place(found) for found in ast.walk(statement))


def _is_place(found: ast.AST) -> bool:
    """Part of something, as the target of an assignment or `del`."""
    return isinstance(found, ast.Subscript | ast.Attribute) and not isinstance(found.ctx, ast.Load)


# ── where it is ───────────────────────────────────────────────────────────────────────────────


def _source(program: Program) -> Path | None:
    if program.script is not None:
        return Path(program.workdir, program.script)
    return _module_source(program.module, program.path_entry()) if program.module else None


def _module_source(module: str, workdir: str) -> Path | None:
    """The file `python -m module` would run, found without importing anything."""
    path: list[str] | None = [workdir]
    spec = None
    for part in module.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, path)
        if spec is None and path == [workdir]:  # not in the folder: an installed package
            spec = importlib.machinery.PathFinder.find_spec(part)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    assert spec is not None
    if path:
        spec = importlib.machinery.PathFinder.find_spec("__main__", path)
    return Path(spec.origin) if spec is not None and spec.origin else None
