"""Before a new controller begins: fetch the newest copy of the journal that any agent has.

Agents come back to a controller within a second or two of its Service pointing to it. Each is asked
for its copy if it is newer than those before, and sent away; it comes again once we listen for
good. Who is waited for, and which copy is the newest, `holdfast.shell.succession` decides.
"""

import asyncio
import hmac
import http
import time
from collections.abc import Awaitable, Callable, Collection

import msgspec
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from holdfast import lines, tls
from holdfast.drivers.kubernetes.roster import uid_of
from holdfast.drivers.kubernetes.talk import say
from holdfast.messages import MAX_MESSAGE_BYTES, GiveJournal, Hello, JournalCopy, ToController
from holdfast.shell.host import cancelled
from holdfast.shell.succession import RUNNING_S, RollCall

LOOK_S = 0.05

Running = Callable[[], Awaitable[Collection[str] | None]]  # None: not known now

_decoder = msgspec.msgpack.Decoder(ToController)
_encoder = msgspec.msgpack.Encoder()


class Gathering:
    """Whoever connects is asked for what it keeps. `far` and `near`: as of a `RollCall`, by the UID
    of the pod, whose agent may be another one by then; `running` tells which of them still run."""

    def __init__(
        self, token: str, far: Collection[str], near: Collection[str], running: Running
    ) -> None:
        self._token = f"Bearer {token}"
        self._far, self._near, self._running = far, near, running

    async def gather(self, host: str, port: int) -> RollCall:
        """What they have said; its `best` is empty if nobody has a copy in time."""
        self._call = RollCall(self._far, self._near, time.monotonic())
        server = await serve(
            self._serve, host, port, process_request=self._authenticate,
            max_size=MAX_MESSAGE_BYTES, compression=None, ssl=tls.server_context(),
        )  # fmt: skip
        watching = asyncio.create_task(self._watch())
        try:
            while not self._call.is_over(time.monotonic()):
                await asyncio.sleep(LOOK_S)
        finally:
            server.close()
            await cancelled(watching)
            await server.wait_closed()
        if silent := len(self._call.silent):
            say(f"timed out waiting for {silent} agents to report their copy of the journal")
        return self._call

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(RUNNING_S)
            running = await self._running()
            if running is not None:
                self._call.only(running)

    def _authenticate(self, connection: ServerConnection, request: Request) -> Response | None:
        given = request.headers.get("Authorization", "")
        if hmac.compare_digest(given.encode(), self._token.encode()):
            return None
        return connection.respond(http.HTTPStatus.UNAUTHORIZED, "bearer token missing or wrong\n")

    async def _serve(self, connection: ServerConnection) -> None:
        try:
            hello = _decoder.decode(await connection.recv(decode=False))
            if isinstance(hello, Hello):
                if self._call.wanted(hello.term, hello.kept):
                    await self._fetch(connection, hello)
                self._call.heard(uid_of(hello.node), hello.ordered, hello.fenced)
        except (ConnectionClosed, msgspec.MsgspecError):
            return

    async def _fetch(self, connection: ServerConnection, hello: Hello) -> None:
        """A whole and sound copy, or nothing."""
        await connection.send(_encoder.encode(GiveJournal()))
        data, size = b"", 1
        while len(data) < size:
            part = _decoder.decode(await connection.recv(decode=False))
            if not isinstance(part, JournalCopy) or part.offset != len(data):
                return
            data, size = data + part.data, part.size
        if lines.sound(data):
            self._call.fetched(hello.term, hello.kept, data)
        else:
            say(f"the copy of {hello.node} is ignored: checksum mismatch")
