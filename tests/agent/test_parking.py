"""A worker is kept only if it says that it can be, and counts as gone once it has parked."""

import asyncio
import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.agent.fork_protocol import ChildKind, Program
from holdfast.agent.parking import ORDER, Parking
from holdfast.agent.workers import Workers
from holdfast.messages import Assignment
from tests.patience import PATIENCE_S

ASSIGNMENT = Assignment(
    attempt=2, rank=0, local_rank=0, world_size=2, redo_until=7, env={"RANK": "0"}
)


async def _heard(condition: "asyncio.Event") -> None:
    await asyncio.wait_for(condition.wait(), PATIENCE_S)


def _say(sock: socket.socket, state: str, why: str = "") -> None:
    sock.sendall(json.dumps({"state": state, "why": why}).encode() + b"\n")


async def _until(parking: Parking, **expected: object) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while any(getattr(parking, name) != value for name, value in expected.items()):
            await asyncio.sleep(0.001)


def test_the_way_of_a_kept_worker() -> None:
    async def way() -> None:
        parking, theirs = Parking.pair()
        gone = asyncio.Event()
        assert [parking.able, parking.parked] == [False, False], "nothing is known of it"
        _say(theirs, "able")
        await _until(parking, able=True)
        parking.order(gone.set)
        assert theirs.recv(64) == ORDER and not gone.is_set()
        _say(theirs, "parked")
        await _heard(gone)
        parking.assign(ASSIGNMENT)
        assert [parking.able, parking.parked] == [False, False], "not before its next loop"
        assert json.loads(theirs.recv(4096))["env"] == {"RANK": "0"}
        parking.close()
        assert theirs.recv(64) == b"", "the end: it is not needed any more"
        theirs.close()

    asyncio.run(way())


def test_what_a_worker_says_in_two_pieces_or_at_once_is_understood() -> None:
    async def way() -> None:
        parking, theirs = Parking.pair()
        theirs.sendall(b'{"state": "able"}\n{"state": "unable", ')
        await _until(parking, able=True)
        theirs.sendall(b'"why": "its loop is over"}\n')
        await _until(parking, able=False, why="its loop is over")
        theirs.close()
        parking.order(lambda: None)  # it has died: no matter
        parking.close()
        parking.close()

    asyncio.run(way())


OLD = Program(script="train.py", root="1")
NEW = Program(script="train.py", root="2")


@pytest.mark.parametrize(
    ("world_size", "program", "moves", "goes_on"),
    [
        (2, OLD, False, True),
        (3, OLD, False, False),
        (3, OLD, True, True),
        (2, NEW, False, False),
        (3, NEW, True, False),
    ],
)
def test_a_parked_worker_goes_on_only_with_what_it_runs_and_as_a_rank_that_it_can_be(
    tmp_path: Path, world_size: int, program: Program, moves: bool, goes_on: bool
) -> None:
    """An update may have brought a version that does not declare that it can be kept."""
    told: list[str] = []
    worker: Any = SimpleNamespace(
        is_parked=True,
        local_rank=0,
        assignment=ASSIGNMENT,
        sockets=SimpleNamespace(parking=SimpleNamespace(program=OLD, moves=moves)),
        dismiss=lambda: told.append("not needed"),
        output=SimpleNamespace(begin_again=lambda: told.append("goes on")),
    )
    kind = ChildKind.RUN
    workers = Workers(tmp_path, "n", 1 << 16, kind, kind, lambda: 1, [0], [0], table={1: worker})
    found = workers._parked(msgspec.structs.replace(ASSIGNMENT, world_size=world_size), program)
    assert (found is worker, told) == (goes_on, ["goes on" if goes_on else "not needed"])
