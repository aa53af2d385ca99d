"""The objects a run keeps: which part of their state is the same everywhere, which is a rank's own.

Under data-parallel training parameters, optimizers and schedulers are bitwise the same on all
ranks, so any rank's copy serves a rank that lost its own. Buffers, the loader's position, random
numbers and everything else belong to one rank. Models that are not data-parallel make everything
private.
"""

import json
from collections.abc import Collection
from typing import Any, Protocol, runtime_checkable

import torch
import xxhash
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from holdfast.checkpoint.tensors import cloned
from holdfast.errors import Error
from holdfast.train import random_state
from holdfast.train.expected import coming_bytes

Tree = dict[str, Any]
_RANDOM = "(random numbers)"  # not a name that an object can be given


@runtime_checkable
class Stateful(Protocol):
    """Anything with the two methods."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class Tracked:
    """What was given to `run.track()`, by name."""

    def __init__(
        self, objects: dict[str, Any], device: torch.device, parallel: Collection[Any] | None
    ) -> None:
        """`parallel` holds the modules that `run.parallelize()` took; None for a run of one."""
        for name, thing in objects.items():
            _require_stateful(name, thing)
        self._device = device
        self._modules = {n: _unwrapped(o) for n, o in objects.items() if _is_module(o)}
        self._others = {n: o for n, o in objects.items() if not _is_module(o)}
        wrapped = [o for o in objects.values() if is_data_parallel(o)]
        known = {id(module) for module in [*(parallel or ()), *map(_unwrapped, wrapped)]}
        self.replicated = parallel is None or all(id(m) in known for m in self._modules.values())

    def capture(self) -> tuple[Tree, Tree]:
        """The state now: what is the same on every rank, and what is this rank's alone.

        Tensors are those of the objects themselves, not copies.
        """
        split = {name: _split(module) for name, module in self._modules.items()}
        following = {n: o.state_dict() for n, o in self._others.items() if _follows(o)}
        shared = {**{name: parameters for name, (parameters, _) in split.items()}, **following}
        private = {_buffers(name): buffers for name, (_, buffers) in split.items()}
        private |= {n: o.state_dict() for n, o in self._others.items() if not _follows(o)}
        private[_RANDOM] = random_state.capture(self._device)
        return (shared, private) if self.replicated else ({}, {**shared, **private})

    def load(self, shared: Tree, private: Tree) -> None:
        """Put everything but the random numbers back."""
        if not self.replicated:
            shared = private
        for name, module in self._modules.items():
            _load_module(module, shared[name], private[_buffers(name)])
        for name, thing in self._others.items():
            state = cloned(shared[name] if _follows(thing) else private[name])
            if isinstance(thing, Optimizer):
                _load_optimizer(thing, state)
            else:
                thing.load_state_dict(state)

    def coming_bytes(self) -> int:
        """Bytes of state that optimizers will add in their first step."""
        optimizers = (o for o in self._others.values() if isinstance(o, Optimizer))
        return sum(coming_bytes(optimizer) for optimizer in optimizers)

    def load_random(self, private: Tree) -> None:
        """Put the random number generators back; last, because loading may draw numbers."""
        random_state.restore(cloned(private[_RANDOM]), self._device)

    def fingerprint(self) -> int:
        """Changes when names, shapes or types do: a snapshot of something else is not ours."""
        modules = {
            name: [(k, tuple(p.shape), str(p.dtype)) for k, p in module.named_parameters()]
            for name, module in self._modules.items()
        }
        others = {name: type(thing).__qualname__ for name, thing in self._others.items()}
        text = json.dumps([modules, others, self.replicated], sort_keys=True)
        return xxhash.xxh3_64_intdigest(text.encode())


def _buffers(name: str) -> str:
    return f"{name} (buffers)"


def is_data_parallel(thing: object) -> bool:
    """Whether this is a module whose gradients DDP averages."""
    return isinstance(thing, DistributedDataParallel)


def _is_module(thing: object) -> bool:
    return isinstance(thing, torch.nn.Module)


def _follows(thing: object) -> bool:
    """Whether its state follows from the parameters, step by step, the same way on every rank."""
    return isinstance(thing, Optimizer | LRScheduler)


def _unwrapped(module: Any) -> torch.nn.Module:
    inner: torch.nn.Module = module.module if is_data_parallel(module) else module
    return inner


def _split(module: torch.nn.Module) -> tuple[Tree, Tree]:
    """A module's parameters, and everything else of it: buffers, also those it would not save."""
    names = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    state = module.state_dict()
    kept = {key: value for key, value in state.items() if key not in names}
    loose = {key: buffer for key, buffer in module.named_buffers() if key not in kept}
    parameters = {key: value for key, value in state.items() if key in names}
    return parameters, {"state": kept, "not_persistent": loose}


def _load_module(module: torch.nn.Module, parameters: Tree, private: Tree) -> None:
    module.load_state_dict({**parameters, **private["state"]})
    buffers = dict(module.named_buffers())
    with torch.no_grad():
        for name, value in private["not_persistent"].items():
            buffers[name].copy_(value)


def _load_optimizer(optimizer: Optimizer, state: Tree) -> None:
    optimizer.load_state_dict(state)
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        _restore_types(optimizer.state[parameter], state["state"].get(number, {}))


def _restore_types(loaded: Tree, saved: Tree) -> None:
    """load_state_dict casts to the parameter's type; a wider state would lose its last bits."""
    for name, value in saved.items():
        if isinstance(value, torch.Tensor) and loaded[name].dtype != value.dtype:
            loaded[name] = value.to(loaded[name].device)


def _require_stateful(name: str, thing: object) -> None:
    if not isinstance(thing, Stateful):
        raise Error(
            "not-tracked",
            f"{name} ({type(thing).__qualname__}) cannot be snapshotted",
            why="it lacks state_dict() or load_state_dict()",
            help="use holdfast.train.loader(...) for data; for other objects add the two methods",
        )
