"""Asks the workers of this node which collectives they have entered, and where they stand if that
cannot be seen from outside (see `flight_recorder`).

A worker that holds the GIL, is stopped, or runs no Python does not answer: it is waited for a
second, and not asked again before it has. What comes late is dropped.
"""

import asyncio
import socket
from collections.abc import Iterable

import msgspec

from holdfast.collectives import CollectiveLog
from holdfast.events import in_rows
from holdfast.flight_recorder import ANSWER, QUESTION, WorkerAnswer
from holdfast.stacks import ThreadStack

ANSWER_S = 1.0
AGAIN_S = 0.2  # for who has not answered the time before
CHUNK_BYTES = 1 << 16
ANSWER_BYTES_MAX = 1 << 22

_answers = msgspec.msgpack.Decoder(WorkerAnswer)


class Recorder:
    """Our end of the socket on which one worker answers."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._asked = self._answered = 0
        self._read = bytearray()
        self._turn = asyncio.Lock()

    def close(self) -> None:
        """The worker has died."""
        self._sock.close()

    async def ask(self, recent: int, *, kinds: bool, within_s: float = ANSWER_S) -> CollectiveLog:
        """So many of the newest of each group. Never raises; takes `within_s` at most, and another
        second where somebody else asks at the same time."""
        async with self._turn:
            try:
                return (await asyncio.wait_for(self._ask(recent, kinds=kinds), within_s)).log
            except TimeoutError:
                return CollectiveLog(why="it did not answer: it holds the GIL, or is stopped")
            except (OSError, msgspec.MsgspecError) as error:
                return CollectiveLog(why=f"it cannot be asked: {error}")

    async def stacks(self) -> tuple[ThreadStack, ...]:
        """Where its threads stand, by itself; empty where it does not answer. Never raises."""
        async with self._turn:
            within_s = ANSWER_S if self._answered == self._asked else AGAIN_S
            try:
                return (await asyncio.wait_for(self._ask(stacks=True), within_s)).threads
            except (TimeoutError, OSError, msgspec.MsgspecError):
                return ()

    async def _ask(
        self, recent: int = 0, *, kinds: bool = False, stacks: bool = False
    ) -> WorkerAnswer:
        loop = asyncio.get_running_loop()
        while self._answered < self._asked:  # of a time before
            await self._next(loop)
        self._asked += 1
        await loop.sock_sendall(self._sock, QUESTION.pack(self._asked, recent, kinds, stacks))
        return await self._next(loop)

    async def _next(self, loop: asyncio.AbstractEventLoop) -> WorkerAnswer:
        while (answer := self._taken()) is None:
            data = await loop.sock_recv(self._sock, CHUNK_BYTES)
            if not data:
                raise ConnectionResetError("the worker has ended")
            self._read += data
        self._answered = answer.number
        return answer

    def _taken(self) -> WorkerAnswer | None:
        if len(self._read) < ANSWER.size:
            return None
        (length,) = ANSWER.unpack_from(self._read)
        if length > ANSWER_BYTES_MAX:
            raise ConnectionAbortedError(f"an answer of {length} bytes")
        end = ANSWER.size + length
        if len(self._read) < end:
            return None
        data = bytes(self._read[ANSWER.size : end])
        del self._read[:end]
        return _answers.decode(data)


async def logs_of(
    workers: Iterable[tuple[int, Recorder | None]],
    recent: int,
    *,
    kinds: bool,
    within_s: float = ANSWER_S,
) -> dict[int, CollectiveLog]:
    """Of these workers, each a rank and what it answers on, those that have answered: what they did
    in each group. Never raises."""

    async def one(rank: int, recorder: Recorder) -> tuple[int, CollectiveLog]:
        log = await recorder.ask(recent, kinds=kinds, within_s=within_s)
        own = in_rows([rank])
        groups = tuple(msgspec.structs.replace(group, ranks=own) for group in log.groups)
        return rank, msgspec.structs.replace(log, groups=groups)

    asked = (one(rank, recorder) for rank, recorder in workers if recorder is not None)
    return {rank: log for rank, log in await asyncio.gather(*asked) if log.groups}


def socket_pair() -> tuple[Recorder, socket.socket]:
    """Our end, and the worker's."""
    ours, theirs = socket.socketpair()
    return Recorder(ours), theirs
