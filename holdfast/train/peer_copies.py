"""Who keeps copies of this rank's private part, where the agents' side makes them.

Small private parts go to the buddy by `exchange`. Several copies, or large ones, are made by the
storage processes of the nodes: from the first meeting at which that shows, on all ranks together.
"""

import logging
import os
from collections.abc import Iterable

import msgspec

from holdfast.checkpoint.copy_placement import copy_holders
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.storage_page import Peer, StoragePage, WorkerInfo
from holdfast.train.exchange import COPY_LIMIT_BYTES, Agreed, Exchange
from holdfast.train.layout import groups_of
from holdfast.train.placement import Placement, replica_nodes
from holdfast.train.tracked import Tracked

logger = logging.getLogger(__name__)


class PeerCopies:
    """What the storage page says of this rank: where it stands, what it went on from, its peers."""

    def __init__(
        self,
        storage_page: StoragePage | None,
        exchange: Exchange | None,
        placement: Placement,
        tracked: Tracked,
        copies: int,
    ) -> None:
        """`copies` is how many nodes are to keep each private part besides its own."""
        self._storage_page = storage_page
        self._exchange = exchange
        self._placement = placement
        self._tracked = tracked
        self._copies = copies
        self._settled = False  # the agents' side makes them, or not every node can
        self.parent: Key | None = None
        """What this attempt went on from."""

    def introduce(self, peers: Iterable[Peer] = ()) -> None:
        """Say who this rank is."""
        if self._storage_page is None:
            return
        place = self._placement
        info = WorkerInfo(
            attempt=place.attempt,
            rank=place.rank,
            world_size=place.world_size,
            local_world_size=place.local_world_size,
            parent=self.parent,
            peers=tuple(peers),
        )
        self._storage_page.introduce(info)

    def hand_over(self, agreed: Agreed) -> bool:
        """Whether the agents' side makes the copies from now on, because of this meeting. All
        ranks answer alike."""
        exchange = self._exchange
        if exchange is None or self._settled or exchange.nodes == 1:
            return False
        large = self._copies == 1 and agreed.private_bytes > COPY_LIMIT_BYTES
        if not (self._copies > 1 or large):
            return False
        self._settled = True
        address = os.environ.get("HOLDFAST_STORAGE_ADDRESS", "")
        addresses = [one.decode() for one in exchange.gather_bytes(address.encode())]
        if not all(addresses):
            logger.warning(
                "no copies on other nodes: %d of them do not accept copies", addresses.count("")
            )
            return False
        local = self._placement.local_world_size
        everyone = copy_holders(len(addresses), local, self._groups(exchange), self._copies)
        mine = everyone[self._placement.rank]
        self.introduce(Peer(rank, addresses[rank], rank % local) for rank in mine)
        return True

    def _groups(self, exchange: Exchange) -> list[tuple[int, ...]]:
        """The groups that copies should not stay in: replicas of several nodes, which may be lost
        as a whole; else the parallel groups that any rank knows of."""
        place = self._placement
        replica = place.local_world_size * replica_nodes()
        if place.local_world_size < replica < place.world_size:
            firsts = range(0, place.world_size, replica)
            return [tuple(range(first, first + replica)) for first in firsts]
        mine = [*groups_of(self._tracked.names.now().values())]
        told = exchange.gather_bytes(msgspec.msgpack.encode(mine))
        decoded = (msgspec.msgpack.decode(one, type=list[tuple[int, ...]]) for one in told)
        return sorted({group for one in decoded for group in one})
