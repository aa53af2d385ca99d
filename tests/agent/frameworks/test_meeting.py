"""Workers of one attempt meet, and nobody else does."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import meeting
from holdfast.meeting import PeersMet, Seat, free_port, key_from, meet
from tests.patience import PATIENCE_S

KEY = key_from("secret").encode()


def seat(port: int, rank: int, size: int = 3, **changes: Any) -> Seat:
    return Seat("127.0.0.1", port, rank, size, attempt=1, key=KEY)._replace(**changes)


def together(*seats: Seat) -> list[PeersMet]:
    with ThreadPoolExecutor(len(seats)) as pool:
        found = [pool.submit(meet, one, f"of {one.rank}", 30.0) for one in seats]
        return [one.result() for one in found]


def test_all_hear_what_all_said_in_the_order_of_ranks() -> None:
    port = free_port("127.0.0.1")
    for met in together(*(seat(port, rank) for rank in (2, 0, 1))):
        assert met.said == ("of 0", "of 1", "of 2")
        met.close()


def test_one_alone_meets_nobody() -> None:
    assert meet(seat(1, 0, size=1), "me") == PeersMet(("me",), ())


def test_strangers_garbage_and_workers_of_other_attempts_are_turned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meeting, "ANSWER_S", 0.2)
    port = free_port("127.0.0.1")
    with ThreadPoolExecutor(4) as pool:
        host = pool.submit(meet, seat(port, 0, size=2), "host", 30.0)
        for stranger in (
            seat(port, 1, size=2, key=b"another"),
            seat(port, 1, size=2, attempt=2),
            seat(port, 7, size=2),
        ):
            with pytest.raises(TimeoutError):
                meet(stranger, "stranger", 0.5)
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(b"\x00\x00\x00\x05GET /")
        guest = pool.submit(meet, seat(port, 1, size=2), "guest", 30.0)
        assert host.result().said == guest.result().said == ("host", "guest")


def test_garbage_where_rank_0_will_be_is_not_the_end() -> None:
    """Of another program that has had the port until now."""
    port = free_port("127.0.0.1")
    with ThreadPoolExecutor(1) as pool:
        with socket.create_server(("127.0.0.1", port)) as another:
            guest = pool.submit(meet, seat(port, 1, size=2), "guest", 30.0)
            sock, _ = another.accept()
            with sock:
                sock.sendall(b"\x00\x00\x00\x05hello")
                sock.recv(1 << 16)
        assert meet(seat(port, 0, size=2), "host", 30.0).said == guest.result().said


def test_whoever_does_not_come_is_named() -> None:
    with pytest.raises(TimeoutError, match=r"ranks 1, 2 have not connected to 127\.0\.0\.1"):
        meet(seat(free_port("127.0.0.1"), 0), "host", 0.1)


def test_a_port_that_is_taken_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        meet(seat(taken.getsockname()[1], 0), "host", 30.0)


def test_the_end_of_rank_0_is_noticed() -> None:
    port = free_port("127.0.0.1")
    host, guest = together(seat(port, 0, size=2), seat(port, 1, size=2))
    waiting = threading.Thread(target=meeting.wait_for_end, args=(guest.connections[0],))
    waiting.start()
    assert waiting.is_alive()
    host.close()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
