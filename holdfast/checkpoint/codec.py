"""State as plain data: a tree of Python values becomes primitives and a list of leaves, and back.

Every container is written as a list whose first item says its kind, so tuples, sets and non-string
keys survive. Leaves (tensors, arrays) are taken out and stored as raw bytes elsewhere; in their
place stands their number. Anything else is refused with its path, because a value that is silently
left out makes a restore that looks right and is not. Nothing is ever pickled: reading a snapshot
cannot run code.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.errors import Error

_SEQUENCES: dict[type, str] = {list: "l", tuple: "t", set: "s", frozenset: "f"}
_MAPPINGS: dict[type, str] = {dict: "d", OrderedDict: "o", Counter: "c"}
_BUILDERS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "l": list,
    "t": tuple,
    "s": set,
    "f": frozenset,
}
_MAPPING_BUILDERS: dict[str, Callable[[Iterable[tuple[Any, Any]]], Any]] = {
    "d": dict,
    "o": OrderedDict,
    "c": lambda pairs: Counter(dict(pairs)),
}
_PLAIN = frozenset({type(None), bool, float, str, bytes})
_LEAF = "#"
_INTEGER = "i"  # beyond 64 bits, which msgpack cannot hold: the state of numpy's PCG64 is
_DEQUE = "q"
_INT64 = range(-(1 << 63), 1 << 63)


class Flat(NamedTuple):
    """A tree taken apart: its primitives, its leaves in order and the path of each leaf."""

    plain: Any
    leaves: list[Any]
    names: list[str]


def flatten(tree: object, is_leaf: Callable[[object], bool], name: str) -> Flat:
    """The tree as primitives, and its leaves in order. `name` starts every path.

    Raises `Error` (not-tracked) that names the path of a value that cannot be kept.
    """
    leaves: list[Any] = []
    names: list[str] = []

    def walk(value: Any, path: str) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            return value if value in _INT64 else [_INTEGER, str(value)]
        if is_leaf(value):
            leaves.append(value)
            names.append(path)
            return [_LEAF, len(leaves) - 1]
        if (tag := _MAPPINGS.get(kind)) is not None:
            return [tag, *(item for pair in _walk_pairs(walk, value, path) for item in pair)]
        if (tag := _SEQUENCES.get(kind)) is not None:
            return [tag, *(walk(item, f"{path}[{i}]") for i, item in enumerate(value))]
        if kind is deque:
            items = [walk(item, f"{path}[{i}]") for i, item in enumerate(value)]
            return [_DEQUE, value.maxlen, *items]
        raise _refused(value, path)

    return Flat(walk(tree, name), leaves, names)


def unflatten(plain: Any, leaves: Sequence[Any]) -> Any:
    """The tree that `flatten` was given, around these leaves."""
    if not isinstance(plain, list):
        return plain
    tag, *items = plain
    if tag == _LEAF:
        return leaves[items[0]]
    if tag == _INTEGER:
        return int(items[0])
    values = [unflatten(item, leaves) for item in items]
    if tag == _DEQUE:
        return deque(values[1:], maxlen=values[0])
    if tag in _MAPPING_BUILDERS:
        return _MAPPING_BUILDERS[tag](zip(values[::2], values[1::2], strict=True))
    return _BUILDERS[tag](values)


def _walk_pairs(
    walk: Callable[[Any, str], Any], mapping: dict[Any, Any], path: str
) -> Iterable[tuple[Any, Any]]:
    for key, value in mapping.items():
        named = type(key) is str
        place = f"{path}.{key}".removeprefix(".") if named else f"{path}[{key!r}]"
        yield key if named else walk(key, f"key {place}"), walk(value, place)


def _refused(value: object, path: str) -> Error:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return Error(
        "not-tracked",
        f"{path} is a {kind}, which a snapshot cannot contain",
        why="snapshots contain tensors, arrays, numbers, strings, bytes and containers of these, "
        "and are never pickled",
        help="leave it out of state_dict(), or keep it there as plain data",
    )
