"""Where this worker stands in its attempt: rank, world, attempt, shared-memory descriptors.

A worker finds its rank in its environment, as torchrun gives it; a warm one has waited for it
before (`holdfast.rank`). Without any of it (plain `python train.py`) the worker is the only one.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

REPLICA_NODES = "HOLDFAST_REPLICA_NODES"


class Placement(NamedTuple):
    """The rank of this worker and what surrounds it."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    attempt: int  # 0 outside Holdfast
    redo_until: int  # steps up to this one were done by an earlier attempt
    distributed: bool  # a launcher gave us a rank


def find_placement() -> Placement:
    """What the environment says."""
    world_size = _number("WORLD_SIZE", 1)
    return Placement(
        rank=_number("RANK", 0),
        local_rank=_number("LOCAL_RANK", 0),
        world_size=world_size,
        local_world_size=_number("LOCAL_WORLD_SIZE", world_size),
        attempt=_number("HOLDFAST_ATTEMPT", 0),
        redo_until=_number("HOLDFAST_REDO_UNTIL", 0),
        distributed="RANK" in os.environ,
    )


def replica_nodes(environ: Mapping[str, str] = os.environ) -> int:
    """Nodes of a replica."""
    return int(environ.get(REPLICA_NODES, "1"))


def descriptor(name: str) -> int | None:
    """The file descriptor an agent passed under this variable, if one did."""
    value = os.environ.get(name)
    return None if value is None else int(value)


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))
