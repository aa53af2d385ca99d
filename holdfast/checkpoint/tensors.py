"""Copying tensors into a cell of the arena and out of it.

A payload is the raw bytes of all leaves, each at a fixed, aligned offset, followed by an index: the
tree around them and what each one is (`codec`). The copy plan, a list of pairs of byte views, is
made once per layout and cell, so that a snapshot is a loop of memory copies by one thread. Of a
tensor that is sharded over ranks (DTensor) the part that lies here is copied. The checksum of a
small payload is taken block by block right after the copy, while the bytes are still in the cache;
a large one is left to the agent's side to seal (`arena`).

One thread, because two are slower on a machine that also trains. Byte views and not `torch.copy_`,
because that would use the intra-op threads. The plan remembers the addresses of the tensors, and
holds them alive, so a replaced tensor is noticed and an address cannot be reused unseen.

What is copied beside training (`streams`) must not change before it has been copied. Whether it did
is looked at afterwards: torch counts the changes of each tensor, and of each piece in plain memory
a few bytes are compared, because what goes through `.data` is not counted.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from holdfast.checkpoint.arena import Arena, Cell, CellHeader, Key, StatePart
from holdfast.checkpoint.codec import flatten, unflatten
from holdfast.checkpoint.index import EVERYWHERE, ON_NODE, Index, Leaf, read_index
from holdfast.checkpoint.seal import Seal
from holdfast.checkpoint.streams import BackgroundCopier, Copy

_ALIGN = 64
_BLOCK_BYTES = 1 << 20  # stays in a second-level cache between copy and checksum
_BESIDE_BYTES = 16 << 20  # the pieces of copies beside training: what a guard may have to wait for
_SAMPLE_BYTES = 16  # compared of each such piece
SEALED_BYTES = 16 << 20  # up to this size the worker seals by itself
_INDEX_SLACK = 4096  # counters in the index grow by a few bytes over a run
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})


class Stamp(NamedTuple):
    """Who writes a snapshot of what."""

    key: Key
    rank: int
    world_size: int
    fingerprint: int
    flags: int = 0


class LeafPlace(NamedTuple):
    """What a leaf is part of and who writes it: the fields of the same names of `Leaf`.

    `stable`: nothing but an optimizer changes it.
    """

    whole: tuple[int, ...]
    at: tuple[int, ...]
    own: bool = True
    save: int = EVERYWHERE | ON_NODE
    stable: bool = False


class _Block(NamedTuple):
    """Some copies and the contiguous bytes they complete. Sources are numbers of leaves."""

    sources: list[Any]  # of the writer: replaced there when a tensor is replaced
    arrays: list[tuple[Any, int, int, int]]  # byte view to fill, source, from, to
    tensors: list[tuple[torch.Tensor, int]]  # not plain memory: another device, strided
    written: memoryview


class _Beside(NamedTuple):
    """A payload that is being copied beside training."""

    cell: Cell
    header: CellHeader
    watched: list[tuple[str, Any, int]]  # name, tensor and how often it had changed
    samples: list[tuple[str, Any, bytes]]  # name, target and what it has to become


def local_part(leaf: Any) -> Any:
    """What of this leaf lies here: of a DTensor its shard, of anything else all."""
    return leaf._local_tensor if is_distributed(leaf) else leaf


def is_distributed(value: object) -> bool:
    """Whether this is a DTensor, without importing what defines it: that takes half a second."""
    return type(value).__name__ == "DTensor" and hasattr(value, "_local_tensor")


def is_leaf(value: object) -> bool:
    """Tensors with ordinary memory, arrays and scalars of numpy that hold no Python objects."""
    if type(value) in _TENSORS or is_distributed(value):
        tensor: torch.Tensor = local_part(value)
        plain = tensor.layout is torch.strided and not tensor.is_quantized
        return plain and tensor.device.type != "meta"
    return isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject


def place_alone(_: str, leaf: Any) -> LeafPlace:
    """The place of a leaf that belongs to its rank."""
    return LeafPlace(tuple(leaf.shape), (0,) * leaf.ndim)


class Writer:
    """Writes one part of the state into its cells, with the copy plan kept between snapshots."""

    def __init__(
        self, arena: Arena, part: StatePart, place: Callable[[str, Any], LeafPlace] = place_alone
    ) -> None:
        """`place` is asked once per layout for each leaf, by its path."""
        self._arena = arena
        self._part = part
        self._place = place
        self._layout: list[Any] | None = None
        self._specs: list[Leaf] = []
        self._leaves: list[Any] = []  # as they were last seen: held alive
        self._identities: list[Any] = []
        self._sources: list[Any] = []
        self._index = b""
        self._stable: list[bool] = []
        self._plans: dict[tuple[int, bool], tuple[_Block, ...]] = {}
        self._beside: _Beside | None = None

    def encode(self, tree: object, name: str = "", label: str = "") -> int:
        """Prepare this state for `write`; returns the size of its payload in bytes.

        `name` starts the path in messages, `label` is what the script calls this checkpoint.

        Raises `Error` (not-tracked) for values that cannot be kept.
        """
        plain, leaves, names = flatten(tree, is_leaf, name)
        layout = [names, *(_shape(leaf) for leaf in leaves)]
        if layout != self._layout:
            places = [self._place(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
            self._specs = list(_lay_out([local_part(leaf) for leaf in leaves], names, places))
            self._stable = [place.stable for place in places]
            self._plans.clear()
            self._sources = [None] * len(leaves)
            self._identities = [None] * len(leaves)
            self._layout = layout
        self._follow(leaves)
        self._index = msgspec.msgpack.encode(Index(plain, self._specs, label))
        return self._data_bytes() + len(self._index)

    def _follow(self, leaves: list[Any]) -> None:
        """Note where the leaves are now."""
        for number, leaf in enumerate(leaves):
            part = local_part(leaf)
            identity = _identity(part)
            if identity != self._identities[number]:
                self._identities[number] = identity
                self._sources[number] = _source(part)
        self._leaves = leaves

    def write(
        self,
        stamp: Stamp,
        keep: Collection[Key],
        slots: int = 2,
        background: BackgroundCopier | None = None,
    ) -> Cell:
        """Copy what `encode` prepared into a cell that holds nothing of `keep`; returns it whole,
        or, where `background` has taken it over (`beside`), as it will be after `complete`. What
        was taken over is whole or given up, and let go, before the next one is written.

        There must be such a cell among the first `slots`.
        """
        cell = self._arena.target(self._part, keep, slots)
        assert cell is not None, "whoever writes has seen that there is room"
        data_bytes = self._data_bytes()
        cell.reserve(data_bytes + len(self._index) + _INDEX_SLACK)
        cell.begin()
        cell.payload[data_bytes : data_bytes + len(self._index)] = self._index
        header = self._header(stamp, data_bytes)
        if background is not None and data_bytes > background.least_bytes:
            copies = list(self._copies(self._plan(cell, beside=True)))
            self._beside = _Beside(cell, header, self._watched(), list(self._samples(copies)))
            background.start(cell.memory, (copy for _, copy in copies))
            return cell
        digest = Seal() if data_bytes <= SEALED_BYTES else None
        _copy(self._plan(cell, beside=False), digest)
        if digest is not None:
            digest.update(self._index)
        cell.commit(header, None if digest is None else digest.intdigest())
        return cell

    @property
    def beside(self) -> bool:
        """Whether what was written last is being copied beside training."""
        return self._beside is not None

    def changed(self) -> str | None:
        """The name of something that has changed before it was copied beside training, for all
        that can be seen of it. To be asked before the sources may change."""
        if self._beside is None:
            return None
        watched = (
            name for name, tensor, version in self._beside.watched if tensor._version != version
        )
        sampled = (name for name, array, was in self._beside.samples if _sample(array) != was)
        return next(watched, None) or next(sampled, None)

    def complete(self) -> None:
        """Everything is copied: the cell is whole. It may still be given up."""
        if self._beside is not None and self._beside.cell.header() is None:
            self._beside.cell.commit(self._beside.header)
            if self._beside.header.data_bytes <= SEALED_BYTES:
                self._beside.cell.seal()

    def give_up(self) -> None:
        """What was being copied is not what it should be."""
        if self._beside is not None:
            self._beside.cell.discard()

    def let_go(self) -> None:
        """Nothing is being copied beside training any more."""
        self._beside = None

    def forget(self) -> None:
        """Hold no tensor alive; the next layout is made anew."""
        self._layout = None
        self._leaves, self._identities, self._sources = [], [], []
        self._plans.clear()

    def _copies(self, plan: Sequence[_Block]) -> Iterator[tuple[int, Copy]]:
        """What to copy, with the numbers of the leaves."""
        for block in plan:
            for target, number, at, to in block.arrays:
                source = block.sources[number][at:to]
                yield number, Copy(target, source, self._stable[number])
            for tensor, number in block.tensors:
                yield number, Copy(tensor, block.sources[number], self._stable[number])

    def _watched(self) -> list[tuple[str, Any, int]]:
        tensors = (
            (spec.name, local_part(leaf))
            for spec, leaf, stable in zip(self._specs, self._leaves, self._stable, strict=True)
            if stable and isinstance(leaf, torch.Tensor)
        )
        return [(name, tensor, tensor._version) for name, tensor in tensors]

    def _samples(self, copies: Sequence[tuple[int, Copy]]) -> Iterator[tuple[str, Any, bytes]]:
        for number, copy in copies:
            if copy.stable and isinstance(copy.source, np.ndarray):
                yield self._specs[number].name, copy.target, _sample(copy.source)

    def _header(self, stamp: Stamp, data_bytes: int) -> CellHeader:
        return CellHeader(
            attempt=stamp.key.attempt,
            step=stamp.key.step,
            rank=stamp.rank,
            world_size=stamp.world_size,
            fingerprint=stamp.fingerprint,
            data_bytes=data_bytes,
            index_bytes=len(self._index),
            flags=stamp.flags,
        )

    def _data_bytes(self) -> int:
        return _aligned(self._specs[-1].offset + self._specs[-1].length) if self._specs else 0

    def _plan(self, cell: Cell, *, beside: bool) -> tuple[_Block, ...]:
        plan = self._plans.get((id(cell), beside))
        if plan is None:
            payload = cell.payload[: self._data_bytes()]
            size = _BESIDE_BYTES if beside else _BLOCK_BYTES
            plan = tuple(_plan_blocks(self._sources, self._specs, payload, size))
            self._plans[id(cell), beside] = plan
        return plan


def read(cell: Cell) -> Any:
    """The tree a whole cell holds. Its tensors are views, valid until the cell is rewritten."""
    index = index_of(cell)
    return unflatten(index.tree, [view(leaf, cell.payload) for leaf in index.leaves])


def index_of(cell: Cell) -> Index:
    """What a whole cell says about its payload. Raises `ValueError` for one that is not whole."""
    header = cell.header()
    if header is None:
        raise ValueError("the cell holds nothing whole")
    cell.reserve(header.payload_bytes, touch=False)
    return read_index(cell.payload[header.data_bytes : header.payload_bytes])


def cloned(tree: Any) -> Any:
    """The same tree with tensors and arrays of its own."""
    plain, leaves, _ = flatten(tree, is_leaf, "")
    return unflatten(plain, [_clone(leaf) for leaf in leaves])


def byte_tensor(memory: memoryview) -> torch.Tensor:
    """Memory of the arena as a tensor of bytes, to send or to receive into."""
    return torch.frombuffer(memory, dtype=torch.uint8)


def _clone(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf.copy()


def _shape(leaf: Any) -> tuple[Any, ...]:
    """What the layout depends on."""
    if not isinstance(leaf, torch.Tensor):
        return (type(leaf), leaf.dtype, leaf.shape)
    part = local_part(leaf)
    own = (part.dtype, part.shape, part.stride())
    # of a DTensor its own shape and placements are slow to ask for; its spec has both
    return own if part is leaf else (*own, leaf._spec)  # type: ignore[attr-defined]


def _identity(leaf: Any) -> Any:
    """Where the bytes are. Arrays come from state_dict() as fresh copies: never the same."""
    return leaf.data_ptr() if isinstance(leaf, torch.Tensor) else object()


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN


def _lay_out(
    leaves: Sequence[Any], names: Sequence[str], places: Sequence[LeafPlace]
) -> Iterator[Leaf]:
    offset = 0
    for leaf, name, place in zip(leaves, names, places, strict=True):
        kind, dtype, order, length = _describe(leaf)
        shape = tuple(leaf.shape)
        whole, at, own, save, _ = place
        yield Leaf(kind, dtype, shape, order, offset, length, name, whole, at, own, save)
        offset = _aligned(offset + length)


def _describe(leaf: Any) -> tuple[str, str, tuple[int, ...], int]:
    """Kind, type, order of the dimensions and bytes."""
    if isinstance(leaf, torch.Tensor):
        dtype = str(leaf.dtype).removeprefix("torch.")
        return "t", dtype, _order(leaf), _tensor_bytes(leaf)
    kind = "a" if isinstance(leaf, np.ndarray) else "n"
    return kind, leaf.dtype.str, tuple(range(leaf.ndim)), leaf.nbytes


def _tensor_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Dimensions by falling stride where that is dense (channels_last), else as they are."""
    given, strides = tuple(range(tensor.ndim)), tensor.stride()
    if tensor.is_contiguous():
        return given
    order = tuple(sorted(given, key=lambda d: -strides[d]))
    return order if tensor.permute(order).is_contiguous() else given


def _plan_blocks(
    sources: list[Any], specs: Sequence[Leaf], payload: memoryview, size: int
) -> Iterator[_Block]:
    arrays: list[tuple[Any, int, int, int]] = []
    tensors: list[tuple[torch.Tensor, int]] = []
    start = 0
    for number, spec in enumerate(specs):
        strided = isinstance(sources[number], torch.Tensor)
        if strided:
            tensors.append((view(spec, payload), number))
        for at in range(0, spec.length, size):
            to = min(at + size, spec.length)
            end = spec.offset + to
            if not strided:
                target = np.frombuffer(payload[spec.offset + at : end], dtype=np.uint8)
                arrays.append((target, number, at, to))
            if end - start >= size:
                yield _Block(sources, arrays, tensors, payload[start:end])
                arrays, tensors, start = [], [], end
    yield _Block(sources, arrays, tensors, payload[start:])


def _copy(plan: Sequence[_Block], digest: Any) -> None:
    for block in plan:
        sources = block.sources
        for target, number, at, to in block.arrays:
            target[...] = sources[number][at:to]
        for target, number in block.tensors:
            target.copy_(sources[number])
        if digest is not None:
            digest.update(block.written)


def _sample(piece: Any) -> bytes:
    """A few bytes out of the middle."""
    at = piece.size // 2
    return bytes(piece[at : at + _SAMPLE_BYTES])


def _source(leaf: Any) -> Any:
    """The leaf's memory as a flat byte array; the leaf itself where it is not plain memory."""
    found = _bytes_of(leaf)
    return leaf.detach() if found is None else found


def _bytes_of(leaf: Any) -> Any:
    """The leaf's memory as a flat byte array in stored order; None where it is not plain memory."""
    if not isinstance(leaf, torch.Tensor):
        return np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
    if leaf.device.type != "cpu" or leaf.is_conj() or leaf.is_neg():
        return None
    ordered = leaf.detach()
    if not leaf.is_contiguous():
        ordered = ordered.permute(_order(leaf))
        if not ordered.is_contiguous():
            return None
    return ordered.view(-1).view(torch.uint8).numpy()


def view(leaf: Leaf, payload: memoryview) -> Any:
    """This leaf of a payload, as a view into it."""
    memory = payload[leaf.offset : leaf.offset + leaf.length]
    if leaf.kind != "t":
        array = np.frombuffer(memory, dtype=np.dtype(leaf.dtype)).reshape(leaf.shape)
        return array if leaf.kind == "a" else array[()]
    return _tensor_view(leaf, memory)


def _tensor_view(leaf: Leaf, memory: memoryview) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, leaf.dtype)
    stored = [leaf.shape[d] for d in leaf.order]
    if math.prod(stored) == 0:
        return torch.empty(leaf.shape, dtype=dtype)
    found = torch.frombuffer(memory, dtype=dtype).view(stored)
    if stored == list(leaf.shape) and leaf.order == tuple(range(len(stored))):
        return found
    return found.permute(sorted(range(len(leaf.order)), key=lambda d: leaf.order[d]))
