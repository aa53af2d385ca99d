"""Whether somewhere can be reached from here: one TCP connection, opened and closed.

It is bounded in time, and says nothing to whom it reaches. A connection that is refused has reached
the machine, where nobody listens.
"""

import asyncio

REFUSED = "connection refused"


async def trouble_reaching(host: str, port: int, within_s: float) -> str:
    """Why not, in few words; `REFUSED` if only nobody listens there; empty if somebody does."""
    try:
        async with asyncio.timeout(within_s):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"timed out after {within_s:g} s"
    except ConnectionRefusedError:
        return REFUSED
    except OSError as error:
        return error.strerror or str(error)
    except (ValueError, OverflowError) as error:  # no name, or no port
        return str(error)
    writer.close()
    return ""
