"""What a payload says about itself: the tree of the state and what each leaf is, without torch.

A payload is the raw bytes of its leaves followed by one `Index`, packed as msgpack. Each leaf that
is part of a larger tensor says of which one and where it lies in it, so that a state can be read
back by another number of ranks, in another layout, from memory as from a disk.
"""

from typing import Any

import msgspec

from holdfast.decoding import known

EVERYWHERE = 1  # `Leaf.save`: this rank writes it to storage that all nodes see
ON_NODE = 2  # and to the disk of its node


class Leaf(msgspec.Struct, frozen=True, array_like=True):
    """What one leaf is. `order` lists the dimensions from outermost to innermost in memory.

    `name` is its path in the state, the same on all ranks for parts of one tensor: `whole` is the
    shape of that tensor and `at` the index at which this part of it begins. For what belongs to
    its rank alone `own` is true: the same name on another rank is another thing.
    """

    kind: str  # "t" tensor, "a" array, "n" numpy scalar
    dtype: str
    shape: tuple[int, ...]  # of this part
    order: tuple[int, ...]
    offset: int  # in the payload, in bytes
    length: int
    name: str = ""
    whole: tuple[int, ...] = ()
    at: tuple[int, ...] = ()
    own: bool = True
    save: int = EVERYWHERE | ON_NODE  # whether a copy of it, here or elsewhere, is written by us


class Index(msgspec.Struct, frozen=True, array_like=True):
    """The second half of a payload. `name` is what the script called this checkpoint, if it did."""

    tree: Any
    leaves: list[Leaf]
    name: str = ""


_indexes = msgspec.msgpack.Decoder(known(Index))  # made ahead: it takes milliseconds


def read_index(encoded: bytes | memoryview) -> Index:
    """The index of a payload. Raises `msgspec.MsgspecError` for anything else."""
    return _indexes.decode(encoded)
