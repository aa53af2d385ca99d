"""The state of a checkpoint as one tree, as if a single rank had trained: what others can read.

Models and optimizer state are put together from all ranks, by name; everything else is what rank 0
had. In the place of each leaf stands a `Ref`. Pure: nothing is read here.
"""

from collections.abc import Callable
from typing import Any

from holdfast.checkpoint.codec import flatten, unflatten
from holdfast.checkpoint.contents import GRADIENTS, LOOP, RANDOM, Contents, Ref, buffers_of
from holdfast.errors import Error

Tree = dict[str, Any]


def consolidated(contents: Contents) -> Tree:
    """Models as their `state_dict()`, optimizers by the names of parameters, and the rest.

    Raises `Error` layout-unknown where ranks have parameters of which nobody knows whether they
    are copies or parts.
    """
    trees = [contents.trees[rank] for rank in sorted(contents.trees)]
    names = list(dict.fromkeys(name for tree in trees for name in tree))
    modules = [name for name in names if buffers_of(name) in names]
    hidden = {RANDOM, GRADIENTS, LOOP, *(buffers_of(name) for name in modules)}
    merged: Tree = {}
    for name in (name for name in names if name not in hidden):
        found = [tree[name] for tree in trees if name in tree]
        if name in modules:
            buffers = [
                tree[buffers_of(name)]["state"] for tree in trees if buffers_of(name) in tree
            ]
            merged[name] = _first_of_each([*_clear(found, name, contents), *buffers])
        elif _is_optimizer(found[0]):
            merged[name] = _optimizer(_clear(found, name, contents))
        else:
            merged[name] = found[0]
    return merged


def modules_of(contents: Contents) -> list[str]:
    """The names under which models are."""
    names = {name for tree in contents.trees.values() for name in tree}
    return sorted(name for name in names if buffers_of(name) in names)


def filled(tree: Any, value: Callable[[Ref], Any]) -> Any:
    """The tree with each `Ref` replaced by its value."""
    plain, refs, _ = flatten(tree, lambda leaf: isinstance(leaf, Ref), "")
    return unflatten(plain, [value(ref) for ref in refs])


def _is_optimizer(tree: Any) -> bool:
    return isinstance(tree, dict) and {"state", "param_groups"} <= tree.keys()


def _first_of_each(trees: list[Tree]) -> Tree:
    merged: Tree = {}
    for tree in trees:
        for key, value in tree.items():
            merged.setdefault(key, value)
    return merged


def _optimizer(trees: list[Tree]) -> Tree:
    """The state of all parameters; each group with those of all ranks."""
    groups: list[Tree] = []
    for tree in trees:
        for number, group in enumerate(tree["param_groups"]):
            if number == len(groups):
                groups.append({**group, "params": []})
            known = groups[number]["params"]
            known += [name for name in group["params"] if name not in known]
    state = _first_of_each([tree["state"] for tree in trees])
    return {**trees[0], "state": state, "param_groups": groups}


def _clear(trees: list[Any], name: str, contents: Contents) -> list[Any]:
    """The trees, if their tensors belong together. Raises `Error` layout-unknown."""
    _, refs, _ = flatten(trees[0], lambda leaf: isinstance(leaf, Ref), "")
    if contents.world_size > 1 and any(ref.leaf.own for ref in refs):
        raise Error(
            "layout-unknown",
            f"{name} cannot be consolidated from {contents.world_size} ranks",
            why="each rank has parameters of the same names, and nothing records whether they "
            "are replicas or shards",
            help="wrap the model by run.parallelize(), fully_shard or parallelize_module",
        )
    return trees
