"""Trees of arrays taken apart into named leaves, and put together again; with JAX and without.

Where JAX is imported its own registry says what a container is. Of an array that is spread over
devices the pieces that lie in this process are kept, each with its place in the whole.
"""

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Tree = Any
Rebuild = Callable[[Sequence[Any]], Tree]


class Piece(NamedTuple):
    """Some of an array, or all of it, in memory of this process."""

    array: Any  # of numpy
    at: tuple[int, ...]
    whole: tuple[int, ...]


def take_apart(tree: Tree, name: str) -> tuple[dict[str, Any], Rebuild]:
    """The leaves by their paths, and what makes the tree of others in their places."""
    jax = sys.modules.get("jax")
    if jax is not None:
        found, treedef = jax.tree_util.tree_flatten_with_path(tree)
        leaves = {name + jax.tree_util.keystr(path): leaf for path, leaf in found}
        return leaves, treedef.unflatten
    named = dict(_walk(tree, name))
    return named, lambda values: _with(tree, iter(values))


def _walk(tree: Tree, path: str) -> Iterator[tuple[str, Any]]:
    for key, value in _children(tree) or ():
        yield from _walk(value, f"{path}[{key!r}]")
    if _children(tree) is None and tree is not None:
        yield path, tree


def _children(tree: Tree) -> list[tuple[Any, Any]] | None:
    """None for a leaf."""
    if isinstance(tree, Mapping):
        return list(tree.items())
    if isinstance(tree, list | tuple):
        return list(enumerate(tree))
    return None


def _with(tree: Tree, values: Iterator[Any]) -> Tree:
    children = _children(tree)
    if children is None:
        return None if tree is None else next(values)
    made = [_with(value, values) for _, value in children]
    if isinstance(tree, MutableMapping) and type(tree) is not dict:  # defaultdict, Counter
        again = copy.copy(tree)
        for key, value in zip(tree, made, strict=True):
            again[key] = value
        return again
    if isinstance(tree, Mapping):
        return type(tree)(zip(tree, made, strict=True))  # type: ignore[call-arg]
    return type(tree)(*made) if hasattr(tree, "_fields") else type(tree)(made)


def pieces_of(leaf: Any) -> list[Piece] | None:
    """What lies here of an array; None for anything else."""
    if isinstance(leaf, np.ndarray | np.generic):
        return [_alone(np.asarray(leaf))]
    if not _is_jax(leaf):
        return None
    if _is_key(leaf):
        return pieces_of(sys.modules["jax"].random.key_data(leaf))
    places = {_corner(one.index, leaf.shape): one.data for one in leaf.addressable_shards}
    return [Piece(np.asarray(data), at, tuple(leaf.shape)) for at, data in sorted(places.items())]


def _alone(array: Any) -> Piece:
    return Piece(array, (0,) * array.ndim, array.shape)


def like(leaf: Any, pieces: Mapping[tuple[int, ...], Any]) -> Any:
    """The same kind of array, on the same devices, from pieces by their places; copies them."""
    if isinstance(leaf, np.ndarray):
        return next(iter(pieces.values())).copy()
    if isinstance(leaf, np.generic):
        return next(iter(pieces.values()))[()]
    jax = sys.modules["jax"]
    if _is_key(leaf):
        data = like(jax.random.key_data(leaf), pieces)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    parts = [
        jax.device_put(np.array(pieces[_corner(one.index, leaf.shape)]), one.device)
        for one in leaf.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)


def _is_jax(leaf: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(leaf, jax.Array)


def _is_key(leaf: Any) -> bool:
    jax = sys.modules["jax"]
    return bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _corner(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(part.indices(size)[0] for part, size in zip(index, shape, strict=True))
