"""What reaches a worker on the socket beside the one on which its rank comes, and when."""

import fcntl
import os
import resource
import socket
import threading
from collections.abc import Iterator

import pytest

from holdfast import rank
from holdfast.checkpoint.arena import OWN, Arena, CellHeader, Key
from holdfast.checkpoint.seal import BLOCK_BYTES
from holdfast.train.parking import LOOK, ORDER, VARIABLE, ParkingPlace, warm_start
from tests.patience import PATIENCE_S

LARGE = BLOCK_BYTES + 1


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def left_by_another() -> int:
    """An arena with a snapshot, as a worker has left it."""
    fd = Arena.create()
    cell = Arena(fd).cells(OWN[0])[0]
    cell.reserve(LARGE)
    cell.begin()
    cell.commit(CellHeader(1, 1, 0, 1, 7, LARGE, 0))
    return fd


def test_checksums_are_taken_while_the_rank_does_not_come_once_the_last_worker_is_dead(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    fd, (agent, worker) = left_by_another(), pair
    arena = Arena(fd)
    cell = arena.find(OWN[0], Key(1, 1))
    assert cell is not None
    begun = threading.Event()
    look_ahead = arena.look_ahead

    def look(cores: int) -> None:
        look_ahead(cores)
        begun.set()

    arena.look_ahead = look  # type: ignore[method-assign]
    meanwhile = warm_start(arena, {VARIABLE: str(worker.fileno())})
    lines: list[bytes] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        control = theirs.fileno()
        waiting = threading.Thread(
            target=lambda: lines.append(rank._line_on(control, "join()", meanwhile))
        )
        waiting.start()
        assert ours.recv(64) == b"join()\n" and not bool(cell._ahead), "that one may still write"
        agent.sendall(LOOK + b"2\n")
        assert begun.wait(PATIENCE_S) and bool(cell._ahead) and not lines
        ours.sendall(b"a rank\n")
        waiting.join(PATIENCE_S)
    assert lines == [b"a rank\n"] and cell.intact()
    os.close(fd)


def test_where_the_rank_is_there_nothing_is_begun(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    agent, worker = pair
    agent.sendall(LOOK + b"2\n")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"a rank\n")
        never = rank.Meanwhile(worker.fileno(), lambda: pytest.fail("it has its rank"))
        assert rank._line_on(theirs.fileno(), "join()", never) == b"a rank\n"


def test_a_script_may_have_many_files_open_when_it_waits(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    agent, worker = pair
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    high = fcntl.fcntl(worker, fcntl.F_DUPFD, 1100)  # select() ends at 1023
    agent.sendall(LOOK + b"2\n")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        meanwhile = rank.Meanwhile(high, lambda: ours.sendall(b"a rank\n"))
        assert rank._line_on(theirs.fileno(), "join()", meanwhile) == b"a rank\n"
    os.close(high)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_an_order_to_park_is_heard_after_what_came_while_it_was_warm(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    agent, worker = pair
    place = ParkingPlace(worker, PATIENCE_S)
    agent.sendall(LOOK + b"2\n")
    place.able(moves=False)
    agent.sendall(ORDER)
    assert place.await_order()
