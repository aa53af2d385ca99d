"""Whether the cluster's API server answers, as seen from this machine.

A controller that cannot renew its lease asks some of its agents: if none of them can reach the API
server either, nobody can take the lease now, and the job need not stand still for it. Any answer
but an error of the server counts; what it says is of no interest, so nothing is authenticated.
"""

import asyncio
import ssl
from collections.abc import Mapping

WITHIN_S = 2.0
REQUEST = "GET /readyz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n"


async def api_answers(environ: Mapping[str, str]) -> bool:
    """Ask the API server that Kubernetes names to every pod; False also where none is named."""
    host = environ.get("KUBERNETES_SERVICE_HOST")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        return False
    encrypted = "KUBERNETES_SERVICE_PORT_HTTPS" in environ
    try:
        async with asyncio.timeout(WITHIN_S):
            return await _status(host, int(port), _unverified() if encrypted else None) < 500
    except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
        return False


async def _status(host: str, port: int, tls: ssl.SSLContext | None) -> int:
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        writer.write(REQUEST.format(host).encode())
        line = await reader.readline()
    finally:
        writer.close()
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/"):
        raise ValueError(f"not an HTTP response: {line[:40]!r}")
    return int(rest.split(b" ", 1)[0])


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
