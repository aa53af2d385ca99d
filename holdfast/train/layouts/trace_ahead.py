"""Blocks that the job compiles, traced by a worker that waits for its rank.

Caches hold what Inductor has made, but not what leads there: each process has Dynamo trace the
blocks again before it finds that they are compiled. So a worker that trains notes with what a block
was called when something was compiled, and one that waits calls copies of its own blocks alike,
forward and backward, with zeros. What Dynamo keeps is bound to code and to the shape of things, so
it finds it again for the blocks themselves. Copies, because a call may change buffers or anything
else of a module; random numbers are put back.

What is found must be what would have been traced: if the first call is none of those that were
noted, all is forgotten, since Dynamo compiles otherwise after it has seen other shapes. PyTorch's
own way to keep traces (`caching_precompile`) leaves out guards, so that it may take code for a
block that does something else, and does not know blocks apart.

Only where ranks replicate and compute on the CPU: elsewhere parameters are divided over groups
that a waiting worker has not joined yet, or it would need memory of a GPU on which others train.
"""

import contextlib
import copy
import gc
import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils import _pytree

from holdfast import learned_imports, rank
from holdfast.checkpoint import arena_ahead
from holdfast.dimensions import Recomputation, layout_in
from holdfast.train import random_state
from holdfast.train.layouts.compiled_calls import CompiledCall, arguments, modes, told
from holdfast.train.layouts.recomputation import recompute

FILE = "compiled_calls.jsonl"
SWITCH = "HOLDFAST_TRACE_AHEAD"
MOST = 32  # calls that are noted
MOST_BYTES = 2 << 30  # of a block that is copied
LOOK_S = 1.0
_CPU = torch.device("cpu")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_traced: set[CompiledCall] = set()

logger = logging.getLogger(__name__)


def _place() -> Path | None:
    told = os.environ.get(learned_imports.FILE)
    if told is None or os.environ.get(SWITCH) == "0":
        return None
    return Path(told).with_name(FILE)


def _known(place: Path) -> list[CompiledCall]:
    """What the file holds, in order."""
    found: dict[CompiledCall, None] = {}
    with contextlib.suppress(OSError):
        for line in place.read_bytes().splitlines():
            with contextlib.suppress(msgspec.DecodeError):
                found[msgspec.json.decode(line, type=CompiledCall)] = None
    return [*found]


# ── in a worker that trains ───────────────────────────────────────────────────────────────────


def compile_blocks(model: nn.Module, blocks: Sequence[nn.Module], *, noted: bool) -> None:
    """Have each of these modules of `model` compiled. `noted`: a call that compiles may be told."""
    place = _place() if noted else None
    known = signature(model) if place is not None else ""
    names = {module: name for name, module in model.named_modules()}
    for block in blocks:
        block.compile()
        if place is not None:
            block._compiled_call_impl = _NotedCalls(block, (known, names[block]), place)


def signature(model: nn.Module) -> str:
    """The same for models that only differ in numbers."""
    kind, digest = type(model), hashlib.sha256()
    digest.update(f"{kind.__module__}.{kind.__qualname__}".encode())
    for name, part in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {tuple(part.shape)} {part.dtype}\n".encode())
    return digest.hexdigest()[:32]


class _NotedCalls:
    """What a block is called by: those that have something compiled are noted."""

    def __init__(self, block: nn.Module, named: tuple[str, str], place: Path) -> None:
        self._compiled: Any = block._compiled_call_impl
        self._block, self._named, self._place = block, named, place

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _traced:
            _keep_only_for(told(*self._named, self._block, (args, kwargs)))
        before = _frames()
        out = self._compiled(*args, **kwargs)
        if _frames() != before:
            self._note(told(*self._named, self._block, (args, kwargs)))
        return out

    def _note(self, call: CompiledCall | None) -> None:
        if call is None or os.environ.get("LOCAL_RANK", "0") != "0":
            return
        known = _known(self._place)
        if call not in known and len(known) < MOST:
            with contextlib.suppress(OSError), self._place.open("ab") as file:
                file.write(msgspec.json.encode(call) + b"\n")


def _frames() -> int:
    """How often this process has compiled, as Dynamo counts."""
    return int(torch._dynamo.utils.counters["frames"]["total"])


def _keep_only_for(first: CompiledCall | None) -> None:
    """What was traced ahead is for a training that begins with one of these calls."""
    if first not in _traced:
        logger.info("the arguments of compiled blocks have changed: tracing again")
        torch._dynamo.reset()
    _traced.clear()


# ── in a worker that waits ────────────────────────────────────────────────────────────────────


def offer() -> None:
    """Trace ahead when this worker begins to wait for its rank, after it has imported ahead."""
    if rank.CONTROL in os.environ and _place() is not None and layout_in(os.environ).compile:
        rank.while_waiting.insert(1, _trace_while_waiting)


def _trace_while_waiting(control: int) -> None:
    """What has been noted, and what comes to be, until the rank comes."""
    place, wish = _place(), layout_in(os.environ).activation_checkpointing
    done: set[CompiledCall] = set()
    while place is not None and not rank.has_come(control, 0.0):
        for call in [call for call in _known(place) if call not in done]:
            if rank.has_come(control, 0.0):
                return
            done.add(call)
            trace(call, wish)
        arena_ahead.map_present(lambda: rank.has_come(control, 0.0))
        rank.has_come(control, LOOK_S)


def trace(call: CompiledCall, wish: Recomputation = "none") -> None:
    """Call a copy of this block, if a model of this process has it, and leave all as it was. What
    fails will be shown by the script, if it fails there."""
    numbers = random_state.capture(_CPU)
    try:
        for block in _blocks(call):
            _traced.add(call)
            _call(copy.deepcopy(block), call, wish)
    except Exception as error:
        logger.debug("%s was not traced ahead: %s", call.block, error)
    finally:
        random_state.restore(numbers, _CPU)
        gc.collect()  # a compiled module holds itself


def _blocks(call: CompiledCall) -> Iterator[nn.Module]:
    """The first one that fits, and may be called unseen."""
    for model in gc.get_objects():
        if issubclass(type(model), nn.Module) and signature(model) == call.signature:
            block = model.get_submodule(call.block)
            if not _is_watched(block) and _size(block) <= MOST_BYTES:
                yield block
            return


def _is_watched(block: nn.Module) -> bool:
    """Whether something of the user's is told of its calls."""
    return any(getattr(module, name) for module in block.modules() for name in _HOOKS)


def _size(block: nn.Module) -> int:
    return sum(part.numel() * part.element_size() for part in block.parameters())


def _call(block: nn.Module, call: CompiledCall, wish: Recomputation) -> None:
    recompute([block], wish)
    block.train(call.training)
    block.compile()
    args, kwargs = arguments(call)
    with modes(call):
        out = block(*args, **kwargs)
    ends = [end for end in _pytree.tree_leaves(out) if isinstance(end, torch.Tensor)]
    ends = [end for end in ends if end.requires_grad]
    if ends:
        torch.autograd.backward(ends, [torch.zeros_like(end) for end in ends])
