"""Where this worker stands in its attempt: rank, world, attempt, shared-memory descriptors.

A worker with a rank finds it in its environment, as torchrun gives it. A warm worker has none yet:
it waits on its control pipe for one `Assignment` and merges that into the environment, so that the
rest of the script cannot tell the difference. Without any of it (plain `python train.py`) the
worker is the only one.
"""

import os
import sys
from typing import NamedTuple

import msgspec

from holdfast.messages import Assignment


class Placement(NamedTuple):
    """The rank of this worker and what surrounds it."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    attempt: int  # 0 outside Holdfast
    redo_until: int  # steps up to this one were done by an earlier attempt
    distributed: bool  # a launcher gave us a rank


def await_rank() -> None:
    """Return once the environment holds this worker's rank; exit where none will come.

    End of file on the pipe means that the worker is not needed any more: exit with status 0.
    """
    control = os.environ.pop("HOLDFAST_CONTROL_FD", None)
    if control is None:
        return
    sys.stdout.flush()
    with os.fdopen(int(control), "rb") as pipe:
        line = pipe.readline()
    if not line.endswith(b"\n"):
        sys.exit(0)
    os.environ.update(msgspec.json.decode(line, type=Assignment).env)


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


def descriptor(name: str) -> int | None:
    """The file descriptor an agent passed under this variable, if one did."""
    value = os.environ.get(name)
    return None if value is None else int(value)


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))
