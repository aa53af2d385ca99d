"""The forkserver as its agent sees it: when it is gone, and how it ended."""

import asyncio
import os
import signal

from holdfast.agent import fork_protocol, processes
from holdfast.agent.forkserver_handle import ForkserverHandle
from tests.agent.test_attempts import looped
from tests.patience import PATIENCE_S


async def loaded(gone: asyncio.Event) -> ForkserverHandle:
    """One that can fork."""
    ready = asyncio.Event()

    def heard(reply: fork_protocol.AnyReply) -> None:
        if isinstance(reply, fork_protocol.Ready):
            ready.set()

    handle = ForkserverHandle(os.environ, heard, gone.set)
    program = fork_protocol.Program(command=("true",))
    handle.prepare(program, fork_protocol.Preload())
    async with asyncio.timeout(PATIENCE_S):
        await ready.wait()
    handle.has_loaded()
    return handle


@looped
async def test_one_that_is_killed_is_gone_as_soon_as_the_kernel_takes_it_apart() -> None:
    """Its end of the socket is closed only after its memory was freed: that is not waited for."""
    gone = asyncio.Event()
    handle = await loaded(gone)
    asyncio.get_running_loop().remove_reader(handle._sock)
    processes.signal_one(handle.pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        await gone.wait()
    assert handle.ending == "signal 9"
    handle._process.wait()


@looped
async def test_one_that_ends_as_it_should_is_gone_for_nobody() -> None:
    gone = asyncio.Event()
    handle = await loaded(gone)
    handle.close()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.to_thread(handle._process.wait)
    await asyncio.to_thread(handle._end_lock.wait)
    await asyncio.sleep(0)
    assert handle._process.returncode == 0 and not gone.is_set()


@looped
async def test_one_that_is_waited_for_first_is_gone_by_then() -> None:
    """Its orphans would be waited for next, by whoever has not adopted them yet."""
    gone = asyncio.Event()
    handle = await loaded(gone)
    processes.signal_one(handle.pid, signal.SIGKILL)
    os.waitid(os.P_PID, handle.pid, os.WEXITED | os.WNOWAIT)
    for death in processes.reap(lambda _: False):
        if death.pid == handle.pid:
            handle.reaped(death)
    assert gone.is_set() and handle.ending == "signal 9"
