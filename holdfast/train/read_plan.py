"""Which bytes of a source a rank has to read for its state, and where each of them goes.

What is wanted of a tensor is the part that lies here; PyTorch's DefaultLoadPlanner, given the
pieces of each tensor as its Metadata, says which box of which piece goes where. Everything else is
read leaf by leaf.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from holdfast.checkpoint.codec import flatten, unflatten
from holdfast.checkpoint.contents import Contents, Ref
from holdfast.checkpoint.pieces import at_start
from holdfast.checkpoint.tensors import local_part, view
from holdfast.train.fetch import LeafRead
from holdfast.train.load_failure import FailureKind
from holdfast.train.sources import StateSource

Tree = dict[str, Any]


class MisfitError(Exception):
    """It cannot be loaded here; which kind of failure that is."""

    def __init__(self, why: str, kind: FailureKind = FailureKind.MISFIT) -> None:
        super().__init__(why)
        self.kind = kind


class ReadLater:
    """A leaf whose bytes are still to be read."""

    def __init__(self, ref: Ref) -> None:
        self._leaf = at_start(ref.leaf)
        self._memory = bytearray(ref.leaf.length)

    def put(self, data: torch.Tensor) -> None:
        if data.numel():
            self._memory[:] = data.numpy().tobytes()

    @property
    def value(self) -> Any:
        return view(self._leaf, memoryview(self._memory))


class _Want(NamedTuple):
    """A tensor of which a part is wanted: `like` says by its sharding which, `into` takes it."""

    like: torch.Tensor
    into: torch.Tensor


class ReadPlan:
    """Grows with each thing that is asked for; memory for it is there at once."""

    def __init__(self, source: StateSource, rank: int) -> None:
        self._source = source
        self._contents: Contents = source.contents
        self._rank = rank
        self._wants: dict[str, _Want] = {}
        self._reads: list[LeafRead] = []

    def part(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Ask for the part of a tensor that lies here if it is sharded like this one."""
        leaf = next(iter(self._contents.pieces[name].values()))[0].leaf
        part = local_part(like)
        if (leaf.whole, leaf.dtype) != (tuple(like.shape), type_of(part)):
            here = f"{tuple(like.shape)} {type_of(part)}"
            raise MisfitError(f"{name} is {leaf.whole} {leaf.dtype} there and {here} here")
        into = torch.empty(part.shape, dtype=part.dtype)
        if part.numel():
            self._wants[name] = _Want(like, into)
        return into

    def moment(self, name: str, dtype: str, parameter: Any) -> torch.Tensor:
        """Ask for the part of an optimizer's tensor that is sharded like its parameter."""
        into = torch.empty(local_part(parameter).shape, dtype=getattr(torch, dtype))
        if into.numel():
            self._wants[name] = _Want(parameter, into)
        return into

    def reads(self) -> list[LeafRead]:
        """All that was asked for. Raises `MisfitError` where some of it is nowhere."""
        return [*self._reads, *self._planned()]

    def tree(self, tree: Any) -> Any:
        """The tree with all its leaves read."""
        plain, refs, _ = flatten(tree, lambda value: isinstance(value, Ref), "")
        return unflatten(plain, [self.leaf(self._readable(ref)) for ref in refs])

    def _readable(self, ref: Ref) -> Ref:
        """This leaf, or the same one as another rank has it."""
        if ref.leaf.own or self._source.holders(ref):
            return ref
        same = self._contents.pieces.get(ref.leaf.name, {}).get(tuple(ref.leaf.at))
        if not same:
            raise MisfitError(f"the bytes of {ref.leaf.name} are missing", FailureKind.DAMAGED)
        return same[0]

    def leaf(self, ref: Ref) -> ReadLater:
        """Ask for a whole leaf."""
        later = ReadLater(ref)
        if ref.leaf.length:
            if not self._source.holders(ref):
                raise MisfitError(f"the bytes of {ref.leaf.name} are missing", FailureKind.DAMAGED)
            self._reads.append(LeafRead(ref, None, later.put))
        return later

    def _planned(self) -> Iterator[LeafRead]:
        """The reads for all parts of tensors."""
        from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

        from holdfast.checkpoint.dcp import metadata_of

        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        pieces = {name: self._contents.pieces[name] for name in self._wants}
        likes: Tree = {name: want.like for name, want in self._wants.items()}
        planner.set_up_planner(likes, metadata_of(pieces), False)
        missing = {name: want.into.numel() for name, want in self._wants.items()}
        for item in planner.create_local_plan().items:
            name, at = item.storage_index.fqn, tuple(item.storage_index.offset or ())
            missing[name] -= math.prod(item.lengths)
            box = tuple(item.storage_offsets), tuple(item.lengths)
            into = self._wants[name].into
            for dimension, (offset, length) in enumerate(
                zip(item.dest_offsets, item.lengths, strict=True)
            ):
                into = into.narrow(dimension, offset, length)
            yield LeafRead(self._nearest(pieces[name][at]), box, _Filler(into))
        if lost := [name for name, count in missing.items() if count]:
            raise MisfitError(f"parts of {lost[0]} are missing", FailureKind.DAMAGED)

    def _nearest(self, refs: list[Ref]) -> Ref:
        """Of the ranks that have a piece alike, one whose copy can be read here."""
        here = [ref for ref in refs if self._rank in self._source.holders(ref)]
        return (here or refs)[0]


class _Filler:
    """Takes the bytes of a box to where they belong."""

    def __init__(self, into: torch.Tensor) -> None:
        self._into = into

    def __call__(self, data: torch.Tensor) -> None:
        into = self._into
        into.copy_(data.view(into.dtype).view(into.shape))


def type_of(tensor: torch.Tensor) -> str:
    """Its type as an index has it."""
    return str(tensor.dtype).removeprefix("torch.")
