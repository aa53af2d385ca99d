"""What the controller is told of this node's fresh rendezvous store.

`NodeReady` brings it once there is one and it is known which attempts durable tiers have seen; each
`WorkersStopped` brings the next. A store that has died is not counted on any more.
"""

import asyncio
import contextlib

from holdfast.agent.controller_connection import ControllerConnection
from holdfast.agent.rendezvous_stores import RendezvousStores
from holdfast.events import NodeReady, Store

STORE_TIMEOUT_S = 10.0


class StoreOffer:
    """`_told` is the last store that the controller was told of."""

    def __init__(
        self,
        node: str,
        stores: RendezvousStores,
        controller: ControllerConnection,
        *,
        instrumented: bool,
        has_tiers: bool,
    ) -> None:
        """`has_tiers`: durable tiers are asked first which attempts they know."""
        self._node = node
        self._stores = stores
        self._controller = controller
        self._instrumented = instrumented
        self._attempt_found: int | None = None if has_tiers else 0
        self._told: Store | None = None
        self._held = 0  # by so many
        self.warm = True  # the workers only need their ranks, or never run ahead
        self._opened = asyncio.Event()
        stores.on_fresh = self.opened

    def hold(self) -> None:
        """Tell nobody before as many `release`: it is not known yet whether this node may train."""
        self._held += 1

    def release(self) -> None:
        """It may, for all that one of them knows."""
        self._held -= 1
        if not self._held and (store := self._stores.fresh) is not None:
            self.opened(store)

    def tell_again(self) -> None:
        """The same store, if a controller was told of it: the workers are warm meanwhile."""
        if self.told and (store := self._stores.fresh) is not None:
            self._told = None
            self.opened(store)

    def opened(self, store: Store) -> None:
        """There is a fresh store."""
        self._opened.set()
        if self._told is None and self._attempt_found is not None and not self._held:
            self._told = store
            self._controller.fact(
                NodeReady(
                    node=self._node,
                    store=store,
                    attempt=self._attempt_found,
                    instrumented=self._instrumented,
                    warm=self.warm,
                )
            )

    @property
    def told(self) -> bool:
        """Whether the controller was told of the store that is fresh now."""
        fresh = self._stores.fresh
        return fresh is not None and fresh == self._told

    def attempts_found(self, attempt: int) -> None:
        """Durable tiers know attempts up to this one; 0 if they have not answered yet."""
        if self._attempt_found is None or attempt > self._attempt_found:
            self._attempt_found, self._told = attempt, None
            if (store := self._stores.fresh) is not None:
                self.opened(store)

    def lost(self) -> None:
        """The fresh store has died: the controller must not count on it."""
        self._told = None
        self._opened.set()  # whoever waits for it need not wait any longer
        self._stores.open()

    def drop(self) -> None:
        """An attempt that never started here may have started elsewhere and used the store."""
        if (store := self._stores.fresh) is not None:
            self._stores.use(store)
            self._stores.retire()

    async def next(self) -> Store | None:
        """The store for the next attempt, which the controller is told of by whoever asked; None
        if there is none in time, or no forkserver yet: `NodeReady` will bring it later, and nobody
        waits for it who does not need it."""
        self._opened.clear()
        self._stores.open()
        if self._stores.fresh is None and self._stores.can_open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    await self._opened.wait()
        self._told = None if self._held else self._stores.fresh
        return self._told
