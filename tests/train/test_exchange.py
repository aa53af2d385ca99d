"""What ranks say to each other at a restore arrives whole, in as few messages as it takes."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from holdfast.train.exchange import Exchange
from holdfast.train.placement import Placement


class Group(NamedTuple):
    """One rank's end of a group of threads."""

    rank: int
    said: list[torch.Tensor]
    meeting: Barrier
    rounds: list[int]  # how many bytes each rank has sent, by collective


def gather(table: list[torch.Tensor], mine: torch.Tensor, group: Group) -> None:
    group.said[group.rank] = mine
    group.meeting.wait()
    for row, one in zip(table, group.said, strict=True):
        row.copy_(one)
    if group.rank == 0:
        group.rounds.append(mine.numel())
    group.meeting.wait()


def exchanged(monkeypatch: pytest.MonkeyPatch, *words: bytes) -> tuple[list[list[bytes]], int]:
    """What each rank has heard, and in how many collectives."""
    monkeypatch.setattr(dist, "all_gather", gather)
    size = len(words)
    said, rounds, meeting = [torch.empty(0)] * size, list[int](), Barrier(size)

    def tell(rank: int) -> list[bytes]:
        place = Placement(rank, rank, size, size, attempt=1, redo_until=0, distributed=True)
        group = Group(rank, said, meeting, rounds)
        return Exchange(place, group).gather_bytes(words[rank])  # type: ignore[arg-type]

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(tell, range(size))), len(rounds)


@pytest.mark.parametrize("length", [0, 1, 999, 1000])
def test_what_is_short_takes_one_collective(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    words = b"x" * length, b"\0y\0"
    assert exchanged(monkeypatch, *words) == ([[*words]] * 2, 1)


@pytest.mark.parametrize("length", [1001, 5000])
def test_what_is_longer_takes_another_one_and_is_whole(
    monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    words = b"", bytes(range(250)) * 20, b"z" * length
    assert exchanged(monkeypatch, *words) == ([[*words]] * 3, 2)
