"""Only who knows the token is let in, and nobody else can do harm."""

import contextlib
import os
import socket
import threading

import pytest

from holdfast.agent.storage.copy_server import STRANGERS_MAX, CopyAnswer, CopyOffer
from holdfast.agent.storage.peer_connection import (
    FRAME_BYTES,
    PeerConnection,
    StrangerError,
    admit,
    dial,
    key_of,
)
from holdfast.checkpoint.arena import CellHeader, StatePart
from holdfast.checkpoint.key import Key
from tests.agent.controller_stub import until
from tests.agent.storage.site import TOKEN, Site, pattern, ring, sites, snapshot


def met(dialler: bytes, admitter: bytes) -> tuple[BaseException | None, BaseException | None]:
    """What each side makes of the other."""
    server = socket.create_server(("127.0.0.1", 0))
    heard: list[BaseException | None] = []

    def answer() -> None:
        sock, _ = server.accept()
        with sock:
            try:
                admit(sock, admitter)
                heard.append(None)
            except (OSError, StrangerError) as error:
                heard.append(error)

    thread = threading.Thread(target=answer)
    thread.start()
    said: BaseException | None = None
    try:
        dial(f"127.0.0.1:{server.getsockname()[1]}", dialler).close()
    except (OSError, StrangerError) as error:
        said = error
    thread.join()
    server.close()
    return said, heard[0]


def test_two_of_one_job_meet() -> None:
    assert met(key_of("a"), key_of("a")) == (None, None)


def test_neither_side_takes_a_stranger_for_its_own() -> None:
    said, heard = met(key_of("a"), key_of("b"))
    assert isinstance(said, StrangerError)
    assert heard is not None


def test_the_token_is_never_on_the_wire() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    seen = b""

    def listen() -> None:
        nonlocal seen
        sock, _ = server.accept()
        with sock:
            seen = sock.recv(4096)
            sock.sendall(os.urandom(64))
            with contextlib.suppress(OSError):
                seen += sock.recv(4096)

    thread = threading.Thread(target=listen)
    thread.start()
    with pytest.raises(StrangerError):
        dial(f"127.0.0.1:{server.getsockname()[1]}", key_of(TOKEN))
    thread.join()
    server.close()
    assert TOKEN.encode() not in seen and key_of(TOKEN) not in seen


def connected(site: Site) -> socket.socket:
    """Somebody from outside."""
    host, port = site.address.split(":")
    return socket.create_connection((host, int(port)), 10)


def test_garbage_silence_and_crowds_do_not_keep_copies_from_being_taken() -> None:
    with sites(2) as made, contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connected(made[1])) for _ in range(STRANGERS_MAX + 8)]
        for sock in crowd[:8]:
            with contextlib.suppress(OSError):
                sock.sendall(os.urandom(4096))
        ring(made)
        snapshot(made[0].arenas[0], Key(1, 1), 0, 2, 1 << 20)
        until(lambda: made[0].storage_pages[0].newest_copied == Key(1, 1), "the copy is kept")
        assert made[1].process is not None and made[1].process.poll() is None


def offer(**changes: int) -> CopyOffer:
    """A small copy of rank 0."""
    header = CellHeader(1, 5, 0, 2, 7, 100, 0, 0)._replace(**changes)
    return CopyOffer(attempt=1, local_rank=0, header=tuple(header), checksum=1)


@pytest.mark.parametrize(
    "wrong",
    [
        offer(data_bytes=-1),
        offer(data_bytes=1 << 50),
        CopyOffer(attempt=1, local_rank=7, header=tuple(range(8)), checksum=1),
        CopyOffer(attempt=1, local_rank=0, header=(1, 2), checksum=1),
    ],
)
def test_an_offer_that_makes_no_sense_ends_the_connection(wrong: CopyOffer) -> None:
    with sites(1) as (site,):
        connection = dial(site.address, key_of(TOKEN))
        connection.say(wrong)
        with pytest.raises(ConnectionError):
            connection.hear(CopyAnswer)
        connection.close()


def test_a_frame_may_not_be_large() -> None:
    with sites(1) as (site,):
        connection = dial(site.address, key_of(TOKEN))
        connection.send(memoryview((FRAME_BYTES + 1).to_bytes(4, "little") + bytes(64)))
        with pytest.raises(ConnectionError):
            connection.hear(CopyAnswer)
        connection.close()


def handed(connection: PeerConnection, what: CopyOffer, payload: bytes) -> CopyAnswer:
    """Offer and send; the last answer."""
    connection.say(what)
    answer = connection.hear(CopyAnswer)
    if answer.word == "send":
        connection.send(memoryview(payload))
        answer = connection.hear(CopyAnswer)
    return answer


def test_what_arrives_damaged_does_not_count_and_leaves_the_older_copy() -> None:
    with sites(2) as made:
        ring(made)
        snapshot(made[0].arenas[0], Key(1, 4), 0, 2, 1 << 16)
        until(lambda: made[0].storage_pages[0].newest_copied == Key(1, 4), "the copy is kept")
        connection = dial(made[1].address, key_of(TOKEN))
        assert handed(connection, offer(), bytes(100)).word == "damaged"
        connection.close()
        held = [cell.header() for cell in made[1].arenas[0].cells(StatePart.BUDDY)]
        assert [h.key for h in held if h] == [Key(1, 4)]
        kept = made[1].arenas[0].find(StatePart.BUDDY, Key(1, 4), 0)
        assert kept is not None and kept.intact()
        assert bytes(kept.payload[: 1 << 16]) == pattern(4, 1 << 16)


def test_an_earlier_attempt_may_not_write_any_more() -> None:
    with sites(1) as (site,):
        ring([site], attempt=3)
        connection = dial(site.address, key_of(TOKEN))
        until(lambda: handed(connection, offer(), b"").word == "refused", "it is refused")
        connection.close()
