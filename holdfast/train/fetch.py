"""Getting what each rank wants to read to it, from whichever ranks can read it.

Every rank says what it wants and from whom; then all walk the same list in the same order, so much
of it at a time that the memory for it stays small, and each sends what it is asked for. A reader
that comes upon damage sends what it has all the same and tells everybody afterwards: a walk that is
left early would leave the others waiting.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from holdfast.checkpoint.arena import StatePart
from holdfast.checkpoint.contents import Ref
from holdfast.checkpoint.pieces import Box
from holdfast.checkpoint.save import in_parallel
from holdfast.errors import Error
from holdfast.train.exchange import Exchange
from holdfast.train.load_failure import LoadFailure, failure_of, worst
from holdfast.train.sources import StateSource

ROUND_BYTES = 256 << 20


class LeafRead(NamedTuple):
    """One leaf, or a box of it, and what to do with its bytes."""

    ref: Ref
    box: Box | None
    put: Callable[[torch.Tensor], Any]


class _Asked(msgspec.Struct, frozen=True, array_like=True):
    """What one rank asks of another."""

    giver: int
    rank: int
    part: int
    number: int
    box: Box | None
    length: int


def fetch(
    source: StateSource, reads: Sequence[LeafRead], exchange: Exchange | None, rank: int
) -> LoadFailure | None:
    """Do all these reads, and those of the other ranks; what was wrong here, None if nothing.

    All ranks call this at the same time.
    """
    here: list[LeafRead] = []
    away: list[LeafRead] = []
    for read in reads:
        holders = source.holders(read.ref)
        (here if rank in holders else away).append(read)
    failure = [one for one in in_parallel(lambda read: _read_here(source, read), here) if one]
    if exchange is not None:
        asked = [_ask(read, source.holders(read.ref), rank) for read in away]
        failure += _Walk(source, exchange, rank).go(away, asked)
    return worst(failure)


def _ask(read: LeafRead, holders: Sequence[int], rank: int) -> _Asked:
    ref = read.ref
    giver = holders[(rank + ref.number) % len(holders)]
    return _Asked(giver, ref.rank, ref.part, ref.number, read.box, read_bytes(read))


def read_bytes(read: LeafRead) -> int:
    """How many bytes a read gives."""
    leaf = read.ref.leaf
    if read.box is None:
        return leaf.length
    return leaf.length // math.prod(leaf.shape) * math.prod(read.box[1])


def _read_here(source: StateSource, read: LeafRead) -> LoadFailure | None:
    try:
        read.put(source.read(read.ref, read.box))
    except Error as error:
        return failure_of(error)
    return None


class _Walk:
    """One walk over everything that has to travel."""

    def __init__(self, source: StateSource, exchange: Exchange, rank: int) -> None:
        self._source = source
        self._exchange = exchange
        self._rank = rank
        self._failures: list[LoadFailure] = []

    def go(self, reads: Sequence[LeafRead], asked: list[_Asked]) -> list[LoadFailure]:
        packed = self._exchange.gather_bytes(msgspec.msgpack.encode(asked))
        table = [msgspec.msgpack.decode(one, type=list[_Asked]) for one in packed]
        mine = iter(reads)
        for some in _rounds((taker, one) for taker, listed in enumerate(table) for one in listed):
            self._round(some, mine)
        return self._failures

    def _round(self, some: Sequence[tuple[int, _Asked]], mine: Iterator[LeafRead]) -> None:
        arriving, works = [], []
        for taker, one in some:
            if taker == self._rank:
                buffer = torch.empty(one.length, dtype=torch.uint8)
                arriving.append((next(mine), buffer))
                works.append(self._exchange.receive_from(one.giver, buffer))
            elif one.giver == self._rank:
                works.append(self._exchange.send_to(taker, self._give(one)))
        for work in works:
            work.wait()
        for read, buffer in arriving:
            read.put(buffer)

    def _give(self, one: _Asked) -> torch.Tensor:
        leaf = self._source.contents.leaf(one.rank, StatePart(one.part), one.number)
        try:
            return self._source.read(Ref(one.rank, StatePart(one.part), one.number, leaf), one.box)
        except Error as error:
            self._failures.append(failure_of(error))
            return torch.zeros(one.length, dtype=torch.uint8)


def _rounds(
    walk: Iterable[tuple[int, _Asked]],
) -> Iterator[list[tuple[int, _Asked]]]:
    some: list[tuple[int, _Asked]] = []
    total = 0
    for taker, one in walk:
        if some and total + one.length > ROUND_BYTES:
            yield some
            some, total = [], 0
        some.append((taker, one))
        total += one.length
    if some:
        yield some
