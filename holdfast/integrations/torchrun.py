"""Holdfast as a guest of torchrun: `torchrun --rdzv-backend=holdfast`.

    torchrun --rdzv-backend=holdfast --rdzv-endpoint=HOST:PORT --nnodes=2 ... train.py

Nodes find each other as with `c10d`, by PyTorch's own code. But each attempt gets a rendezvous
store of its own, made by node rank 0 for this attempt, and the store before it is closed: nothing
that a dead attempt left can be read, and nothing of it answers. By itself torchrun keeps one store
for all attempts; workers of the next attempt can meet what the last one has left there, and a job
does not always come back from a killed worker (see benchmarks/restart.py).

`torchrun` finds this by the entry point `torchrun.handlers` of the package; nothing else of
Holdfast is needed or used.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

NAME = "holdfast"
_SHARING = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_WHERE = "holdfast.store"
_WAIT = timedelta(seconds=300)


class FreshStores:
    """PyTorch's rendezvous, with a fresh store for the workers of each round."""

    def __init__(self, params: RendezvousParameters) -> None:
        backend, store = create_backend(params)
        self._plain = create_handler(store, backend, params)
        self._store: TCPStore | None = None  # of this round, where this is node rank 0

    @property
    def use_agent_store(self) -> bool:
        """Workers are clients of the store that the agent has made."""
        return True

    def get_backend(self) -> str:
        """The name by which torchrun knows it."""
        return NAME

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the other nodes; returns ranks, and where the store of this round is."""
        self._store = None  # that of the last round is closed: its workers are gone
        info = self._met()
        if info.rank == 0:
            assert info.bootstrap_store_info is not None, "rank 0 has just made it"
            host = info.bootstrap_store_info.master_addr
            self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
            info.store.set(_WHERE, f"{host} {self._store.port}")
        info.store.wait([_WHERE], _WAIT)
        host, port = info.store.get(_WHERE).decode().split()
        here = RendezvousStoreInfo(master_addr=host, master_port=int(port))
        return RendezvousInfo(info.store, info.rank, info.world_size, here)

    def _met(self) -> RendezvousInfo:
        """The round that PyTorch makes, without the store it would keep for all of them."""
        before = os.environ.get(_SHARING)
        os.environ[_SHARING] = "1"
        try:
            return self._plain.next_rendezvous()
        finally:
            if before is None:
                del os.environ[_SHARING]
            else:
                os.environ[_SHARING] = before

    def shutdown(self) -> bool:
        """No more rounds."""
        self._store = None
        return self._plain.shutdown()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def handler() -> Callable[[RendezvousParameters], FreshStores]:
    """What the entry point gives torchrun."""
    return FreshStores
