"""Where the bytes of a snapshot or checkpoint are read from: cells of memory, or files of a tier.

A source knows its contents and, for each leaf, which ranks can read it. What a rank cannot read by
itself it gets from one that can (`fetch`). Everything is checked before or while it is read.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec
import torch

from holdfast.checkpoint import catalog
from holdfast.checkpoint.arena import Cell, StatePart
from holdfast.checkpoint.catalog import Opened
from holdfast.checkpoint.contents import Contents, Ref
from holdfast.checkpoint.index import Index, read_index
from holdfast.checkpoint.manifest import SavedPart
from holdfast.checkpoint.pieces import Box, CheckpointPieces, cut, present, read_leaf, saved_parts
from holdfast.checkpoint.tensors import byte_tensor, index_of, view

Gather = Callable[[bytes], list[bytes]]


class StateSource(Protocol):
    """One snapshot or checkpoint, as a rank sees it."""

    contents: Contents

    def holders(self, ref: Ref) -> Sequence[int]:
        """The ranks that can read this leaf, the same list on all ranks."""

    def read(self, ref: Ref, box: Box | None) -> torch.Tensor:
        """The bytes of this box of a tensor, or of the whole leaf, one after the other.

        Raises `Error` checkpoint-damaged or storage-*.
        """


class ReadablePart(msgspec.Struct, frozen=True, array_like=True):
    """One part that a rank can read, and which of its leaves have bytes there."""

    rank: int
    part: int
    index: bytes
    present: list[bool]


class _Told:
    """What ranks know together of a source that not all of them can read."""

    def __init__(self, world_size: int, readable: Sequence[Sequence[ReadablePart]]) -> None:
        """`readable` are by rank."""
        self._holders: dict[tuple[int, int, int], list[int]] = {}
        indexes: dict[tuple[int, StatePart], Index] = {}
        for reader, listed in enumerate(readable):
            for one in listed:
                indexes.setdefault((one.rank, StatePart(one.part)), read_index(one.index))
                for number, there in enumerate(one.present):
                    if there:
                        key = (one.rank, one.part, number)
                        self._holders.setdefault(key, []).append(reader)
        self.contents = Contents(world_size, indexes, lambda ref: bool(self.holders(ref)))

    def holders(self, ref: Ref) -> Sequence[int]:
        """The ranks that can read this leaf."""
        return self._holders.get((ref.rank, ref.part, ref.number), ())


class Memory:
    """A snapshot in the arenas of all ranks."""

    def __init__(
        self, world_size: int, cells: Iterable[tuple[StatePart, Cell]], gather: Gather
    ) -> None:
        """`cells` are those of this rank, already verified."""
        self._cells: dict[tuple[int, StatePart], tuple[Cell, Index]] = {}
        mine = []
        for where, cell in cells:
            header = cell.header()
            assert header is not None, "it has just been verified"
            # a shared part is the same from all ranks: it is counted as that of rank 0
            part = StatePart.SHARED if where is StatePart.SHARED else StatePart.PRIVATE
            rank = 0 if part is StatePart.SHARED else header.rank
            index = index_of(cell)
            self._cells[rank, part] = (cell, index)
            packed = msgspec.msgpack.encode(index)
            mine.append(ReadablePart(rank, part, packed, [True] * len(index.leaves)))
        told = _Told(world_size, _all_readable(gather, mine))
        self.contents, self.holders = told.contents, told.holders

    def read(self, ref: Ref, box: Box | None) -> torch.Tensor:
        """The bytes of a leaf or of a box of it."""
        cell, index = self._cells[ref.rank, ref.part]
        leaf = index.leaves[ref.number]
        if box is None:
            return byte_tensor(cell.payload[leaf.offset : leaf.offset + leaf.length])
        return cut(view(leaf, cell.payload), box)


class Disks:
    """A checkpoint on the disks of all nodes. Any rank of a node can read what is on its disk."""

    def __init__(
        self,
        world_size: int,
        disk: tuple[Opened, list[ReadablePart]] | None,
        gather: Gather,
        local: int,
    ) -> None:
        """`disk` is what this node has, None for nothing; `local` are the ranks of a node."""
        self._opened = disk[0] if disk else None
        told = _all_readable(gather, disk[1] if disk else [])
        everywhere = _Told(world_size, [told[rank // local * local] for rank in range(len(told))])
        self.contents, self.holders = everywhere.contents, everywhere.holders

    def read(self, ref: Ref, box: Box | None) -> torch.Tensor:
        """The bytes of a leaf or of a box of it. Raises `Error` checkpoint-damaged, storage-*."""
        assert self._opened is not None, "only what is here is asked for"
        return read_leaf(self._opened, ref, box)


class Files:
    """A checkpoint in a store that all ranks can read."""

    def __init__(self, opened: Opened, world_size: int) -> None:
        """`world_size` is that of the readers. Raises `Error` checkpoint-damaged, storage-*."""
        self._checkpoint = CheckpointPieces(opened)
        self._everybody = range(world_size)
        self.contents = self._checkpoint.contents
        self.read = self._checkpoint.read

    def holders(self, ref: Ref) -> Sequence[int]:
        """All ranks, or none."""
        return self._everybody if self._checkpoint.has(ref) else ()


def readable_parts(opened: Opened) -> list[ReadablePart]:
    """What a checkpoint on the disk of a node has. Raises `Error` checkpoint-damaged, storage-*."""
    return [
        ReadablePart(rank, part, _packed_index(opened, saved), present(saved))
        for rank, part, saved in saved_parts(opened)
    ]


def _packed_index(opened: Opened, saved: SavedPart) -> bytes:
    return msgspec.msgpack.encode(catalog.index_of(opened.store, saved))


def _all_readable(gather: Gather, mine: list[ReadablePart]) -> list[list[ReadablePart]]:
    packed = gather(msgspec.msgpack.encode(mine))
    return [msgspec.msgpack.decode(one, type=list[ReadablePart]) for one in packed]
