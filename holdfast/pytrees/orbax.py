"""Checkpoints of Orbax: a script goes on from one, or leaves one for others.

    from holdfast.pytrees import join, orbax

    found = orbax.load("/mnt/old-run", like={"params": params, "opt": opt})
    state = run.track(**found.tree)

What Holdfast itself saved comes first: `run.track()` restores that, whatever it is given.
"""

from pathlib import Path
from typing import Any, NamedTuple

from holdfast.checkpoint import orbax_form
from holdfast.errors import Error
from holdfast.pytrees.leaves import Tree, take_apart

save = orbax_form.save


class Loaded(NamedTuple):
    """What was read."""

    step: int | None  # of the CheckpointManager that wrote it; None: there was none
    tree: Tree


def load(place: str | Path, *, like: Tree, item: str | None = None) -> Loaded:
    """The tree at a place, in the containers, types and shardings of `like`.

    `place` is a folder that one of Orbax's checkpointers has written, or that of a
    CheckpointManager, of which the newest step is taken; `item` names one of several trees of a
    step. Raises `Error` checkpoint-unusable, export-unavailable.
    """
    orbax = orbax_form.library()
    step, folder = orbax_form.newest(place, item)
    asked = orbax.args.PyTreeRestore(
        item=like, restore_args=orbax.checkpoint_utils.construct_restore_args(like)
    )
    try:
        with orbax.Checkpointer(orbax.PyTreeCheckpointHandler()) as checkpointer:
            tree = checkpointer.restore(folder, args=asked)
    except (ValueError, KeyError, TypeError) as error:
        raise _unusable(folder, str(error).strip().splitlines()[0]) from error
    _require_like(folder, tree, like)
    return Loaded(step, tree)


def _require_like(folder: Path, tree: Tree, like: Tree) -> None:
    wanted, _ = take_apart(like, "tree")
    for path, leaf in take_apart(tree, "tree")[0].items():
        found, asked = _shape(leaf), _shape(wanted[path])
        if found != asked:
            raise _unusable(folder, f"{path} has shape {found}, and the script's has {asked}")


def _shape(leaf: Any) -> tuple[int, ...]:
    return tuple(getattr(leaf, "shape", ()))


def _unusable(folder: Path, why: str) -> Error:
    return Error(
        "checkpoint-unusable",
        f"the tree in {folder} is not that of the script",
        why=why,
        help="pass as `like` a tree with the keys and shapes that were saved",
    )
