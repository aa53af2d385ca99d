"""Where the workers of this node stand, with frames of C, for a person who asks: in NCCL, in a
driver, in a library that Python cannot see into.

Reading PyTorch's symbols stops a worker for a second or two, and longer on a busy machine, so
nobody is looked at like this unasked but a rank that hangs (`stop.py`). First all are looked at as
usual, which works everywhere; then py-spy reads the workers with frames of C, a few at a time and
all of them within a bound. Of a worker where that is not possible the reason is told, beside its
Python frames.
"""

import asyncio
import time
from collections.abc import Iterable

import msgspec

from holdfast.agent.stack_dump import DumpError, LookedAt, native_threads, stacks_of
from holdfast.stacks import MAX_THREADS, NATIVE_S, StackGroup, joined

AT_ONCE = 2  # programs, each of which holds all symbols of a worker


async def native_stacks_of(
    workers: Iterable[LookedAt], within_s: float = NATIVE_S
) -> tuple[StackGroup, ...]:
    """Of these workers, with the processes below them, those in Python only. Never raises; takes
    some seconds more than `within_s` at most."""
    end, turns = time.monotonic() + within_s, asyncio.Semaphore(AT_ONCE)
    return joined(await asyncio.gather(*(_worker(one, turns, end) for one in workers)))


async def _worker(worker: LookedAt, turns: asyncio.Semaphore, end: float) -> StackGroup:
    [usual] = await stacks_of([worker])
    if not usual.threads:
        return usual
    try:
        async with turns:
            threads = await native_threads(worker.pid, end - time.monotonic())
    except DumpError as error:
        return msgspec.structs.replace(usual, why=f"no frames of C: {error}")
    below = (thread for thread in usual.threads if thread.pid != worker.pid)
    return msgspec.structs.replace(usual, threads=(*threads, *below)[:MAX_THREADS])
