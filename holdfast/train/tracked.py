"""The objects a run keeps: which part of their state is the same everywhere, which is a rank's own.

Under data-parallel training parameters, optimizers and schedulers are bitwise the same on all
ranks, so any rank's copy serves a rank that lost its own: the shared part. Buffers, the loader's
position, random numbers and everything else belong to one rank: the private part. Where parameters
are sharded everything is in the private part, and each leaf says of what it is a piece (`layout`).

Parameters go by their names in the model, without those of wrappers; so does the optimizer state.
"""

import json
from collections.abc import Callable, Collection
from typing import Any, Protocol, runtime_checkable

import msgspec
import torch
import xxhash
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from holdfast.checkpoint.contents import GRADIENTS, RANDOM, buffers_of
from holdfast.checkpoint.tensors import LeafPlace, cloned, is_distributed, local_part, place_alone
from holdfast.errors import Error
from holdfast.train import layout, module_state, optimizers, random_state
from holdfast.train.layout import HeldParameter, ParameterRole, Ranks
from holdfast.train.names import unwrapped
from holdfast.train.optimizer_memory import coming_bytes
from holdfast.train.parameter_names import ParameterNames

Tree = dict[str, Any]
Gather = Callable[[bytes], list[bytes]]
_ALL = "all"


@runtime_checkable
class Stateful(Protocol):
    """Anything with the two methods."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class Tracked:
    """What was given to `run.track()`, by name."""

    def __init__(
        self,
        objects: dict[str, Any],
        device: torch.device,
        parallel: Collection[Any],
        ranks: Ranks,
        gather: Gather | None,
    ) -> None:
        """`parallel` holds the modules that `run.parallelize()` took.

        `gather` brings every rank's bytes to all of them; None where there are no others, or no
        snapshots.
        """
        for name, thing in objects.items():
            _require_stateful(name, thing)
        self._device = device
        self._ranks, self._kept = ranks, False
        self.modules = {n: unwrapped(o) for n, o in objects.items() if _is_module(o)}
        self.optimizers = {n: o for n, o in objects.items() if isinstance(o, Optimizer)}
        self.others = {n: o for n, o in objects.items() if not _is_module(o)}
        self.names = ParameterNames(self.modules, self.optimizers)
        taken = {id(unwrapped(module)) for module in parallel}
        self._synced_by_module = {
            name: _synced_by(objects[name], id(module) in taken)
            for name, module in self.modules.items()
        }
        self.replicated = ranks.world_size == 1 or self._all_replicated()
        self._roles: dict[str, ParameterRole] = {}
        self.random_loaded: Callable[[], None] = lambda: None
        """Called when the random number generators were put back."""
        self._fingerprint = self.meet(gather)

    def same_on(self, ranks: Ranks) -> None:
        """These ranks hold the same now, and this process was kept. `meet` follows."""
        assert self.movable or ranks == self._ranks, "what is sharded stays where it is"
        self._ranks, self._kept = ranks, True

    @property
    def movable(self) -> bool:
        """Whether DDP keeps all of it the same on all ranks, however many these are."""
        return self._all_replicated()

    # ── the state, out and in ──

    def capture(self) -> tuple[Tree, Tree]:
        """The state now: what is the same on every rank, and what is this rank's alone.

        Tensors are those of the objects themselves, not copies.
        """
        split = {name: self._split(name) for name in self.modules}
        following = {n: self._state_of(o) for n, o in self.others.items() if _follows(o)}
        shared = {**{name: parameters for name, (parameters, _) in split.items()}, **following}
        private = {buffers_of(name): buffers for name, (_, buffers) in split.items()}
        private |= {n: o.state_dict() for n, o in self.others.items() if not _follows(o)}
        private[RANDOM] = random_state.capture(self._device)
        return (shared, private) if self.replicated else ({}, {**shared, **private})

    def load(self, shared: Tree, private: Tree) -> None:
        """Put everything but the random numbers back. Tensors are the parts that lie here."""
        if not self.replicated:
            shared = private
        for name in self.modules:
            module, canonical = self.modules[name], self.names.canonical[name]
            module_state.load(module, canonical, shared[name], private[buffers_of(name)])
        for name, optimizer in self.optimizers.items():
            optimizers.load(optimizer, shared[name], self.names.meant_by(name), kept=self._kept)
        for name, thing in self.others.items():
            if name not in self.optimizers:
                state = shared[name] if _follows(thing) else private[name]
                thing.load_state_dict(cloned(state))
        for path, kept in private.get(GRADIENTS, {}).items():
            _put_gradient(self.names.parameters[path], kept)

    def equal_on(self, path: str) -> tuple[int, ...]:
        """The ranks on which DDP keeps this parameter the same: all of them, or none."""
        synced_by = self._synced_by_module[path.partition(".")[0]]
        return tuple(range(self._ranks.world_size)) if synced_by == _ALL else ()

    def coming_bytes(self) -> int:
        """Bytes of state that optimizers will add in their first step."""
        return sum(coming_bytes(optimizer) for optimizer in self.optimizers.values())

    def load_random(self, private: Tree) -> None:
        """Put the random number generators back; last, because loading may draw numbers."""
        random_state.restore(cloned(private[RANDOM]), self._device)
        self.random_loaded()

    # ── what it consists of ──

    def fingerprint(self) -> int:
        """Changes when names, shapes, types or the layout do, on any rank: a snapshot with this
        fingerprint fits here as it is."""
        return self._fingerprint

    def optimizer_state(self, optimizer: str) -> Tree:
        """The state of an optimizer now, as in `capture`."""
        return optimizers.by_name(self.optimizers[optimizer], self.names.name_of)

    def buffers(self, module: str) -> Tree:
        """What a module has besides its parameters, as in `capture`."""
        return self._split(module)[1]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._ranks.world_size

    def place(self, path: str, leaf: Any) -> LeafPlace:
        """Of which tensor this leaf is a part, whether this rank writes it to storage, and whether
        only an optimizer changes it."""
        owner, _, rest = path.partition(".")
        if owner == GRADIENTS:
            return self._place_of_gradient(path, rest, leaf)
        full = path if path in self._roles else None
        if owner in self.optimizers:
            full = self.names.path_of_state(rest.removeprefix("state."))
        if full is not None:
            parameter = self.names.parameters[full]
            place = layout.place_of(path, leaf, parameter, self._roles[full])
            return place._replace(stable=self.names.is_trained(parameter))
        return self._place_of_rest(place_alone(path, leaf), owner)

    def _place_of_gradient(self, path: str, full: str, leaf: Any) -> LeafPlace:
        """A rank's own, unless it is sharded like its parameter: others may have another sum."""
        if is_distributed(leaf):
            return layout.place_of(path, leaf, self.names.parameters[full], self._roles[full])
        return place_alone(path, leaf)

    def _place_of_rest(self, alone: LeafPlace, owner: str) -> LeafPlace:
        """What is shared but belongs to no parameter is written by the first; else by its rank."""
        follows = owner in self.others and _follows(self.others[owner])
        if not (self.replicated and follows):
            return alone
        ranks = self._ranks
        first_here = ranks.node(ranks.rank) * ranks.local_world_size
        save = layout.flags(0, first_here, ranks.rank)
        return LeafPlace(alone.whole, alone.at, False, save)

    def _all_replicated(self) -> bool:
        plain = not any(is_distributed(p) for m in self.modules.values() for p in m.parameters())
        return plain and all(synced_by == _ALL for synced_by in self._synced_by_module.values())

    def meet(self, gather: Gather | None) -> int:
        """Work out roles and fingerprint, with the other ranks if they may differ: the same each
        time for the same ranks."""
        mine = [
            entry
            for name in self.modules
            for entry in layout.entries(
                name, self.names.of_module(name), self._synced_by_module[name]
            )
        ]
        alike = self.replicated or gather is None
        tables = [mine] * self._ranks.world_size
        prints = [self._local_fingerprint()]
        if not alike and gather is not None:
            packed = gather(msgspec.msgpack.encode((prints[0], mine)))
            said = [msgspec.msgpack.decode(p, type=tuple[int, list[HeldParameter]]) for p in packed]
            tables, prints = [table for _, table in said], [p for p, _ in said]
        self._roles = layout.assign(tables, self._ranks)
        return prints[0] if alike else xxhash.xxh3_64_intdigest(str(prints).encode()) >> 1

    def _local_fingerprint(self) -> int:
        modules = {
            name: [_shape_of(key, p) for key, p in self.names.of_module(name)]
            for name in self.modules
        }
        others = {name: type(thing).__qualname__ for name, thing in self.others.items()}
        text = json.dumps([modules, others, self.replicated], sort_keys=True)
        return xxhash.xxh3_64_intdigest(text.encode())

    def _split(self, name: str) -> tuple[Tree, Tree]:
        return module_state.split(self.modules[name], self.names.canonical[name])

    def _state_of(self, thing: Any) -> Any:
        if isinstance(thing, Optimizer):
            return optimizers.by_name(thing, self.names.name_of)
        return thing.state_dict()


def _put_gradient(parameter: torch.Tensor, kept: Any) -> None:
    if kept is None:
        parameter.grad = torch.zeros_like(parameter)
        return
    here = kept.to(local_part(parameter).device, copy=True)
    sharded = is_distributed(parameter)
    parameter.grad = optimizers.distributed_like(here, parameter) if sharded else here


def is_data_parallel(thing: object) -> bool:
    """Whether this is a module whose gradients DDP averages."""
    return isinstance(thing, DistributedDataParallel)


def _is_module(thing: object) -> bool:
    return isinstance(thing, torch.nn.Module)


def _follows(thing: object) -> bool:
    """Whether its state follows from the parameters, step by step, the same way on every rank."""
    return isinstance(thing, Optimizer | LRScheduler)


def _synced_by(module: Any, taken: bool) -> str:
    """What keeps the parameters equal between ranks: `all`, a group of DDP, or (empty) nothing."""
    if taken:
        return _ALL
    while hasattr(module, "_orig_mod"):
        module = module._orig_mod
    if not is_data_parallel(module):
        return ""
    ranks = torch.distributed.get_process_group_ranks(module.process_group)
    return _ALL if len(ranks) == torch.distributed.get_world_size() else f"ddp {sorted(ranks)}"


def _shape_of(name: str, parameter: Any) -> tuple[Any, ...]:
    sharding = ""
    if is_distributed(parameter):
        mesh = parameter.device_mesh
        sharding = f"{parameter.placements} {mesh.mesh.tolist()}"
    return name, tuple(parameter.shape), str(parameter.dtype), sharding


def _require_stateful(name: str, thing: object) -> None:
    if not isinstance(thing, Stateful):
        raise Error(
            "not-tracked",
            f"{name} ({type(thing).__qualname__}) cannot be snapshotted",
            why="it lacks state_dict() or load_state_dict()",
            help="for data use holdfast.train.loader(dataset, ...), or resumable(DataLoader(...)) "
            "of holdfast.integrations.resumable; for other objects add the two methods",
        )
    if isinstance(thing, torch.nn.Module):
        _require_known_sharding(name, thing)


def _require_known_sharding(name: str, module: torch.nn.Module) -> None:
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in module.modules()):
        raise Error(
            "not-tracked",
            f"{name} is sharded by FullyShardedDataParallel",
            why="its flat parameters do not record which shard of which tensor they are",
            help="shard it with torch.distributed.fsdp.fully_shard",
        )
