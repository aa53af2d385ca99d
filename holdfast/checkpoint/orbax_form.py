"""Trees of arrays to and from Orbax's format.

A checkpoint of `holdfast.pytrees` has its leaves under their paths; here they become a tree of
mappings and lists again, as Orbax itself restores one of which it knows no types. Orbax does the
reading and writing, so that what it can read is what it says it can.
"""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import Error

UNFINISHED = ".orbax-checkpoint-tmp"
METADATA = "_METADATA"  # of a saved tree
_STEP = re.compile(r"\.(?P<name>\w+)|\[(?P<key>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\]]*)\]")


def library() -> Any:
    """The package. Raises `Error` export-unavailable."""
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise Error(
            "export-unavailable",
            "Orbax is not installed",
            why=f"its format is read and written by its own package: {error}",
            help="pip install orbax-checkpoint",
        ) from error
    return orbax.checkpoint


def save(to: str | Path, tree: Any) -> None:
    """Write a tree to a folder that does not exist yet. Raises `Error` export-unavailable."""
    orbax = library()
    try:
        with orbax.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(Path(to).absolute(), tree)
    except (ValueError, TypeError) as error:
        raise Error(
            "export-unavailable",
            f"Orbax cannot write this to {to}",
            why=str(error).strip().splitlines()[0],
            help="give a folder that does not exist yet, and trees of arrays, numbers and text",
        ) from error


def nested(leaves: Mapping[str, Any]) -> Any:
    """The tree of named leaves, `name['a'][0].b`. A container with the keys 0, 1, ... is a list."""
    root: dict[Any, Any] = {}
    for path, value in leaves.items():
        at = re.match(r"[^.\[]*", path)
        assert at is not None, "it matches nothing, too"
        keys = [at[0], *map(_key, _STEP.finditer(path, at.end()))]
        inner = root
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = value
    return _with_lists(root)


def _key(step: re.Match[str]) -> Any:
    if step["name"] is not None:
        return step["name"]
    try:
        return ast.literal_eval(step["key"])
    except (ValueError, SyntaxError):  # `<flat index 0>`: a container that JAX has no names for
        return step["key"]


def _with_lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    made = {key: _with_lists(value) for key, value in tree.items()}
    numbered = all(type(key) is int for key in made) and sorted(made) == list(range(len(made)))
    return [made[number] for number in range(len(made))] if numbered else made


def newest(place: str | Path, item: str | None = None) -> tuple[int | None, Path]:
    """The saved tree below a place, with its step if it has one: the folder itself, an item of it,
    or those of the newest step of a CheckpointManager. Raises `Error` checkpoint-unusable."""
    root = Path(place).absolute()
    steps = {_number(path.name): path for path in _folders(root)}
    steps.pop(None, None)
    step = max((number for number in steps if number is not None), default=None)
    folder = steps[step] if step is not None and not (root / METADATA).exists() else root
    for found in (folder / item,) if item else (folder, *sorted(_folders(folder))):
        if (found / METADATA).exists():
            return (step if folder is not root else None), found
    raise Error(
        "checkpoint-unusable",
        f"there is no checkpoint of Orbax in {folder}",
        why=f"no folder{f' {item!r}' if item else ''} there has a file {METADATA}",
        help=f"ls {folder}   (of several items, name one: load(..., item=NAME))",
    )


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return [path for path in root.iterdir() if path.is_dir() and UNFINISHED not in path.name]


def _number(name: str) -> int | None:
    """10 of `10`, `0010` and `step_10`."""
    found = re.fullmatch(r"(?:\w*_)?(\d+)", name)
    return int(found[1]) if found is not None else None


def assembled(pieces: Mapping[tuple[int, ...], Any]) -> Any:
    """A whole array from its pieces, by where they begin. Raises `Error` checkpoint-incomplete."""
    if len(pieces) == 1 and not any(next(iter(pieces))):
        return next(iter(pieces.values()))
    ends = [tuple(np.add(at, piece.shape)) for at, piece in pieces.items()]
    whole = np.empty(np.max(ends, axis=0), next(iter(pieces.values())).dtype)
    if sum(piece.size for piece in pieces.values()) != whole.size:
        raise Error(
            "checkpoint-incomplete",
            "an array is incomplete",
            why=f"its pieces do not make up {whole.shape}",
            help="use a checkpoint of the shared tier or the archive: a local disk has only the "
            "part of its node",
        )
    for at, piece in pieces.items():
        whole[tuple(slice(a, a + n) for a, n in zip(at, piece.shape, strict=True))] = piece
    return whole
