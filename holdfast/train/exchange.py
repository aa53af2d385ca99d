"""What ranks tell each other about snapshots, over a gloo group of its own.

After each snapshot every rank sends its private part to its buddy on the next node, in the
background: started at one snapshot, waited for a whole step later. Then a tiny all-reduce, the
fence, tells every rank that all of them have the whole snapshot, their own part and the copy they
keep. Only then may the older snapshot be overwritten; so at every moment there is one that all
ranks can get. The fence also carries the numbers from which all ranks derive the same cadence.

A message is the private cell as it lies in memory, header first, and lands in the receiver's buddy
cell without being looked at. Its checksums decide at restore whether it arrived. The first message
has a length all ranks know; what does not fit follows in a second.
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
    Part,
    parse_header,
    parse_seal,
)
from holdfast.checkpoint.choose import Holding, Plan, buddy_of
from holdfast.checkpoint.tensors import byte_tensor
from holdfast.train.placement import Placement

BUDDY_LIMIT_BYTES = 64 << 20
_FIRST_CAPACITY = 64 << 10
_CHUNK_BYTES = 64 << 20
_NO_KEY = Key(-1, -1)


class Agreed(NamedTuple):
    """The largest value of any rank, known to all of them after a fence."""

    private_bytes: int = 0
    cost_us: int = 0
    step_us: int = 0


class Exchange:
    """Traffic about snapshots of one rank. At most one exchange and one fence are under way."""

    def __init__(self, placement: Placement, group: dist.ProcessGroup) -> None:
        self._group = group
        self._rank = placement.rank
        self._world_size = placement.world_size
        buddy = buddy_of(placement.rank, placement.local_world_size, placement.world_size)
        self.buddy = buddy
        self.ward = (placement.rank - placement.local_world_size) % placement.world_size
        self._capacity = _FIRST_CAPACITY
        self._sent: list[dist.Work] = []
        self._received: dist.Work | None = None
        self._inbox: Cell | None = None
        self._fence: tuple[dist.Work, torch.Tensor] | None = None

    # ── after a snapshot ──

    def start(self, outbox: Cell, inbox: Cell) -> None:
        """Send the private part in `outbox` to the buddy, receive the ward's into `inbox`."""
        if self.buddy is None:
            return
        outbox.reserve(self._capacity)
        inbox.reserve(self._capacity)
        inbox.begin()
        self._inbox = inbox
        first = HEADER_BYTES + self._capacity
        self._send(outbox.memory[:first])
        self._received = self._receive(inbox.memory[:first])
        length = _message_bytes(outbox)
        if length > first:
            self._send(outbox.memory[first:length])

    def settle(self) -> None:
        """Wait until the exchange is over. Everything of it has then left and arrived."""
        if self._inbox is None or self._received is None:
            return
        self._received.wait()
        first = HEADER_BYTES + self._capacity
        length = _message_bytes(self._inbox)
        if length > first:
            self._inbox.reserve(length - HEADER_BYTES)
            self._receive(self._inbox.memory[first:length]).wait()
        for work in self._sent:
            work.wait()
        self._sent, self._received, self._inbox = [], None, None

    def open_fence(self, mine: Agreed) -> None:
        """Tell all ranks that this one has everything; goes on in the background."""
        if self._fence is not None:
            return
        self.settle()
        values = torch.tensor(mine, dtype=torch.int64)
        work = dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None
        self._fence = (work, values)

    def pass_fence(self) -> Agreed:
        """Wait until every rank has everything."""
        assert self._fence is not None
        work, values = self._fence
        work.wait()
        self._fence = None
        agreed = Agreed(*(int(value) for value in values.tolist()))
        self._capacity = max(self._capacity, _rounded(agreed.private_bytes))
        if agreed.private_bytes > BUDDY_LIMIT_BYTES:
            self.buddy = None
        return agreed

    # ── at restore ──

    def gather(self, held: Holding) -> list[Holding]:
        """What every rank has whole, by rank."""
        mine = torch.tensor([_pack(keys) for keys in held], dtype=torch.int64)
        table = [torch.empty_like(mine) for _ in range(self._world_size)]
        dist.all_gather(table, mine, group=self._group)
        return [Holding(*(_unpack(keys) for keys in row.tolist())) for row in table]

    def gather_bytes(self, mine: bytes) -> list[bytes]:
        """What every rank has to say, by rank."""
        length = torch.tensor(len(mine), dtype=torch.int64)
        lengths = [torch.empty_like(length) for _ in range(self._world_size)]
        dist.all_gather(lengths, length, group=self._group)
        longest = max(1, *(int(length) for length in lengths))
        padded = byte_tensor(memoryview(bytearray(mine.ljust(longest, b"\0"))))
        table = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(table, padded, group=self._group)
        return [row.numpy()[: int(n)].tobytes() for row, n in zip(table, lengths, strict=True)]

    def all_true(self, mine: bool) -> bool:
        """Whether every rank says yes."""
        value = torch.tensor(int(mine), dtype=torch.int64)
        dist.all_reduce(value, dist.ReduceOp.MIN, group=self._group)
        return bool(value.item())

    def hand_out(self, plan: Plan, arena: Arena) -> list[Cell]:
        """Send and receive what the plan says; returns what arrived here, not yet verified.

        All ranks walk the same list in the same order, so no two wait for each other.
        """
        received: list[Cell] = []
        for giver, taker, source, target in _transfers(plan):
            if self._rank == giver:
                self._give(arena, plan.key, source, taker)
            elif self._rank == taker:
                received.append(self._take(arena, target, giver))
        return received

    def _give(self, arena: Arena, key: Key, part: Part, taker: int) -> None:
        cell = arena.find(part, key)
        assert cell is not None, "a verified cell cannot vanish"
        length = _message_bytes(cell)
        for chunk in [cell.memory[:HEADER_BYTES], *_chunks(cell.memory[HEADER_BYTES:length])]:
            dist.send(byte_tensor(chunk), taker, group=self._group)

    def _take(self, arena: Arena, part: Part, giver: int) -> Cell:
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

    def _send(self, memory: memoryview) -> None:
        work = dist.isend(byte_tensor(memory), self.buddy, group=self._group)
        assert work is not None
        self._sent.append(work)

    def _receive(self, memory: memoryview) -> dist.Work:
        work = dist.irecv(byte_tensor(memory), self.ward, group=self._group)
        assert work is not None
        return work


def _transfers(plan: Plan) -> list[tuple[int, int, Part, Part]]:
    shared = [(g, r, Part.SHARED, Part.SHARED) for r, g in enumerate(plan.shared_from) if g != r]
    own = [(g, r, Part.BUDDY, Part.PRIVATE) for r, g in enumerate(plan.private_from) if g != r]
    return shared + own


def _message_bytes(cell: Cell) -> int:
    header = parse_header(cell.memory)
    return HEADER_BYTES + (header.payload_bytes if header is not None else 0)


def _chunks(memory: memoryview) -> list[memoryview]:
    return [memory[at : at + _CHUNK_BYTES] for at in range(0, len(memory), _CHUNK_BYTES)]


def _rounded(length: int) -> int:
    return -(-length // _FIRST_CAPACITY) * _FIRST_CAPACITY


def _pack(keys: Sequence[Key] | frozenset[Key]) -> list[int]:
    """Two keys as four numbers: a part has two cells."""
    padded = [*sorted(keys), _NO_KEY, _NO_KEY][:2]
    return [number for key in padded for number in key]


def _unpack(numbers: list[int]) -> frozenset[Key]:
    keys = (Key(*numbers[:2]), Key(*numbers[2:]))
    return frozenset(key for key in keys if key != _NO_KEY)
