"""Rendezvous stores of one node: a fresh one for each attempt, the next one opened ahead.

A store is a child of the forkserver that hosts a TCPStore. Nothing of an old attempt can be read in
a new one because a store that an attempt has used is killed and never offered again. Jobs without
torch only get a port that is free now.
"""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable

from holdfast.agent import fork_protocol
from holdfast.agent.child import listen
from holdfast.agent.forkserver_handle import ForkserverHandle
from holdfast.agent.health.ports import TakenPorts
from holdfast.agent.notes import note
from holdfast.events import STORE_DIED_BEFORE, Store

BESIDE_S = 60.0  # for a store to be there, from a forkserver that is ready


class RendezvousStores:
    """At most one fresh store, one in use and one for a repeated step."""

    def __init__(
        self,
        address: str,
        hosted: bool,
        new_id: Callable[[], int],
        taken: TakenPorts,
        ports: tuple[int, ...] = (),
    ) -> None:
        self._address = address
        self._taken = taken
        self._ports = deque(ports)  # those to be tried first come first
        self._hosted = hosted
        self._new_id = new_id
        self.on_fresh: Callable[[Store], None] = lambda _: None
        """Called with each store that becomes available."""
        self._forkserver: ForkserverHandle | None = None  # ready to fork
        self._fresh_id = 0
        self._used_id = 0
        self._beside_id = 0
        self._report = -1
        self.fresh: Store | None = None
        self._lost: Store | None = None  # was fresh, and the controller may count on it yet
        self.failure = ""  # how the store died that the attempt uses, if it did

    def fork_from(self, forkserver: ForkserverHandle) -> None:
        """A forkserver is ready: from now on stores can be opened."""
        self._forkserver = forkserver

    @property
    def can_open(self) -> bool:
        """Whether there is a forkserver that is ready."""
        return self._forkserver is not None

    def open(self) -> None:
        """Have a fresh store soon, unless there is one or one is on its way."""
        if self._forkserver is None or self.fresh is not None or self._report >= 0:
            return
        if not self._hosted:
            self._offer(reserve(self._address, self._next_ports()))
            return
        self._fresh_id, self._report = self._fork(self._forkserver, self._next_ports())
        asyncio.get_running_loop().add_reader(self._report, self._reported)

    def _fork(self, forkserver: ForkserverHandle, ports: tuple[int, ...]) -> tuple[int, int]:
        """The id of a new store, and where it tells its port."""
        report, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        order = fork_protocol.Fork(
            id=self._new_id(),
            kind=fork_protocol.ChildKind.STORE,
            fds=("report",),
            address=self._address,
            ports=ports,
        )
        forkserver.fork(order, [write_end])
        os.close(write_end)
        return order.id, report

    def _next_ports(self) -> tuple[int, ...]:
        """Where to listen, another port each time: whoever still dials the last store finds none.

        When all are taken, any port is better than no store, and `_offer` tells.
        """
        self._ports.rotate(-1)
        return (*self._ports, 0)

    def _reported(self) -> None:
        text = os.read(self._report, 64)
        self._stop_listening()
        if text:
            self._offer(Store(host=self._address, port=int(text), hosted=True))
            return
        note("agent: no rendezvous store could be started here (see above); rank 0 must host it")
        self._fresh_id = 0
        self._offer(reserve(self._address, self._next_ports()))

    def _offer(self, store: Store) -> None:
        self._taken.used(self._address, sorted(self._ports), store.port, "stores")
        self.fresh = store
        self.on_fresh(store)

    async def open_beside(self) -> Store:
        """Where ranks may meet beside all that there is, until `close_beside`."""
        self.close_beside()
        ports = (*self._ports, 0)
        if self._hosted and self._forkserver is not None:
            self._beside_id, report = self._fork(self._forkserver, ports)
            text = await _told(report)
            if text:
                return Store(host=self._address, port=int(text), hosted=True)
            note("agent: no store could be started for a repeated step; rank 0 must host it")
        return reserve(self._address, ports)

    def close_beside(self) -> None:
        """Nobody meets there any more."""
        if self._beside_id and self._forkserver is not None:
            self._forkserver.signal(self._beside_id, signal.SIGKILL)
        self._beside_id = 0

    def use(self, store: Store) -> None:
        """An attempt starts on this store, which may be that of another node. `failure` says if it
        was ours and is no more."""
        self.failure = STORE_DIED_BEFORE if store == self._lost else ""
        self._lost = None
        if store == self.fresh:
            self.fresh = None
            self._used_id, self._fresh_id = self._fresh_id, 0

    def retire(self) -> None:
        """The attempt is over: its store is killed."""
        if self._used_id and self._forkserver is not None:
            self._forkserver.signal(self._used_id, signal.SIGKILL)
        self._used_id = 0

    def died(self, id_: int) -> bool:
        """A child has ended; whether it was the fresh store."""
        if id_ != self._fresh_id or self._report >= 0:  # on its way: `_reported` hears of it
            return False
        self._fresh_id = 0
        self._lost, self.fresh = self.fresh, None
        return True

    def failed(self, id_: int, how: str) -> bool:
        """A child has ended like this; whether it was the store of an attempt that is not over."""
        if id_ != self._used_id:
            return False
        self._used_id, self.failure = 0, how
        return True

    def is_missed(self) -> None:
        """The store that has failed was dead before anybody could meet there."""
        self.failure = STORE_DIED_BEFORE

    def forget(self) -> None:
        """The forkserver is gone, and every store with it."""
        self._stop_listening()
        self._forkserver = None
        self._fresh_id = self._used_id = self._beside_id = 0
        self._lost, self.fresh = self.fresh or self._lost, None

    def _stop_listening(self) -> None:
        if self._report >= 0:
            asyncio.get_running_loop().remove_reader(self._report)
            os.close(self._report)
            self._report = -1


async def _told(report: int) -> bytes:
    """What a new store says; nothing if it could not be started, or not in time."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(report, readable.set)
    try:
        async with asyncio.timeout(BESIDE_S):
            await readable.wait()
        return os.read(report, 64)
    except TimeoutError:
        return b""
    finally:
        loop.remove_reader(report)
        os.close(report)


def reserve(address: str, ports: tuple[int, ...] = (0,)) -> Store:
    """The first of these ports that is free now; nobody listens on it any more."""
    with listen(address, ports) as sock:
        return Store(host=address, port=sock.getsockname()[1], hosted=False)
