"""Answers the kubelet's probes: alive while the event loop turns, ready while `ready` says so.

A copy that waits for the lease is ready too, as long as it could take it: otherwise a Deployment
would never finish its update, or would finish it with copies that cannot work.
"""

import asyncio
from collections.abc import Callable

LINE_MAX_S = 5.0


async def serve_probes(port: int, ready: Callable[[], bool], host: str = "") -> asyncio.Server:
    """Listen for GET /live and /ready; port 0: any. Raises `OSError`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(LINE_MAX_S):
                line = await reader.readline()
            good = b"/live" in line or (b"/ready" in line and ready())
            words = b"200 OK" if good else b"503 Service Unavailable"
            writer.write(b"HTTP/1.1 " + words + b"\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
        except (OSError, TimeoutError, ValueError):
            return
        finally:
            writer.close()

    return await asyncio.start_server(answer, host or None, port)
