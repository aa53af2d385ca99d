"""What a compiled block was called with, told so that another process can call it alike.

Compilers look at shapes, strides and types of what they are given and at a few modes of PyTorch,
never at numbers; so no numbers are kept. What cannot be told (tensors on other devices or of other
classes, objects of the user's) makes the whole call one that is not told.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree


class GivenTensor(msgspec.Struct, frozen=True, tag="tensor"):
    """One that the block is given."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    requires_grad: bool
    leaf: bool


class GivenAgain(msgspec.Struct, frozen=True, tag="again"):
    """The same tensor as the argument of this number."""

    number: int


class GivenValue(msgspec.Struct, frozen=True, tag="value"):
    """Anything else that can be told."""

    value: bool | int | float | str | None


Given = GivenTensor | GivenAgain | GivenValue


class CompiledCall(msgspec.Struct, frozen=True):
    """One call of the block of this name in the model of this `signature`."""

    signature: str
    block: str
    given: tuple[Given, ...]
    tree: str  # how `given` is put together to arguments
    training: bool
    grad: bool
    autocast: str  # its type; empty: none
    bucket_bytes: int | None  # of the DDP around it, by which Dynamo divides what it compiles


def told(signature: str, name: str, block: torch.nn.Module, arguments: Any) -> CompiledCall | None:
    """This call, as it is made now with `arguments`, `(args, kwargs)`; None if that cannot be."""
    if torch.is_inference_mode_enabled():
        return None
    given, tree = _pytree.tree_flatten(arguments)
    around = DistributedDataParallel._active_ddp_module
    try:
        return CompiledCall(
            signature=signature,
            block=name,
            given=tuple(_given(given)),
            tree=_pytree.treespec_dumps(tree),
            training=block.training,
            grad=torch.is_grad_enabled(),
            autocast=_name(torch.get_autocast_dtype("cpu"))
            if torch.is_autocast_enabled("cpu")
            else "",
            bucket_bytes=around.bucket_bytes_cap if around is not None else None,
        )
    except (ValueError, NotImplementedError):  # the latter from `treespec_dumps`
        return None


def _given(values: Sequence[Any]) -> Iterator[Given]:
    first: dict[int, int] = {}
    for number, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            yield _plain(value)
        elif (again := first.setdefault(id(value), number)) != number:
            yield GivenAgain(again)
        else:
            yield _tensor(value)


def _tensor(value: torch.Tensor) -> GivenTensor:
    plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided
    if not plain or value.device.type != "cpu" or value.is_inference():
        raise ValueError("a tensor of another kind")
    return GivenTensor(
        shape=tuple(value.shape),
        stride=value.stride(),
        dtype=_name(value.dtype),
        requires_grad=value.requires_grad,
        leaf=value.is_leaf,
    )


def _plain(value: Any) -> GivenValue:
    if type(value) not in (bool, int, float, str, type(None)):
        raise ValueError("an object of another kind")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number that JSON does not have")
    return GivenValue(value)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ── calling alike ─────────────────────────────────────────────────────────────────────────────


def arguments(call: CompiledCall) -> Any:
    """`(args, kwargs)` of this call, with zeros for numbers. Raises `ValueError` where there can be
    none."""
    made: list[Any] = []
    for one in call.given:
        match one:
            case GivenTensor():
                made.append(_made(one))
            case GivenAgain():
                made.append(made[one.number])
            case GivenValue():
                made.append(one.value)
    return _pytree.tree_unflatten(made, _pytree.treespec_loads(call.tree))


def _made(given: GivenTensor) -> torch.Tensor:
    tensor = torch.empty_strided(given.shape, given.stride, dtype=getattr(torch, given.dtype))
    tensor = tensor.zero_().requires_grad_(given.requires_grad)
    if not given.leaf:
        with torch.enable_grad():
            tensor = tensor.clone()
    if tensor.stride() != given.stride:
        raise ValueError("a tensor that cannot be laid out like that")
    return tensor


@contextmanager
def modes(call: CompiledCall) -> Iterator[None]:
    """Those under which the call was made."""
    around = DistributedDataParallel._active_ddp_module
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(call.grad))
        if call.autocast:
            stack.enter_context(torch.autocast("cpu", dtype=getattr(torch, call.autocast)))
        if call.bucket_bytes is not None:
            alike: Any = SimpleNamespace(bucket_bytes_cap=call.bucket_bytes)
            DistributedDataParallel._active_ddp_module = alike
        try:
            yield
        finally:
            DistributedDataParallel._active_ddp_module = around
