"""Which parameters are parts of one tensor, and which rank writes which part to storage.

All ranks exchange, once, a table of the parameters they hold: name, position in the whole tensor,
bytes. A part that several ranks hold alike is written by one of them; the parts are spread evenly
by bytes, the same way on all ranks because all see the same table. The state that an optimizer
keeps for a parameter follows that parameter, so nothing has to be exchanged when it appears.

A name stands for one tensor over all ranks where that is known: the parameter is sharded (DTensor),
or replicated by DDP, or plain beside sharded ones, or on one rank only (a pipeline stage). A plain
parameter that several ranks hold with nothing to keep it equal may be anything, replicated by hand
or a hand-made shard. It is kept for each rank by itself and cannot be given to other layouts.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
import xxhash

from holdfast.checkpoint.choose import copy_distance
from holdfast.checkpoint.index import EVERYWHERE, ON_NODE
from holdfast.checkpoint.tensors import LeafPlace, is_distributed, local_part
from holdfast.errors import Error
from holdfast.train.placement import replica_nodes

BOTH = EVERYWHERE | ON_NODE


class HeldParameter(msgspec.Struct, frozen=True, array_like=True):
    """One parameter as one rank holds it. `synced_by` says what makes equal names one tensor."""

    name: str
    whole: tuple[int, ...]
    at: tuple[int, ...]
    bytes: int
    synced_by: str = ""  # a mesh, a group of DDP; empty: nothing


class ParameterRole(NamedTuple):
    """What this rank does with a parameter and its optimizer state."""

    own: bool  # means something on this rank only
    save: int = BOTH  # whether we write our part
    save_whole: int = BOTH  # and what comes with it that is not sharded: Adam's counter of steps


class Ranks(NamedTuple):
    """Who is asking."""

    rank: int
    world_size: int
    local_world_size: int

    def node(self, rank: int) -> int:
        """The node of a rank."""
        return rank // self.local_world_size

    @property
    def copy_distance(self) -> int:
        """How many ranks on the copy of a rank's private part is."""
        return copy_distance(self.local_world_size, self.world_size, replica_nodes())


def entries(
    name: str, parameters: Iterable[tuple[str, torch.Tensor]], synced_by: str
) -> list[HeldParameter]:
    """The parameters of a module that was tracked as `name`.

    `synced_by` names the group of DDP around it. Without one, all ranks that some parameter of the
    module is sharded over keep the whole module together: what is sharded over fewer of them is
    replicated over the others.
    """
    listed = list(parameters)
    meshes = [p.device_mesh.mesh for _, p in listed if is_distributed(p)]  # type: ignore[attr-defined]
    together = sorted({rank for mesh in meshes for rank in mesh.flatten().tolist()})
    held_by = synced_by or (f"mesh {_digest(together)}" if together else "")
    return [_entry(f"{name}.{key}", p, held_by) for key, p in listed]


def _entry(name: str, parameter: torch.Tensor, synced_by: str) -> HeldParameter:
    whole, at = position(parameter, name)
    part = local_part(parameter)
    return HeldParameter(name, whole, at, part.numel() * part.element_size(), synced_by)


def groups_of(parameters: Iterable[torch.Tensor]) -> set[tuple[int, ...]]:
    """The groups of ranks that parameters are sharded or replicated over, as far as these tell.

    A mesh of several dimensions has one along each of them, through every place of the others.
    """
    meshes = {p.device_mesh for p in parameters if is_distributed(p)}  # type: ignore[attr-defined]
    lines = (
        line
        for mesh in meshes
        for dim in range(mesh.mesh.ndim)
        for line in mesh.mesh.movedim(dim, -1).reshape(-1, mesh.mesh.shape[dim]).tolist()
    )
    return {tuple(line) for line in lines if len(line) > 1}


def assign(tables: Sequence[Sequence[HeldParameter]], ranks: Ranks) -> dict[str, ParameterRole]:
    """The roles of this rank, by parameter, from what every rank holds."""
    holders: dict[str, set[int]] = {}
    synced: dict[str, set[str]] = {}
    for rank, table in enumerate(tables):
        for entry in table:
            holders.setdefault(entry.name, set()).add(rank)
            synced.setdefault(entry.name, set()).add(entry.synced_by)
    own = {name for name in holders if _unclear(holders[name], synced[name])}
    shared = [[e for e in table if e.name not in own] for table in tables]
    everywhere = _spread(dict(enumerate(shared)))
    node = ranks.node(ranks.rank)
    on_node = _spread({r: t for r, t in enumerate(shared) if ranks.node(r) == node})
    roles = {}
    for entry in tables[ranks.rank]:
        name, part = entry.name, (entry.name, entry.at)
        # a part without bytes is at no place of its own, and as good as written
        save = flags(everywhere.get(part), on_node.get(part), ranks.rank) if entry.bytes else BOTH
        first_here = min(r for r in holders[name] if ranks.node(r) == node)
        save_whole = flags(min(holders[name]), first_here, ranks.rank)
        roles[name] = ParameterRole(True) if name in own else ParameterRole(False, save, save_whole)
    return roles


def flags(everywhere: int | None, on_node: int | None, rank: int) -> int:
    """`Leaf.save` of a rank, from who writes it for all nodes and who on its own."""
    return EVERYWHERE * (everywhere == rank) | ON_NODE * (on_node == rank)


def _unclear(holders: set[int], synced: set[str]) -> bool:
    return len(holders) > 1 and (len(synced) > 1 or "" in synced)


def _spread(
    tables: Mapping[int, Sequence[HeldParameter]],
) -> dict[tuple[str, tuple[int, ...]], int]:
    """Who writes each part: of its holders the one with the least to write so far."""
    holders: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    sizes: dict[tuple[str, tuple[int, ...]], int] = {}
    for rank, table in tables.items():
        for entry in (entry for entry in table if entry.bytes):
            holders.setdefault((entry.name, entry.at), []).append(rank)
            sizes[entry.name, entry.at] = entry.bytes
    load = dict.fromkeys(tables, 0)
    writer = {}
    for part in sorted(holders, key=lambda p: (-sizes[p], p)):
        writer[part] = min(holders[part], key=lambda rank: (load[rank], rank))
        load[writer[part]] += sizes[part]
    return writer


def position(tensor: Any, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape of the whole tensor, and where the part that lies here begins.

    Raises `Error` (not-tracked) for a part that is a summand and no piece.
    """
    whole = tuple(tensor.shape)
    if not is_distributed(tensor):
        return whole, (0,) * len(whole)
    if any(placement.is_partial() for placement in tensor.placements):
        raise Error(
            "not-tracked",
            f"{name} is a DTensor with a Partial placement",
            why="state that is saved must be replicated or sharded",
            help="redistribute it before it becomes part of the state",
        )
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, at = compute_local_shape_and_global_offset(whole, tensor.device_mesh, tensor.placements)
    return whole, tuple(at) if local_part(tensor).numel() else (0,) * len(whole)


def place_of(name: str, leaf: Any, parameter: Any, role: ParameterRole) -> LeafPlace:
    """The place of a parameter, or of a leaf of its optimizer state.

    Raises `Error` (not-tracked) for state whose place in the whole cannot be known.
    """
    if is_distributed(leaf) or not is_distributed(parameter):
        whole, at = position(leaf, name)
        follows = is_distributed(leaf) == is_distributed(parameter)
        return LeafPlace(whole, at, role.own, role.save if follows else role.save_whole)
    if leaf.size > 1 if not isinstance(leaf, torch.Tensor) else leaf.numel() > 1:
        raise Error(
            "not-tracked",
            f"{name} is a plain tensor, its parameter is sharded",
            why="its shard of the parameter is unknown",
            help="use an optimizer whose state has the placement of its parameters, such as AdamW",
        )
    return LeafPlace(tuple(leaf.shape), (0,) * leaf.ndim, role.own, role.save_whole)


def _digest(ranks: Sequence[int]) -> str:
    return xxhash.xxh3_64_hexdigest(str(ranks).encode())
