"""What a program of ours says that an agent runs beside its workers, bounded in size and time.

It carries the node's id like everything that belongs to it, so that nothing of it outlives it.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import IO

LIMIT_BYTES = 1 << 20  # of what it says


async def output_of(command: Sequence[str], node: str, within_s: float) -> bytes:
    """Its standard output, up to its end. Raises `TimeoutError`; whatever it started is killed."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "HOLDFAST_NODE": node},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(within_s):
            return await _all_of(process.stdout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


async def _all_of(pipe: IO[bytes]) -> bytes:
    """Everything up to its end. The agent reaps its children itself: a status is not to be had."""
    reader = asyncio.StreamReader(limit=LIMIT_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        return await reader.read()
    finally:
        transport.close()
