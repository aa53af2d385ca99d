"""What the kernel tells of a connection, by a real one whose packets vanish."""

import socket
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from holdfast.detection.answers import TcpState
from holdfast.drivers.chaos_machine import ATTACH_FILTER, DETACH_FILTER, PROGRAM
from holdfast.shell import kernel_answers
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a connection, and nothing on its way."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as far,
    ):
        near, _ = server.accept()
        with near:
            kernel_answers.repeat_evenly(near)
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield near, far


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def told(near: socket.socket) -> TcpState:
    found = kernel_answers.tcp_state(near, time.monotonic())
    assert found is not None
    return found


def test_a_process_that_reads_nothing_has_a_kernel_that_answers(pair: Pair) -> None:
    near, _far = pair
    asked_at = time.monotonic()
    near.sendall(b"?")
    until(lambda: not told(near).waits)
    assert told(near).answered_at >= asked_at - 0.02 and told(near).tries == 0


def test_what_vanishes_is_sent_again_evenly_and_answered_once_it_arrives(pair: Pair) -> None:
    near, far = pair
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, PROGRAM)
    asked_at = time.monotonic()
    near.sendall(b"?")
    until(lambda: told(near).tries >= 4)
    found = told(near)
    assert found.waits and found.answered_at <= asked_at + 0.02
    assert 0.6 < found.sent_at - asked_at < 2.0, "not after 3 s, as when pauses double"
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, DETACH_FILTER, 0)
    until(lambda: not told(near).waits)
    assert told(near).answered_at > found.sent_at and far.recv(1) == b"?"


def test_of_a_connection_that_is_none_of_tcp_nothing_is_told() -> None:
    near, far = socket.socketpair()
    with near, far:
        kernel_answers.repeat_evenly(near)
        assert kernel_answers.tcp_state(near, 0.0) is None
    assert kernel_answers.tcp_state(None, 0.0) is None
