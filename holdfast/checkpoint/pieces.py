"""Reading tensors, or boxes of them, from a durable checkpoint; only the chunks that are needed.

Every chunk is checked on the way. A box that is contiguous in its leaf, such as some rows, costs
no more than its own chunks; another one costs those between its first and its last byte.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import torch

from holdfast.checkpoint import catalog
from holdfast.checkpoint.arena import StatePart
from holdfast.checkpoint.catalog import Opened
from holdfast.checkpoint.contents import Contents, Pieces, Ref
from holdfast.checkpoint.index import Leaf
from holdfast.checkpoint.manifest import Chunk, SavedPart
from holdfast.checkpoint.save import NAMES, in_parallel
from holdfast.checkpoint.tensors import view
from holdfast.errors import Error

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets in the leaf, lengths
_PARTS = {name: part for part, name in NAMES.items()}


class CheckpointPieces:
    """What a checkpoint consists of, and its bytes."""

    def __init__(self, opened: Opened) -> None:
        """Reads the indexes. Raises `Error` checkpoint-damaged, storage-*."""
        self._opened = opened
        saved = {(rank, part): one for rank, part, one in saved_parts(opened)}
        self._present = {which: present(one) for which, one in saved.items()}
        read = in_parallel(lambda one: catalog.index_of(opened.store, one), saved.values())
        indexes = dict(zip(saved, read, strict=True))
        self.contents = Contents(opened.manifest.world_size, indexes, self.has)

    def has(self, ref: Ref) -> bool:
        """Whether the bytes of this leaf were written by its rank."""
        return self._present[ref.rank, ref.part][ref.number]

    def read(self, ref: Ref, box: Box | None = None) -> torch.Tensor:
        """The bytes of a leaf or of a box of it. Raises `Error` checkpoint-damaged, storage-*."""
        return read_leaf(self._opened, ref, box)

    def value(self, ref: Ref) -> Any:
        """A leaf by itself: a tensor, an array or a scalar of numpy. Raises as `read`."""
        memory = memoryview(self.read(ref).numpy())  # type: ignore[arg-type]
        return view(at_start(ref.leaf), memory)

    def whole(self, ref: Ref) -> torch.Tensor:
        """The whole tensor that this leaf is a piece of. Raises as `read`."""
        pieces = self.contents.pieces.get(ref.leaf.name, {})
        if ref.leaf.own or ref.leaf.kind != "t":
            same = ref if ref.leaf.own or self.has(ref) else pieces[ref.leaf.at][0]
            found: torch.Tensor = self.value(same)
            return found
        require_all(ref.leaf, pieces)
        tensor = torch.empty(ref.leaf.whole, dtype=getattr(torch, ref.leaf.dtype))
        for at, refs in pieces.items():
            into = tensor
            for dimension, (offset, length) in enumerate(zip(at, refs[0].leaf.shape, strict=True)):
                into = into.narrow(dimension, offset, length)
            into.copy_(self.value(refs[0]))
        return tensor


def require_all(leaf: Leaf, pieces: Pieces) -> None:
    """Raises `Error` checkpoint-incomplete unless the pieces make up the whole tensor."""
    found = sum(math.prod(refs[0].leaf.shape) for refs in pieces.values())
    if found != math.prod(leaf.whole):
        raise Error(
            "checkpoint-incomplete",
            f"{leaf.name} is incomplete",
            why=f"{found} of its {math.prod(leaf.whole)} elements are present",
            help="use a checkpoint of the shared tier or the archive: a local disk has only the "
            "part of its node",
        )


def read_leaf(opened: Opened, ref: Ref, box: Box | None) -> torch.Tensor:
    """The bytes of a leaf that its rank has written, or of a box of it."""
    parts = opened.parts[ref.rank].parts
    saved = parts[NAMES[ref.part]].leaves[ref.number]
    assert saved.chunks is not None, "only what is there is asked for"
    data = torch.empty(ref.leaf.length, dtype=torch.uint8)
    first, last = (0, ref.leaf.length) if box is None else span(ref.leaf, box)
    memory = memoryview(data.numpy())  # type: ignore[arg-type]
    for at, chunk in _placed(saved.chunks):
        if at < last and at + chunk.length > first:
            catalog.read_chunk_into(opened.store, chunk, memory[at : at + chunk.length])
    return data if box is None else cut(view(at_start(ref.leaf), memory), box)


def cut(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    """The bytes of a box of a tensor, in the order of its indices."""
    for dimension, (offset, length) in enumerate(zip(*box, strict=True)):
        tensor = tensor.narrow(dimension, offset, length)
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def span(leaf: Leaf, box: Box) -> tuple[int, int]:
    """From where to where the bytes of a box lie in the memory of its leaf."""
    stored = [leaf.shape[d] for d in leaf.order]
    strides = [math.prod(stored[i + 1 :]) for i in range(len(stored))]
    item = leaf.length // max(1, math.prod(leaf.shape))
    first = sum(box[0][d] * stride for d, stride in zip(leaf.order, strides, strict=True))
    more = sum((box[1][d] - 1) * stride for d, stride in zip(leaf.order, strides, strict=True))
    return first * item, (first + more + 1) * item


def at_start(leaf: Leaf) -> Leaf:
    """The leaf in a payload of its own."""
    return msgspec.structs.replace(leaf, offset=0)


def saved_parts(opened: Opened) -> Iterator[tuple[int, StatePart, SavedPart]]:
    """The parts of all ranks: rank, which, and what was saved of it."""
    for rank, part in opened.parts.items():
        for name, saved in part.parts.items():
            yield rank, _PARTS[name], saved


def present(saved: SavedPart) -> list[bool]:
    """For each leaf whether its rank has written it."""
    return [leaf.chunks is not None for leaf in saved.leaves]


def _placed(chunks: Iterable[Chunk]) -> Iterator[tuple[int, Chunk]]:
    at = 0
    for chunk in chunks:
        yield at, chunk
        at += chunk.length
