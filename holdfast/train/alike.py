"""Ranks that declare `join(in_process=...)` differently are told before they wait for each other.

Process groups of a worker that can be kept cannot connect to those of one that cannot. So each rank
writes into the rendezvous store what it declares, then looks there for the other: of two that
differ, whoever comes later sees it and raises, which ends the attempt. That takes two requests over
a connection which PyTorch makes anyway, and nobody waits for anybody.
"""

from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from holdfast.errors import Error

KEY = "holdfast/in_process/"


def store_of_all(rank: int, backend: str, timeout: timedelta | None, *, declared: bool) -> Any:
    """The store on which `init_process_group` meets the others, as it makes it itself.

    Raises `Error` (declared-differently) if another rank has `declared` something else.
    """
    c10d: Any = distributed_c10d
    wait = timeout if timeout is not None else c10d._get_default_timeout(c10d.Backend(backend))
    store, _, _ = next(rendezvous("env://", timeout=wait))
    store.set_timeout(wait)
    require_alike(store, rank, declared=declared)
    return PrefixStore("default_pg", store)


def require_alike(store: Any, rank: int, *, declared: bool) -> None:
    """Raises `Error` (declared-differently) if another rank has `declared` something else."""
    store.compare_set(f"{KEY}{declared}", "", str(rank))
    other = f"{KEY}{not declared}"
    if not store.check([other]):
        return
    them = int(store.get(other))
    does, does_not = (rank, them) if declared else (them, rank)
    raise Error(
        "declared-differently",
        f"rank {does} calls join(in_process=True), rank {does_not} calls join() without it",
        why="the process groups of such ranks cannot connect to each other",
        help="call join(in_process=True) on all ranks, or on none (recovery.mode: processes or "
        "in_process in the job file makes it the same for all)",
    )
