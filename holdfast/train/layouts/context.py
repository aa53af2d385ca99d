"""Context parallel: each rank has a part of every sequence, and attends to what comes before it.

Keys and values of all ranks are gathered for each attention (Llama 3, arXiv 2407.21783, section
3.3.2); everything else works on single places of a sequence. A causal sequence is cut into twice as
many pieces as there are ranks, of which a rank takes one from the front and one from the back, so
that all have the same work. Each piece is one call of PyTorch's attention, with its fast kernels.

PyTorch's own `context_parallel` is a ring of the CUDA kernels of attention and does not run on the
CPU; gathering runs with any backend, and its sums do not depend on who is first.

Attention is found where it is called (a mode of PyTorch's functions, around each block), so a model
needs no change but one: what depends on the place in a sequence has to be a buffer that is named,
with the places along its first dimension. It is replaced by its part during a step.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right
from torch.overrides import TorchFunctionMode

from holdfast.checkpoint.tensors import is_distributed
from holdfast.errors import Error
from holdfast.train.layouts.asked import called_alone
from holdfast.train.layouts.blocks import wrap_forward

SEQUENCE = 1  # dimension of inputs and targets


class ContextPlace(NamedTuple):
    """Of this rank among those that share a sequence."""

    rank: int
    size: int
    group: Any

    def pieces(self) -> tuple[int, int]:
        """The numbers of the two pieces that this rank has."""
        return self.rank, 2 * self.size - 1 - self.rank

    def part(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """What this rank has of a tensor. Raises `Error` (layout-invalid) where it cannot be
        cut."""
        length = tensor.shape[dim]
        if length % (2 * self.size):
            raise Error(
                "layout-invalid",
                f"sequences of {length} cannot be divided among cp {self.size}",
                why=f"each rank takes two of {2 * self.size} pieces of the same length",
                help=f"use sequences of a multiple of {2 * self.size}, or another parallel.cp",
            )
        cut = tensor.chunk(2 * self.size, dim)
        first, second = self.pieces()
        return torch.cat([cut[first], cut[second]], dim)

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """All places of keys or values, (batch, heads, places, width), in their order."""
        gathered: torch.Tensor = _Gathered.apply(tensor, self)  # type: ignore[no-untyped-call]
        cut = gathered.chunk(2 * self.size, 2)
        order = [*range(0, 2 * self.size, 2), *range(2 * self.size - 1, 0, -2)]
        return torch.cat([cut[place] for place in order], 2)


class _Gathered(torch.autograd.Function):
    """Keys or values of all ranks, one after the other; gradients go back to whose they are."""

    @staticmethod
    def forward(ctx: Any, mine: torch.Tensor, place: ContextPlace) -> torch.Tensor:
        ctx.place = place
        parts = [torch.empty_like(mine.contiguous()) for _ in range(place.size)]
        dist.all_gather(parts, mine.contiguous(), group=place.group)
        return torch.cat(parts, 2)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        parts = [part.contiguous() for part in grads[0].chunk(ctx.place.size, 2)]
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts, group=ctx.place.group)
        return mine, None


class _Attention(TorchFunctionMode):
    """Attends over the whole sequence."""

    def __init__(self, place: ContextPlace) -> None:
        super().__init__()
        self._place = place

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            return _attend(self._place, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attend(
    place: ContextPlace,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> torch.Tensor:
    if attn_mask is not None:
        raise Error(
            "layout-invalid",
            "context parallelism does not support an attention mask",
            why="the mask is for the whole sequence, this rank has a part of it",
            help="use is_causal=True, or parallel.cp: 1",
        )
    options["dropout_p"] = dropout_p
    keys, values = place.whole(key), place.whole(value)
    if not is_causal:
        return functional.scaled_dot_product_attention(query, keys, values, **options)
    length = query.shape[2] // 2
    found = []
    for part, number in zip(query.chunk(2, 2), place.pieces(), strict=True):
        until = (number + 1) * length
        mask: Any = causal_lower_right(length, until)
        seen = keys[:, :, :until], values[:, :, :until]
        found.append(
            functional.scaled_dot_product_attention(part, *seen, attn_mask=mask, **options)
        )
    return torch.cat(found, 2)


class SharedContext:
    """Of a run in whose layout sequences are divided."""

    def __init__(self, mesh: DeviceMesh, model: nn.Module, places: Sequence[str]) -> None:
        """`mesh` is the dimension `cp`; `places` are names of the buffers of the model that depend
        on the place. Raises `Error` (layout-invalid) for names that are none."""
        buffers = dict(model.named_buffers())
        for name in places:
            if name not in buffers:
                raise _unknown_buffer(name, buffers)
        self._places = places
        self.place = ContextPlace(mesh.get_local_rank(), mesh.size(), mesh.get_group())
        self._buffers: list[tuple[nn.Module, str]] = []
        self._in_step = False

    def adopt(self, roots: Sequence[nn.Module], blocks: Sequence[nn.Module]) -> None:
        """Have these blocks attend over whole sequences. `roots` are the model, or its stages
        here."""
        found = {}
        for root in roots:
            here = dict(root.named_buffers(remove_duplicate=False))
            for name in filter(here.__contains__, self._places):
                owner, _, attribute = name.rpartition(".")
                module = root.get_submodule(owner)
                found[id(module), attribute] = (module, attribute)
        self._buffers = [*found.values()]
        for block in blocks:
            wrap_forward(block, self._within)

    def _within(self, forward: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._in_step:
            raise called_alone("cp")
        with _Attention(self.place):
            return forward(*args, **kwargs)

    def part(self, tensor: torch.Tensor) -> torch.Tensor:
        """What this rank has of inputs or targets."""
        return self.place.part(tensor, SEQUENCE)

    @contextmanager
    def step(self, length: int) -> Iterator[None]:
        """Forward and backward passes over sequences of this length, of which this rank has its
        part."""
        kept = [(owner, name, owner._buffers[name]) for owner, name in self._buffers]
        for owner, name, buffer in kept:
            assert buffer is not None and not is_distributed(buffer)
            owner._buffers[name] = self.place.part(buffer[:length], 0)
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False
            for owner, name, buffer in kept:
                owner._buffers[name] = buffer


def _unknown_buffer(name: str, buffers: Iterable[str]) -> Error:
    return Error(
        "layout-invalid",
        f"the model has no buffer {name!r}",
        why=f"its buffers: {', '.join(buffers) or 'none'}",
        help="name buffers whose first dimension is the position in the sequence",
    )
