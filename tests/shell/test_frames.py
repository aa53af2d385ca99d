"""Messages are found in whatever pieces they arrive, and none that is too large is."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.protocol import State as Stage
from websockets.uri import parse_uri

from holdfast.events import CheckpointCommitted
from holdfast.messages import MAX_MESSAGE_BYTES, AskStatus, Fact
from holdfast.shell import server as shell_server
from holdfast.shell.server import Server, framed, left_of_frame, only_messages
from tests.shell.line import GIVEN, KEY, UPGRADE, Line, frame
from tests.shell.scene import hello
from tests.shell.site import Ear, answered, dial, send, with_server

COMMITTED = CheckpointCommitted(node="n", tier="shared", attempt=1, step=5, seconds=1.0, bytes=5)
WHOLE = msgspec.msgpack.encode(Fact(seq=1, event=COMMITTED))


def test_a_message_in_many_frames_is_one_message_with_signs_of_life_between() -> None:
    async def test(server: Server, ear: Ear, _port: int) -> None:
        line = await Line.open(server)
        line.say(msgspec.msgpack.encode(hello()))
        pieces = [WHOLE[at : at + 1] for at in range(len(WHOLE))]
        line.connection.data_received(frame(pieces[0], 2, fin=False))
        for piece in pieces[1:-1]:
            line.connection.data_received(frame(piece, 0, fin=False) + frame(b"", 10))
        assert ear.facts == []
        line.connection.data_received(frame(pieces[-1], 0))
        assert ear.facts == [("n", 1)] and line.closed is None

    with_server(test)


@given(st.lists(st.integers(0, 70_000), max_size=6), st.data())
@settings(max_examples=100, deadline=None)
def test_it_is_known_where_frames_end_wherever_they_are_cut(
    sizes: list[int], data: st.DataObject
) -> None:
    """Six bytes are a sign of life only where a frame may begin."""
    frames = [frame(bytes(size)) for size in sizes]
    whole = b"".join(frames)
    cut = data.draw(st.integers(0, len(whole)))
    ends = list(itertools.accumulate(map(len, frames), initial=0))
    left = left_of_frame(whole[:cut], 0)
    missing = min(end for end in ends if end >= cut) - cut
    assert left == missing or (left is None and missing)
    if left is not None:
        assert left_of_frame(whole[cut:], left) == 0


@given(st.binary(max_size=300), st.binary(min_size=4, max_size=4), st.integers(0, 255))
@settings(max_examples=200, deadline=None)
def test_one_whole_message_is_taken_as_what_the_parser_makes_of_it(
    payload: bytes, mask: bytes, first: int
) -> None:
    """Everything else is left to the parser."""
    plain = frame(payload)
    at = len(plain) - len(payload)
    masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
    data = bytes([first]) + plain[1 : at - 4] + mask + masked
    is_pulse = first == 0x8A and not payload
    is_message = first == 0x82 and bool(payload)
    assert only_messages(data) == ([payload] if is_message else [] if is_pulse else None)
    assert only_messages(data + b"x") is None and only_messages(data[:-1]) is None


@given(st.lists(st.sampled_from(["pulse", "short", "long"]), min_size=1, max_size=5), st.data())
@settings(max_examples=50, deadline=None)
def test_what_has_waited_together_is_taken_together_if_all_of_it_is_there(
    kinds: list[str], data: st.DataObject
) -> None:
    pieces = {"pulse": frame(b"", 10), "short": frame(b"ab"), "long": frame(b"c" * 300)}
    said = {"pulse": [], "short": [b"ab"], "long": [b"c" * 300]}
    whole = b"".join(pieces[kind] for kind in kinds)
    ends = list(itertools.accumulate(len(pieces[kind]) for kind in kinds))
    cut = data.draw(st.integers(1, len(whole)))
    told = (
        [message for kind in kinds[: ends.index(cut) + 1] for message in said[kind]]
        if (cut in ends)
        else None
    )
    assert only_messages(whole[:cut]) == told


def test_six_bytes_within_a_message_that_look_like_a_sign_of_life_are_part_of_it() -> None:
    async def test(server: Server, ear: Ear, _port: int) -> None:
        line = await Line.open(server)
        line.say(msgspec.msgpack.encode(hello()))
        pulse = shell_server.PULSE + bytes(4)
        named = msgspec.structs.replace(COMMITTED, name="aaaaaa")
        said = frame(msgspec.msgpack.encode(Fact(seq=1, event=named)))
        at = said.index(b"aaaaaa")
        masked = said[:at] + pulse + said[at + 6 :]  # no text, so it must not be understood
        for piece in (masked[:at], masked[at : at + 6], masked[at + 6 :]):
            line.connection.data_received(piece)
        assert line.closed == 1007 and ear.facts == []

    with_server(test)


@pytest.mark.parametrize("beyond", [0, 1, 3])
def test_signs_of_life_are_noted_however_they_arrive(beyond: int) -> None:
    async def test(server: Server, ear: Ear, _port: int) -> None:
        line = await Line.open(server)
        line.say(msgspec.msgpack.encode(hello()))
        pulses = frame(b"", 10) * 3
        for piece in (pulses[: 6 + beyond], pulses[6 + beyond :]):
            line.connection.heard_at = 0.0
            line.connection.data_received(piece)
            assert line.connection.heard_at > 0.0
        line.say(WHOLE)
        assert ear.facts == [("n", 1)] and line.closed is None

    with_server(test)


def test_bytes_one_by_one_are_the_same_message() -> None:
    async def test(server: Server, ear: Ear, _port: int) -> None:
        line = Line(server)
        said = (UPGRADE + KEY + GIVEN + "\r\n").encode()
        said += frame(msgspec.msgpack.encode(hello())) + frame(WHOLE)
        for byte in said:
            line.connection.data_received(bytes([byte]))
        assert ear.facts == [("n", 1)]

    with_server(test)


@pytest.mark.parametrize("pieces", [1, 5])
def test_a_message_that_is_too_large_ends_its_connection_before_it_is_read(pieces: int) -> None:
    async def test(server: Server, ear: Ear, _port: int) -> None:
        line = await Line.open(server)
        line.say(msgspec.msgpack.encode(hello()))
        size = MAX_MESSAGE_BYTES // pieces + 1
        for number in range(pieces):
            last = number == pieces - 1
            line.connection.data_received(frame(bytes(size), 0 if number else 2, fin=last))
        assert line.closed == 1009 and ear.facts == []

    with_server(test)


def test_the_largest_message_there_may_be_is_read() -> None:
    async def test(_server: Server, ear: Ear, port: int) -> None:
        async with dial(port) as agent:
            await send(agent, hello("n"))
            padding = msgspec.msgpack.encode("x" * (MAX_MESSAGE_BYTES - 100))
            whole = b"\x82\xa4type\xa9AskStatus\xa1x" + padding
            assert len(whole) <= MAX_MESSAGE_BYTES
            await agent.send(whole)
            await answered(agent)
        assert ear.requests == [AskStatus(), AskStatus()]

    with_server(test)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 1 << 20])
def test_what_is_sent_is_one_frame_with_its_length_in_the_shortest_form(size: int) -> None:
    length = len(framed(bytes(size))) - size - 2
    assert length == (0 if size < 126 else 2 if size < 65_536 else 8)
    parser = ClientProtocol(parse_uri("ws://h/"), state=Stage.OPEN)
    parser.receive_data(framed(bytes(size)))
    (found,) = parser.events_received()
    assert isinstance(found, Frame) and found.fin and found.data == bytes(size)
