"""The agent's connection to the controller: always trying, losing no fact.

Facts are numbered and kept until the controller has them on its disk; after each reconnect those
that it does not know are sent again, with ages as of then. Reports are not kept: only the newest
matters. The address is read anew at each attempt, because a controller that was resumed listens on
another port. A controller of an older term than one that was obeyed has been replaced: it is left
at once, and nothing that it says is done. One that does not know the job yet asks for our copy of
the journal before it welcomes anybody.
"""

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from holdfast import tls
from holdfast.agent.fact_queue import FactQueue
from holdfast.agent.notes import note
from holdfast.compiled_code import TakeCompiled
from holdfast.events import NodeReady
from holdfast.messages import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    Ack,
    AgentFact,
    Answer,
    CheckMachine,
    CodePart,
    GiveJournal,
    Hello,
    JournalCopy,
    Keep,
    Leave,
    LookForApi,
    PrepareVersion,
    RepeatStep,
    Report,
    Start,
    Stop,
    TakeEntryTimes,
    TakeEvidence,
    TakeStacks,
    UseVersion,
    Welcome,
)
from holdfast.profiles import TakeProfile, TakeTracePart

FIRST_DELAY_S = 0.1
LAST_DELAY_S = 1.0
ANSWER_S = 5.0
UNHEARD_S = 8.0  # a controller whose machine does not acknowledge what is sent is left

Order = (
    Start
    | Stop
    | Leave
    | Keep
    | LookForApi
    | TakeStacks
    | TakeEntryTimes
    | TakeEvidence
    | CheckMachine
    | RepeatStep
    | PrepareVersion
    | CodePart
    | TakeProfile
    | TakeTracePart
    | TakeCompiled
    | UseVersion
)

_orders = msgspec.msgpack.Decoder(Welcome | Ack | GiveJournal | Order)


LINK_ERRORS = (OSError, WebSocketException, msgspec.MsgspecError, UnicodeDecodeError)


class ControllerAddress(msgspec.Struct, frozen=True):
    """What `controller.json` says; more keys may be there."""

    host: str
    port: int

    @property
    def host_in_url(self) -> str:
        """The host as it stands in a URL."""
        return f"[{self.host}]" if ":" in self.host else self.host


class ReplacedError(Exception):
    """This controller is of an older term than one that was obeyed."""


class RejectedError(Exception):
    """The controller has given up this life of the node, or speaks another protocol."""


class ControllerConnection:
    """Facts out, orders in. `run()` must run for anything to move. `journal` is our copy of it, for
    a controller that has none."""

    def __init__(
        self,
        folder: Path,
        hello: Callable[[], Hello],
        on_order: Callable[[Order], None],
        journal: Callable[[], Iterable[JournalCopy]],
    ) -> None:
        self._folder = folder
        self._hello = hello
        self._on_order = on_order
        self._journal = journal
        self._facts = FactQueue()
        self._all_known = asyncio.Event()
        self._report: Report | None = None
        self._answers: deque[Answer] = deque()
        self._news = asyncio.Event()
        self._heard_at = time.monotonic()
        self.connected = False
        self.welcomes = 0  # how often a controller has taken us in
        self.report_s = 0.2  # between two reports, as the controller wants it
        self._term = 0  # newest of a controller that was obeyed

    def fact(self, event: AgentFact) -> None:
        """Send this fact, now or as soon as there is a controller; exactly once in effect."""
        self._facts.add(event, time.monotonic())
        self._all_known.clear()
        self._news.set()

    def report(self, report: Report) -> None:
        """Send this report before any further fact, or never."""
        if self.connected:
            self._report = report
            self._news.set()

    def answer(self, message: Answer) -> None:
        """Send this to the controller that asked, or never."""
        if self.connected:
            self._answers.append(message)
            self._news.set()

    @property
    def absent_s(self) -> float:
        """How long there has been no controller."""
        return 0.0 if self.connected else time.monotonic() - self._heard_at

    @property
    def all_sent(self) -> bool:
        """Whether every fact has gone out on this connection."""
        return self._facts.all_sent

    async def flush(self) -> None:
        """Wait until the controller has every fact on its disk."""
        if self._facts:
            await self._all_known.wait()

    async def run(self) -> None:
        """Connect, again and again. Raises `RejectedError` when the node must end."""
        delay = FIRST_DELAY_S
        said = ""
        while True:
            try:
                await self._one_connection()
            except (*LINK_ERRORS, ReplacedError) as error:
                why = f"{type(error).__name__}: {error}"
            else:
                why = "it closed the connection"
            if self.connected:
                self.connected = False
                self._heard_at = time.monotonic()
                delay = FIRST_DELAY_S
            if why != said:
                note(f"agent: no controller: {why}; retrying")
                said = why
            await asyncio.sleep(delay)
            delay = min(2 * delay, LAST_DELAY_S)

    async def _one_connection(self) -> None:
        address = msgspec.json.decode(
            (self._folder / "controller.json").read_bytes(), type=ControllerAddress
        )
        token = (self._folder / "token").read_text().strip()
        async with connect(
            f"{tls.scheme()}://{address.host_in_url}:{address.port}/",
            ssl=tls.client_context(),
            additional_headers={"Authorization": f"Bearer {token}"},
            proxy=None,  # a proxy of the environment is not meant for this
            compression=None,
            open_timeout=ANSWER_S,
            close_timeout=ANSWER_S,
            max_size=MAX_MESSAGE_BYTES,
            ping_interval=None,  # `_give_signs_of_life` does, as often as the controller wants
        ) as connection:
            welcome = await self._get_welcome(connection)
            _let_the_kernel_watch(connection)
            talking = [
                asyncio.create_task(self._receive(connection)),
                asyncio.create_task(self._send_news(connection)),
                asyncio.create_task(_give_signs_of_life(connection, welcome)),
            ]
            try:  # one that fails ends all: who only listens would be taken for well
                ended, _ = await asyncio.wait(talking, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
            finally:
                for task in talking:
                    task.cancel()
                await asyncio.gather(*talking, return_exceptions=True)

    async def _get_welcome(self, connection: ClientConnection) -> Welcome:
        hello = msgspec.structs.replace(self._hello(), obeyed=self._term)
        if self._facts.holds(NodeReady):  # it follows
            hello = msgspec.structs.replace(hello, ready=False)
        await connection.send(msgspec.msgpack.encode(hello))
        welcome = await _answer(connection)
        if isinstance(welcome, GiveJournal):
            for part in self._journal():
                await connection.send(msgspec.msgpack.encode(part))
            welcome = await _answer(connection)
        if not isinstance(welcome, Welcome):
            raise msgspec.ValidationError(f"expected Welcome, got {type(welcome).__name__}")
        if welcome.term < self._term:  # first of all: it has no say, whatever it speaks
            raise ReplacedError(f"it is of term {welcome.term}; term {self._term} has begun")
        if welcome.protocol != PROTOCOL:
            raise RejectedError(
                f"the controller speaks protocol {welcome.protocol}, not {PROTOCOL}"
            )
        if not welcome.known:
            raise RejectedError("the controller has removed this node from the job")
        self._term, self.report_s = welcome.term, welcome.report_s
        self._known_up_to(welcome.acked)
        self._facts.sent = welcome.acked
        self._report = None
        self._answers.clear()
        self.connected = True
        self.welcomes += 1
        self._news.set()
        return welcome

    def _known_up_to(self, acked: int) -> None:
        self._facts.forget(acked)
        if not self._facts:
            self._all_known.set()

    async def _receive(self, connection: ClientConnection) -> None:
        async for data in connection:
            match _orders.decode(data):  # type: ignore[arg-type]
                case Ack(seq=seq):
                    self._known_up_to(seq)
                case Welcome():
                    raise msgspec.ValidationError("a second handshake")
                case GiveJournal():
                    for part in self._journal():
                        self.answer(part)
                case (
                    LookForApi()
                    | TakeStacks()
                    | TakeEntryTimes()
                    | TakeEvidence()
                    | CheckMachine()
                    | RepeatStep()
                    | PrepareVersion()
                    | CodePart()
                    | TakeProfile()
                    | TakeTracePart()
                    | TakeCompiled() as order
                ):
                    self._on_order(order)
                case order:
                    if order.term < self._term:
                        raise ReplacedError(f"an order of term {order.term} in term {self._term}")
                    self._on_order(order)

    async def _send_news(self, connection: ClientConnection) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._answers:
                await connection.send(msgspec.msgpack.encode(self._answers.popleft()))
            if self._report is not None:
                report, self._report = self._report, None
                await connection.send(msgspec.msgpack.encode(report))
            for fact in self._facts.unsent(time.monotonic()):
                await connection.send(msgspec.msgpack.encode(fact))
                self._facts.sent = fact.seq


async def _answer(connection: ClientConnection) -> Welcome | Ack | GiveJournal | Order:
    """What the controller says first, within a time."""
    async with asyncio.timeout(ANSWER_S):
        found: Welcome | Ack | GiveJournal | Order = _orders.decode(
            await connection.recv(decode=False)
        )
    return found


async def _give_signs_of_life(connection: ClientConnection, welcome: Welcome) -> None:
    """Pong frames that nobody asked for: the controller only notes that something came. Now and
    then it is asked for one; a controller that has not answered by the next time hangs."""
    asked_at = time.monotonic()
    answer: asyncio.Future[float] | None = None
    while True:
        if time.monotonic() - asked_at < welcome.ping_s:
            await connection.pong()
        elif answer is not None and not answer.done():
            note(f"agent: the controller has not answered for {welcome.ping_s:g} s")
            connection.transport.abort()
            return
        else:
            asked_at, answer = time.monotonic(), asyncio.ensure_future(await connection.ping())
        await asyncio.sleep(min(welcome.pulse_s, welcome.ping_s))


def _let_the_kernel_watch(connection: ClientConnection) -> None:
    """What the controller's machine does not acknowledge in time breaks the connection."""
    found = connection.transport.get_extra_info("socket")
    if found is not None and found.family in (socket.AF_INET, socket.AF_INET6):
        milliseconds = int(1_000 * UNHEARD_S)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
