"""Whether this node's machine may train: the quick checks, before the controller may count on it.

They run in processes of their own (`python -m holdfast.checks`), beside the forkserver that loads,
and carry the node's id like everything that belongs to it, so that nothing of them outlives it.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import IO

import msgspec

from holdfast.agent.storage.protocol import DurablePlace
from holdfast.checks.compare import CheckReport
from holdfast.checks.plan import nearest_folder

LONGEST_S = 300.0  # all of them together; each has its own deadline
LIMIT_BYTES = 1 << 20  # of what they say


async def unfit(node: str, places: Iterable[DurablePlace]) -> str:
    """Why this machine may not train; empty if it may."""
    folders = [nearest_folder(place.where) for place in places if "://" not in place.where]
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.checks", *dict.fromkeys(folders)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "HOLDFAST_NODE": node},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(LONGEST_S):
            said = await _all_of(process.stdout)
    except TimeoutError:
        return f"its checks timed out after {LONGEST_S:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return _failures(said)


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


def _failures(said: bytes) -> str:
    try:
        report = msgspec.json.decode(said, type=CheckReport)
    except msgspec.MsgspecError:
        return "its checks ended without a result (see agent.log of the node)"
    bad = [one for one in report.checks if one.state == "failed"]
    return "; ".join(f"{one.name}: {one.found}" for one in bad)
