"""The answers to the probes of the kubelet."""

import asyncio
import urllib.error
import urllib.request

from holdfast.operator.probe import serve_probes
from tests.patience import PATIENCE_S


def status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code


def test_it_is_alive_at_once_and_ready_when_it_is() -> None:
    async def live() -> None:
        ready = False
        server = await serve_probes(0, lambda: ready, "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        assert await asyncio.to_thread(status, port, "/live") == 200
        assert await asyncio.to_thread(status, port, "/ready") == 503
        ready = True
        assert await asyncio.to_thread(status, port, "/ready") == 200
        assert await asyncio.to_thread(status, port, "/else") == 503
        server.close()

    asyncio.run(live())
