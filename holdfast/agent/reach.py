"""Whether another node can be reached from here, asked only when an incident is looked at."""

from holdfast.evidence import PeerAddress, PeerReach
from holdfast.reach import REFUSED, trouble_reaching

WITHIN_S = 2.0


async def reach(peer: PeerAddress) -> PeerReach:
    """Try it."""
    trouble = await trouble_reaching(peer.host, peer.port, WITHIN_S)
    return PeerReach(node=peer.node, trouble="" if trouble == REFUSED else trouble)
