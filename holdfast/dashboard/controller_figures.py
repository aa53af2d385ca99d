"""Figures of a job in a cluster, from the port for metrics of its controller.

In the cluster they come from the Service itself, and through no proxy of the environment; from
outside through the API server. Whatever pod has got behind that Service is not trusted: an answer
is bounded in size and time, redirects are not followed, and what is no figures is not shown.
"""

import asyncio
import os

from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import ApiError
from holdfast.drivers.kubernetes.manifests.support.services import METRICS_PORT
from holdfast.history.answers import require_answer

FIGURES_S = 20.0
FIGURES_BYTES = 64 << 20  # of 16,384 ranks there are 8 MiB
CHUNK_HEAD_BYTES = 4096
HEAD_END, CHUNKED = b"\r\n\r\n", b"\r\ntransfer-encoding: chunked"


async def figures(cluster: Api, job: str, path: str) -> bytes:
    """The answer to `path`. Raises `ConnectionError` with the reason where there is none."""
    service = f"{job}-controller"
    try:
        async with asyncio.timeout(FIGURES_S):
            if "KUBERNETES_SERVICE_HOST" in os.environ:
                content = await _directly(f"{service}.{cluster.namespace}", METRICS_PORT, path)
            else:
                content = await _through_the_server(cluster, service, path)
    except TimeoutError as error:
        raise ConnectionError(f"no answer within {FIGURES_S:g} s") from error
    except (ApiError, OSError, EOFError) as error:
        why = error.message if isinstance(error, ApiError) else str(error)
        raise ConnectionError(why or type(error).__name__) from error
    try:
        await asyncio.to_thread(require_answer, path, content)
    except ValueError as error:
        raise ConnectionError(f"its answer cannot be read: {error}") from error
    return content


async def _through_the_server(cluster: Api, service: str, path: str) -> bytes:
    there = f"/api/v1/namespaces/{cluster.namespace}/services/{service}:metrics/proxy/{path}"
    return await cluster.read(there, FIGURES_BYTES)


async def _directly(host: str, port: int, path: str) -> bytes:
    """The answer ends where the connection does; a proxy between may have cut it into chunks."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        about = f"Host: {host}:{port}\r\nConnection: close\r\n\r\n"
        writer.write(f"GET /{path} HTTP/1.1\r\n{about}".encode())
        try:
            head = await reader.readuntil(HEAD_END)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ConnectionError(f"its answer cannot be read: {error}") from error
        status = head.partition(b"\r\n")[0].split(None, 2)
        if len(status) < 2 or not status[0].startswith(b"HTTP/"):
            raise ConnectionError(f"its answer cannot be read: {head[:80]!r}")
        if status[1] != b"200":
            raise ConnectionError(f"HTTP status {b' '.join(status[1:]).decode(errors='replace')}")
        content = bytearray()
        while piece := await reader.read(1 << 18):
            content += piece
            if len(content) > FIGURES_BYTES:
                raise ConnectionError(f"it answers with more than {FIGURES_BYTES >> 20} MiB")
        whole = bytes(content)
        return await asyncio.to_thread(_joined, whole) if CHUNKED in head.lower() else whole
    finally:
        writer.transport.abort()


def _joined(content: bytes) -> bytes:
    """Without the lengths of chunks. What is not whole is no figures either."""
    found, at = bytearray(), 0
    while (end := content.find(b"\r\n", at, at + CHUNK_HEAD_BYTES)) >= 0:
        try:
            size = int(content[at:end].partition(b";")[0], 16)
        except ValueError as error:
            raise ConnectionError(f"its answer cannot be read: {error}") from error
        if size <= 0:
            break
        at = end + 2
        found += content[at : at + size]
        at += size + 2
    return bytes(found)
