"""Named leaves in a cell of the arena, and out of a payload, in the format of all snapshots.

`holdfast checkpoint show`, `verify` and `export` read them as they read those of torch: an array
whose type torch knows is written as a tensor of that type.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from holdfast.checkpoint.arena import Arena, Cell, CellHeader, StatePart
from holdfast.checkpoint.codec import flatten, unflatten
from holdfast.checkpoint.index import Index, Leaf, read_index
from holdfast.checkpoint.key import Key
from holdfast.errors import Error
from holdfast.pytrees.leaves import Piece, pieces_of

_ALIGN = 64
_SEALED_BYTES = 16 << 20  # up to this size the worker seals by itself
_SLACK = 4096
_TENSORS = frozenset(
    ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "bool")
) | frozenset(("uint8", "int8", "int16", "int32", "int64", "complex64", "complex128"))
Values = dict[str, Any]  # by path: plain, or pieces by their places


class TreeStamp(NamedTuple):
    """Who writes a snapshot of what."""

    key: Key
    rank: int
    world_size: int
    fingerprint: int
    flags: int


def fingerprint_of(leaves: Mapping[str, Any]) -> int:
    """Of names, types and shapes: what was saved under another one is another state. Raises
    `Error` (not-tracked) for a type whose values would not come back."""
    shapes = []
    for name, leaf in sorted(leaves.items()):
        pieces = pieces_of(leaf)
        for piece in pieces or ():
            _require_plain(name, piece.array.dtype)
        told = [(p.array.dtype.name, p.whole, p.at, p.array.shape) for p in pieces or ()]
        shapes.append((name, told))
    return xxhash.xxh3_64_intdigest(msgspec.msgpack.encode(shapes)) >> 1


def _require_plain(name: str, dtype: Any) -> None:
    if dtype.hasobject or dtype.names or not dtype.isnative:
        raise Error(
            "not-tracked",
            f"{name} is an array of {dtype}, which is not supported",
            why="arrays are saved as plain numbers in the byte order of this machine",
            help="track each field as a separate array, .astype(dtype.newbyteorder('=')) for "
            "another byte order, or bytes",
        )


def write(arena: Arena, leaves: Mapping[str, Any], stamp: TreeStamp, keep: set[Key]) -> None:
    """A snapshot of this rank. The part that would be the same on all ranks is empty."""
    _write(arena, StatePart.SHARED, {}, stamp, keep)
    _write(arena, StatePart.PRIVATE, leaves, stamp, keep)


def has_room(arena: Arena, keep: set[Key]) -> bool:
    """Whether there is a cell that holds nothing which is needed."""
    parts = (StatePart.SHARED, StatePart.PRIVATE)
    return all(arena.target(part, keep, slots=3) is not None for part in parts)


def _write(
    arena: Arena, part: StatePart, leaves: Mapping[str, Any], stamp: TreeStamp, keep: set[Key]
) -> None:
    cell = arena.target(part, keep, slots=3)
    assert cell is not None, "whoever writes has seen that there is room"
    tree = {name: _kept(leaf) for name, leaf in leaves.items()}
    plain, pieces, names = flatten(tree, lambda value: type(value) is Piece, "")
    specs = list(_lay_out(pieces, names))
    data_bytes = _aligned(specs[-1].offset + specs[-1].length) if specs else 0
    index = msgspec.msgpack.encode(Index(plain, specs, ""))
    cell.reserve(data_bytes + len(index) + _SLACK)
    cell.begin()
    for spec, piece in zip(specs, pieces, strict=True):
        target = np.frombuffer(cell.payload[spec.offset : spec.offset + spec.length], np.uint8)
        target[...] = np.ascontiguousarray(piece.array).reshape(-1).view(np.uint8)
    cell.payload[data_bytes : data_bytes + len(index)] = index
    header = CellHeader(
        *(*stamp.key, stamp.rank, stamp.world_size, stamp.fingerprint, data_bytes, len(index)),
        stamp.flags,
    )
    cell.commit(header)
    if data_bytes <= _SEALED_BYTES:
        cell.seal()


def _kept(leaf: Any) -> Any:
    """What `flatten` takes: pieces of an array, plain data as it is, bytes that may change."""
    pieces = pieces_of(leaf)
    if pieces is not None:
        return pieces
    return bytes(leaf) if isinstance(leaf, bytearray | memoryview) else leaf


def read(cell: Cell) -> Values:
    """What a whole cell holds; pieces are views into it."""
    header = cell.header()
    assert header is not None, "it was found by its header"
    cell.reserve(header.payload_bytes, touch=False)
    index = read_index(cell.payload[header.data_bytes : header.payload_bytes])
    return values_of(index, lambda leaf: cell.payload[leaf.offset : leaf.offset + leaf.length])


def values_of(index: Index, memory_of: Callable[[Leaf], memoryview | bytes]) -> Values:
    """The named leaves of an index, whose bytes are given by `memory_of`."""
    pieces = [Piece(_array(leaf, memory_of(leaf)), leaf.at, leaf.whole) for leaf in index.leaves]
    return {
        name: {p.at: p.array for p in value} if _are_pieces(value) else value
        for name, value in unflatten(index.tree, pieces).items()
    }


def _are_pieces(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and type(value[0]) is Piece


def _array(leaf: Leaf, memory: memoryview | bytes) -> Any:
    dtype = np.dtype(leaf.dtype) if leaf.kind != "t" else _type_named(leaf.dtype)
    return np.frombuffer(memory, dtype).reshape(leaf.shape)


def _type_named(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # what JAX's bfloat16 and float8 are for numpy

        return np.dtype(getattr(ml_dtypes, name))


def _lay_out(pieces: list[Piece], names: list[str]) -> Iterator[Leaf]:
    offset = 0
    for piece, name in zip(pieces, names, strict=True):
        array = piece.array
        tensor = array.dtype.name in _TENSORS
        yield Leaf(
            kind="t" if tensor else "a",
            dtype=array.dtype.name if tensor else array.dtype.str,
            shape=array.shape,
            order=tuple(range(array.ndim)),
            offset=offset,
            length=array.nbytes,
            name=name.rpartition("[")[0] if name.endswith("]") else name,
            whole=array.shape,
            at=piece.at,
        )
        offset = _aligned(offset + array.nbytes)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN
