"""The seam to PyTorch's distributed checkpoints (DCP): a reader for `dcp.load`.

    dcp.load(state, storage_reader=HoldfastReader("/checkpoints/gpt"))

The keys are those that DCP makes of nested dictionaries: `model.layers.0.weight`,
`optimizer.state.layers.0.weight.exp_avg`. Any number of ranks may read, in any layout; DCP plans
what each of them reads. Writing is left to the storage process, which commits what it has written.
"""

import io
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from holdfast.checkpoint import catalog
from holdfast.checkpoint.consolidate import consolidated, filled
from holdfast.checkpoint.contents import Pieces, Ref
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.pieces import CheckpointPieces, require_all
from holdfast.errors import Error


class _Leaf:
    """A `Ref` that DCP does not take for a tuple."""

    def __init__(self, ref: Ref) -> None:
        self.ref = ref


class HoldfastReader(StorageReader):
    """Reads a committed checkpoint for `torch.distributed.checkpoint.load`."""

    def __init__(self, place: str, *, step: int | None = None, attempt: int | None = None) -> None:
        """`place` is that of a tier; of its checkpoints the newest one that fits is read.

        Raises `Error` checkpoint-not-found, checkpoint-damaged or storage-*.
        """
        self._checkpoint = CheckpointPieces(catalog.open_checkpoint(*_find(place, step, attempt)))
        tree = filled(consolidated(self._checkpoint.contents), _Leaf)
        self._items, self._mappings = flatten_state_dict(tree)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept between two loads."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Names, shapes and pieces of everything."""
        return Metadata(
            state_dict_metadata={key: self._describe(item) for key, item in self._items.items()},
            planner_data=self._mappings,
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any) -> None:
        """There is nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what is planned. Raises `Error` checkpoint-damaged or storage-*."""
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._pickled(self._items[item.storage_index.fqn]))
            else:
                into = planner.resolve_tensor(item).detach()
                into.copy_(self._read(item, into))
                planner.commit_tensor(item, into)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any place may have checkpoints."""
        return bool(checkpoint_id)

    def _describe(self, item: Any) -> TensorStorageMetadata | BytesStorageMetadata:
        if not _is_tensor(item):
            return BytesStorageMetadata()
        pieces = self._pieces(item.ref)
        if not item.ref.leaf.own:
            require_all(item.ref.leaf, pieces)
        return _tensor(pieces)

    def _pieces(self, ref: Ref) -> Pieces:
        if ref.leaf.own:
            return {(0,) * len(ref.leaf.shape): [ref]}
        return self._checkpoint.contents.pieces.get(ref.leaf.name, {})

    def _read(self, item: ReadItem, into: torch.Tensor) -> torch.Tensor:
        at = tuple(item.storage_index.offset or ())
        ref = self._pieces(self._items[item.storage_index.fqn].ref)[at][0]
        box = tuple(item.storage_offsets), tuple(item.lengths)
        data = self._checkpoint.read(ref, box)
        return data.view(getattr(torch, ref.leaf.dtype)).view(into.shape)

    def _pickled(self, item: Any) -> io.BytesIO:
        """DCP unpickles what is not a tensor: here it is pickled from plain data just before."""
        value = self._checkpoint.whole(item.ref) if isinstance(item, _Leaf) else item
        buffer = io.BytesIO()
        torch.save(value, buffer)
        buffer.seek(0)
        return buffer


def metadata_of(pieces: Mapping[str, Pieces]) -> Metadata:
    """What DCP has to know of these tensors to plan reads. The index of a piece in it is the
    offset at which it begins."""
    return Metadata(state_dict_metadata={name: _tensor(one) for name, one in pieces.items()})


def _is_tensor(item: Any) -> bool:
    return isinstance(item, _Leaf) and item.ref.leaf.kind == "t"


def _tensor(pieces: Pieces) -> TensorStorageMetadata:
    leaf = next(iter(pieces.values()))[0].leaf
    chunks = [
        ChunkStorageMetadata(torch.Size(at), torch.Size(refs[0].leaf.shape))
        for at, refs in pieces.items()
    ]
    properties = TensorProperties(dtype=getattr(torch, leaf.dtype))
    size = leaf.shape if leaf.own else leaf.whole
    return TensorStorageMetadata(properties, torch.Size(size), chunks)


def _find(place: str, step: int | None, attempt: int | None) -> tuple[Any, Key]:
    store = open_store(place)
    for manifest in catalog.committed(store):
        if step in (None, manifest.step) and attempt in (None, manifest.attempt):
            return store, manifest.key
    raise Error(
        "checkpoint-not-found",
        f"{place} has no such checkpoint",
        why="there is no committed checkpoint" if step is None else f"none of step {step}",
        help=f"holdfast checkpoint list --at {place}",
    )
