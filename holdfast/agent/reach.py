"""Whether another node can be reached from here: one TCP connection, opened and closed.

It is tried only when an incident is looked at, so it is bounded in time and says nothing to whom it
reaches. A connection that is refused has reached the machine: nobody listens there any more.
"""

import asyncio

from holdfast.evidence import PeerAddress, PeerReach

WITHIN_S = 2.0


async def reach(peer: PeerAddress) -> PeerReach:
    """Try it."""
    try:
        async with asyncio.timeout(WITHIN_S):
            _, writer = await asyncio.open_connection(peer.host, peer.port)
    except TimeoutError:
        return PeerReach(node=peer.node, trouble=f"timed out after {WITHIN_S:g} s")
    except ConnectionRefusedError:
        return PeerReach(node=peer.node)
    except OSError as error:
        return PeerReach(node=peer.node, trouble=error.strerror or str(error))
    writer.close()
    return PeerReach(node=peer.node)
