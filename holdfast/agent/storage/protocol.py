"""What the agent and the storage process of its node say to each other over one Unix socket.

One message per packet (SOCK_SEQPACKET), JSON. Descriptors are inherited, so `Setup` names them by
their numbers. The listening socket is the agent's: a storage process that is started again answers
under the same address, and who dials meanwhile waits.
"""

import socket

import msgspec

from holdfast.checkpoint.tiers import Tier
from holdfast.links import LinkFigures

PACKET_BYTES = 256 << 10


class StorageMessage(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The root of all messages."""


class DurablePlace(msgspec.Struct, frozen=True, kw_only=True):
    """One durable tier of the job."""

    tier: Tier
    where: str  # a folder or a URL
    keep: int  # newest checkpoints that are kept whatever their age
    max_bytes_per_s: float | None  # None: no limit
    fresh: str = ""  # under which word the job began anew

    @property
    def own(self) -> bool:
        """Whether it is this node's; others are shared, and are no machine's fault."""
        return self.tier is Tier.LOCAL


# ── agent → storage process ───────────────────────────────────────────────────────────────────


class Setup(StorageMessage, frozen=True, kw_only=True):
    """First message. `arenas` and `storage_pages` by local rank."""

    node: str
    job: str
    token_file: str
    arenas: tuple[int, ...]
    storage_pages: tuple[int, ...]
    listener: int
    places: tuple[DurablePlace, ...] = ()
    copies: int = 1  # of private parts on other nodes
    compiled: str = ""  # folder of compiled code; empty: there is none to speak of


class Warn(StorageMessage, frozen=True, kw_only=True):
    """The workers live for `within_s` more, then they or the whole node are gone; 0: all is well.

    Answered by `UrgentSaved` once a snapshot that was taken because of it is where it survives
    that. `node_goes`: memory and disks of this node are lost. `job_ends`: other nodes' memory is,
    too. Neither: only its workers end.
    """

    within_s: float
    node_goes: bool = True
    job_ends: bool = False


class FetchCompiled(StorageMessage, frozen=True, kw_only=True):
    """Bring compiled code here that lies at another node, under HOST:PORT. Answered by
    `CompiledFetched`."""

    address: str
    name: str  # of that node


class MeasurePeer(StorageMessage, frozen=True, kw_only=True):
    """Measure the link with the node at HOST:PORT. Answered by `PeerMeasured`, same `number`."""

    number: int
    address: str


# ── storage process → agent ───────────────────────────────────────────────────────────────────


class NewestAttempt(StorageMessage, frozen=True, kw_only=True):
    """The newest attempt that durable tiers know, 0 for none. Said once, first."""

    attempt: int


class UrgentSaved(StorageMessage, frozen=True, kw_only=True):
    """What was asked for by `Warn` is done; `where` in words."""

    attempt: int
    step: int
    where: str


class Settled(StorageMessage, frozen=True, kw_only=True):
    """All durable tiers are done with what they were to save up to this snapshot: it is committed,
    or was given up."""

    attempt: int
    step: int


class Committed(StorageMessage, frozen=True, kw_only=True):
    """A checkpoint is whole in a durable tier. Only said by the node of rank 0."""

    tier: Tier
    attempt: int
    step: int
    seconds: float  # start to commit
    bytes: int  # that this node wrote
    name: str


class SaveFailed(StorageMessage, frozen=True, kw_only=True):
    """A save did not come to its end; training goes on."""

    tier: Tier
    attempt: int
    step: int
    why: str
    failures: int  # in a row


class CompiledSeen(StorageMessage, frozen=True, kw_only=True):
    """What there is of compiled code is something else than it was, and no compiler is at it."""

    stamp: str


class CompiledFetched(StorageMessage, frozen=True, kw_only=True):
    """What `FetchCompiled` came to. `why`: not all of it came."""

    name: str
    count: int
    size: int
    seconds: float
    why: str = ""


class PeerMeasured(StorageMessage, frozen=True, kw_only=True):
    """What `MeasurePeer` came to."""

    number: int
    found: LinkFigures


AnyOrder = Setup | Warn | FetchCompiled | MeasurePeer
AnyNews = (
    NewestAttempt
    | UrgentSaved
    | Settled
    | Committed
    | SaveFailed
    | CompiledSeen
    | CompiledFetched
    | PeerMeasured
)

_orders = msgspec.json.Decoder(AnyOrder)
_news = msgspec.json.Decoder(AnyNews)


def send(sock: socket.socket, word: AnyOrder | AnyNews) -> None:
    """Send one message. OSError if the other side is gone."""
    sock.send(msgspec.json.encode(word))


def receive_order(sock: socket.socket) -> AnyOrder | None:
    """The next order; None once the agent is gone."""
    try:
        data = sock.recv(PACKET_BYTES)
    except ConnectionResetError:  # it has not read all that we told it
        return None
    return _orders.decode(data) if data else None


def receive_news(sock: socket.socket) -> AnyNews | None:
    """The next news; None once the process is gone. BlockingIOError if there is none yet."""
    data = sock.recv(PACKET_BYTES, socket.MSG_DONTWAIT)
    return _news.decode(data) if data else None
