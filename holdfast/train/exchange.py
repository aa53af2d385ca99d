"""What ranks tell each other about snapshots, over a gloo group of its own.

Ranks meet at steps that all of them know (`snapshots`): a small all-reduce, the fence, after which
each knows that all have the newest snapshot whole, what is to become of the next one, and the
numbers from which all derive the same cadence. Only after a fence may an older snapshot be
overwritten; so at every moment there is one that all ranks can get.

Small private parts are sent to the buddy on the next node in the background: started at one
snapshot, waited for before the fence that follows it. A message is the private cell as it lies in
memory, header first, and lands in the receiver's buddy cell without being looked at. Its checksums
decide at restore whether it arrived. The first message has a length all ranks know; what does not
fit follows in a second. Parts above a limit are not sent at all: their size becomes known in the
fence, and from then on the agents' side copies them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from holdfast.checkpoint.arena import (
    HEADER_BYTES,
    Arena,
    Cell,
    Key,
    StatePart,
    parse_header,
    parse_seal,
)
from holdfast.checkpoint.choose import RestorePlan, buddy_of, copy_distance
from holdfast.checkpoint.tensors import SEALED_BYTES, byte_tensor
from holdfast.checkpoint.tiers import Tier
from holdfast.train.placement import Placement, replica_nodes

COPY_LIMIT_BYTES = SEALED_BYTES  # of a private part that is sent by the workers themselves
_FIRST_CAPACITY = 64 << 10
_CHUNK_BYTES = 64 << 20
_SHORT_BYTES, _LENGTH_BYTES = 1000, 8  # of what ranks say at a restore
_LONGEST = HEADER_BYTES + COPY_LIMIT_BYTES
LEAST = -(1 << 63)  # what is said of nothing


class Agreed(NamedTuple):
    """The largest value of any rank, known to all of them after a fence. Flags are 0 and 1."""

    step: int = 0
    minus_step: int = 0  # shows when ranks meet at different steps
    private_bytes: int = 0
    cost_us: int = 0
    step_us: int = 0
    pending: int = 0  # the last snapshot to be copied by agents is not whole with all peers yet
    blocked: int = 0  # some rank has no cell that it may write to
    stuck: int = 0  # some rank has none as long as something is pending
    urgent: int = 0  # some node is about to go
    saving: int = 0  # some node still reads one for a durable tier: another would fill its memory
    local: int = 0  # the next snapshot is for these tiers, unless that is so
    shared: int = 0
    archive: int = 0
    milestone: int = 0  # and at a step that is to be kept for good
    torn: int = 0  # some rank's part of the newest snapshot is not what it should be
    carried: int = 0  # some rank carries gradients over to the next turn (`gradients`)
    keep: int = 0  # some rank has waited long enough: they are kept with the snapshot
    end: int = 0  # some rank wants the loop to end
    unsound: int = 0  # some rank's loss or gradient norm is not finite: nothing is kept of that
    hold_ms: int = 0  # the attempt ends with the urgent snapshot, within this time

    @property
    def together(self) -> bool:
        """Whether all ranks are at the same step."""
        return self.step == -self.minus_step

    @property
    def tiers(self) -> set[Tier]:
        """Durable tiers that the next snapshot is for by the schedule: one at a time on all nodes,
        so that one whose storage hangs holds up checkpoints, and no snapshot."""
        asked = {Tier.LOCAL: self.local, Tier.SHARED: self.shared, Tier.ARCHIVE: self.archive}
        return {tier for tier, wanted in asked.items() if wanted and not self.saving}


class Exchange:
    """Traffic about snapshots of one rank. At most one exchange and one fence are under way."""

    def __init__(self, placement: Placement, group: dist.ProcessGroup, *, copies: int = 1) -> None:
        """`copies` is how many nodes are to keep each private part besides its own."""
        self._group = group
        self._rank = placement.rank
        self._world_size = placement.world_size
        size = placement.world_size
        distance = copy_distance(placement.local_world_size, size, replica_nodes())
        buddy = buddy_of(placement.rank, distance, size)
        self._buddy = buddy if copies == 1 else None  # several copies are made by the agents' side
        self.ward = (placement.rank - distance) % size
        self.nodes = placement.world_size // placement.local_world_size
        self._capacity = _FIRST_CAPACITY
        self._sent: list[dist.Work] = []
        self._received: dist.Work | None = None
        self._inbox: Cell | None = None
        self._fence: tuple[dist.Work, torch.Tensor] | None = None
        self.heard: list[int] = []
        """The largest of what ranks have said besides, at the last fence."""

    @property
    def sends_copies(self) -> bool:
        """Whether private parts are sent to a buddy, as long as they are small enough."""
        return self._buddy is not None

    # ── after a snapshot ──

    def start(self, outbox: Cell, inbox: Cell) -> None:
        """Send the private part in `outbox` to the buddy, receive the ward's into `inbox`."""
        if self._buddy is None:
            return
        outbox.reserve(self._capacity)
        inbox.reserve(self._capacity)
        inbox.begin()
        self._inbox = inbox
        first = HEADER_BYTES + self._capacity
        self._sent.append(self.send_to(self._buddy, byte_tensor(outbox.memory[:first])))
        self._received = self.receive_from(self.ward, byte_tensor(inbox.memory[:first]))
        length = _message_bytes(outbox)
        if first < length <= _LONGEST:
            self._sent.append(self.send_to(self._buddy, byte_tensor(outbox.memory[first:length])))

    def settle(self) -> None:
        """Wait until the exchange is over. Everything of it has then left and arrived."""
        if self._inbox is None or self._received is None:
            return
        self._received.wait()
        first = HEADER_BYTES + self._capacity
        length = _message_bytes(self._inbox)
        if length > _LONGEST:  # only its beginning was sent
            self._inbox.discard()
        elif length > first:
            self._inbox.reserve(length - HEADER_BYTES)
            rest = byte_tensor(self._inbox.memory[first:length])
            self.receive_from(self.ward, rest).wait()
        for work in self._sent:
            work.wait()
        self._sent, self._received, self._inbox = [], None, None

    def open_fence(self, mine: Agreed, besides: Sequence[int] = ()) -> None:
        """Tell all ranks that this one has everything; goes on in the background. `besides` are
        more numbers, as many on each rank."""
        if self._fence is not None:
            return
        self.settle()
        values = torch.tensor([*mine, *besides], dtype=torch.int64)
        work = dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None
        self._fence = (work, values)

    def pass_fence(self) -> Agreed:
        """Wait until every rank has everything."""
        assert self._fence is not None
        work, values = self._fence
        work.wait()
        self._fence = None
        said, own = [int(value) for value in values.tolist()], len(Agreed._fields)
        agreed, self.heard = Agreed(*said[:own]), said[own:]
        if agreed.private_bytes > COPY_LIMIT_BYTES:
            self._buddy = None
        else:
            self._capacity = max(self._capacity, _rounded(agreed.private_bytes))
        return agreed

    @property
    def fence_open(self) -> bool:
        """Whether a fence is under way."""
        return self._fence is not None

    # ── at restore ──

    def gather_bytes(self, mine: bytes) -> list[bytes]:
        """What every rank has to say, by rank. What is short takes one message each, and anything
        longer a second one."""
        told = self._gather(len(mine).to_bytes(_LENGTH_BYTES, "little") + mine[:_SHORT_BYTES])
        lengths = [int.from_bytes(one[:_LENGTH_BYTES], "little") for one in told]
        rest = max(lengths) - _SHORT_BYTES
        more = self._gather(mine[_SHORT_BYTES:], rest) if rest > 0 else [b""] * len(told)
        whole = (one[_LENGTH_BYTES:] + two for one, two in zip(told, more, strict=True))
        return [one[:length] for one, length in zip(whole, lengths, strict=True)]

    def _gather(self, mine: bytes, size: int = _LENGTH_BYTES + _SHORT_BYTES) -> list[bytes]:
        padded = byte_tensor(memoryview(bytearray(mine.ljust(size, b"\0"))))
        table = [torch.empty_like(padded) for _ in range(self._world_size)]
        dist.all_gather(table, padded, group=self._group)
        return [row.numpy().tobytes() for row in table]

    def send_to(self, rank: int, data: torch.Tensor) -> dist.Work:
        """Send bytes; messages between two ranks stay in order."""
        work = dist.isend(data, rank, group=self._group)
        assert work is not None
        return work

    def receive_from(self, rank: int, data: torch.Tensor) -> dist.Work:
        """Receive bytes of this length."""
        work = dist.irecv(data, rank, group=self._group)
        assert work is not None
        return work

    def all_true(self, mine: bool) -> bool:
        """Whether every rank says yes."""
        value = torch.tensor(int(mine), dtype=torch.int64)
        dist.all_reduce(value, dist.ReduceOp.MIN, group=self._group)
        return bool(value.item())

    def hand_out(self, plan: RestorePlan, arena: Arena) -> list[Cell]:
        """Send and receive what the plan says; returns what arrived here, not yet verified.

        All ranks walk the same list in the same order, so no two wait for each other.
        """
        received: list[Cell] = []
        for giver, taker, source, target in transfers(plan):
            if self._rank == giver:
                self._give(arena, plan.key, source, taker)
            elif self._rank == taker:
                received.append(self._take(arena, target, giver))
        return received

    def _give(self, arena: Arena, key: Key, part: StatePart, taker: int) -> None:
        cell = arena.find(part, key)
        assert cell is not None, "a verified cell cannot vanish"
        length = _message_bytes(cell)
        for chunk in [cell.memory[:HEADER_BYTES], *_chunks(cell.memory[HEADER_BYTES:length])]:
            dist.send(byte_tensor(chunk), taker, group=self._group)

    def _take(self, arena: Arena, part: StatePart, giver: int) -> Cell:
        cell = arena.target(part, ())
        assert cell is not None, "nothing is kept while nothing is restored"
        head = memoryview(bytearray(HEADER_BYTES))
        dist.recv(byte_tensor(head), giver, group=self._group)
        header = parse_header(head)
        assert header is not None, "the giver has verified it"
        cell.reserve(header.payload_bytes)
        cell.begin()
        for chunk in _chunks(cell.payload[: header.payload_bytes]):
            dist.recv(byte_tensor(chunk), giver, group=self._group)
        cell.commit(header, parse_seal(head, header.key))
        return cell


def transfers(plan: RestorePlan) -> list[tuple[int, int, StatePart, StatePart]]:
    """Who gives whom which part of its memory, and as which; the same on all ranks."""
    shared = [
        (g, r, StatePart.SHARED, StatePart.SHARED) for r, g in enumerate(plan.shared_from) if g != r
    ]
    own = [
        (g, r, StatePart.BUDDY, StatePart.PRIVATE)
        for r, g in enumerate(plan.private_from)
        if g != r
    ]
    return shared + own


def _message_bytes(cell: Cell) -> int:
    header = parse_header(cell.memory)
    return HEADER_BYTES + (header.payload_bytes if header is not None else 0)


def _chunks(memory: memoryview) -> list[memoryview]:
    return [memory[at : at + _CHUNK_BYTES] for at in range(0, len(memory), _CHUNK_BYTES)]


def _rounded(length: int) -> int:
    return -(-length // _FIRST_CAPACITY) * _FIRST_CAPACITY
