"""A connection between the storage processes of two nodes: who is there, and bytes both ways.

Both sides prove that they know the job's token, by HMAC over two fresh random numbers with the
role mixed in; the token itself is never sent, and an answer cannot be used again or turned around.
Whoever fails, is slow, or sends too much is hung up on. What follows is frames (length, msgpack)
and raw payloads. It is not encrypted, like the traffic of the training itself on the same network;
payloads carry checksums of their own.
"""

import contextlib
import hashlib
import hmac
import os
import select
import socket
import struct
import time
from typing import Any, TypeVar

import msgspec

from holdfast.decoding import known

HANDSHAKE_S = 3.0
SILENCE_S = 15.0  # without a byte in the middle of something: the other side is gone
FRAME_BYTES = 64 << 10
BLOCK_BYTES = 4 << 20
COPIES = b"holdfast-storage-1\n"  # what a connection is for: copies of snapshots
COMPILED = b"holdfast-compile-1\n"  # and compiled code
LINKS = b"holdfast-measure-1\n"  # and how fast bytes pass
_NONCE_BYTES = 32
_PROOF_BYTES = hashlib.sha256().digest_size
_LENGTH = struct.Struct("<I")
_TIMEVAL = struct.Struct("@ll")

T = TypeVar("T")


class StrangerError(Exception):
    """The other side does not know the token, or does not speak this language."""


class PeerConnection:
    """An authenticated connection. Every failure is an `OSError`."""

    def __init__(self, sock: socket.socket, purpose: bytes) -> None:
        self._sock = sock
        self.purpose = purpose
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.patience(SILENCE_S)

    def patience(self, seconds: float) -> None:
        """Wait no longer than this for the next byte, or for room for one."""
        whole = int(seconds)
        value = _TIMEVAL.pack(whole, int((seconds - whole) * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._sock.setsockopt(socket.SOL_SOCKET, option, value)

    def say(self, message: msgspec.Struct) -> None:
        """Send one frame."""
        data = msgspec.msgpack.encode(message)
        self._sock.sendall(_LENGTH.pack(len(data)) + data)

    def hear(self, kind: type[T]) -> T:
        """The next frame. Raises `ConnectionError` for anything else."""
        head = self._exactly(_LENGTH.size)
        (length,) = _LENGTH.unpack(head)
        if length > FRAME_BYTES:
            raise ConnectionError(f"a frame of {length} bytes")
        data = self._exactly(length)
        try:
            return msgspec.msgpack.decode(data, type=known(kind))
        except msgspec.MsgspecError as error:
            raise ConnectionError(f"an unreadable frame: {error}") from None

    def send(self, memory: memoryview) -> None:
        """Send raw bytes."""
        self._sock.sendall(memory)

    def receive(self, memory: memoryview) -> None:
        """Fill this memory with raw bytes."""
        while len(memory):
            count = self._sock.recv_into(memory, len(memory), socket.MSG_WAITALL)
            if count == 0:
                raise ConnectionError("the connection was closed")
            memory = memory[count:]

    def pour(self, within_s: float, most_bytes: int, *, answered: bool) -> None:
        """Send zeros for so long, no more than these, and no longer than the other side takes them;
        with `answered`, until it says something."""
        zeros, end = memoryview(bytes(BLOCK_BYTES)), time.monotonic() + within_s
        waiting = select.poll()
        waiting.register(self._sock, select.POLLOUT | (select.POLLIN if answered else 0))
        while most_bytes > 0 and (left_s := end - time.monotonic()) > 0:
            seen = waiting.poll(1e3 * left_s)
            if not seen or seen[0][1] != select.POLLOUT:
                return
            with contextlib.suppress(BlockingIOError):
                most_bytes -= self._sock.send(zeros[:most_bytes], socket.MSG_DONTWAIT)

    def rate(self, first_s: float, for_s: float, skip_s: float, most_bytes: int) -> float:
        """Bytes a second that arrive in `for_s` from the first byte on, which has `first_s`; those
        of `skip_s` do not count, in which a connection gets up to speed."""
        buffer, total, counted, since = memoryview(bytearray(BLOCK_BYTES)), 0, 0, 0.0
        began, end = 0.0, time.monotonic() + first_s
        while total < most_bytes and (left_s := end - time.monotonic()) > 0:
            self.patience(max(left_s, 1e-3))
            try:
                count = self._sock.recv_into(buffer)
            except BlockingIOError:  # nothing came
                break
            if not count:
                raise ConnectionError("the connection was closed")
            now, total = time.monotonic(), total + count
            if not began:
                began, end = now, now + for_s
            if not since and now - began >= skip_s:
                counted, since = total, now
        over = time.monotonic()
        if since and over > since and total > counted:
            return (total - counted) / (over - since)
        return total / (over - began) if began and over > began else 0.0

    def until_closed(self, within_s: float) -> None:
        """Wait for the other side to hang up."""
        waiting = select.poll()
        waiting.register(self._sock, select.POLLRDHUP)  # not what it has sent and nobody reads
        waiting.poll(1e3 * within_s)

    def drop(self) -> None:
        """Hang up, and send nothing of what waits to be sent."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def _exactly(self, count: int) -> bytes:
        data = bytearray(count)
        self.receive(memoryview(data))
        return bytes(data)

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


def key_of(token: str) -> bytes:
    """What both sides know, for this use only."""
    return hmac.digest(token.encode(), b"holdfast storage", hashlib.sha256)


def owner_of(key: bytes) -> str:
    """What everybody may know of a job to tell it from another one of its name."""
    return hmac.digest(key, b"owner", hashlib.sha256).hex()[:16]


def dial(address: str, key: bytes, purpose: bytes = COPIES) -> PeerConnection:
    """Connect to HOST:PORT. Raises `OSError`, `StrangerError`."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host.strip("[]"), int(port)), HANDSHAKE_S)
    try:
        end, mine = time.monotonic() + HANDSHAKE_S, os.urandom(_NONCE_BYTES)
        sock.sendall(purpose + mine)
        answer = _read(sock, _NONCE_BYTES + _PROOF_BYTES, end)
        theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
        if not hmac.compare_digest(proof, _proof(key, b"server", mine, theirs)):
            raise StrangerError("wrong token")
        sock.sendall(_proof(key, b"client", mine, theirs))
        return PeerConnection(sock, purpose)
    except BaseException:
        sock.close()
        raise


def admit(sock: socket.socket, key: bytes) -> PeerConnection:
    """The other end of `dial`. Raises `OSError`, `StrangerError`."""
    end, mine = time.monotonic() + HANDSHAKE_S, os.urandom(_NONCE_BYTES)
    hello = _read(sock, len(COPIES) + _NONCE_BYTES, end)
    purpose, theirs = hello[: len(COPIES)], hello[len(COPIES) :]
    if purpose not in (COPIES, COMPILED, LINKS):
        raise StrangerError("protocol mismatch")
    sock.sendall(mine + _proof(key, b"server", theirs, mine))
    proof = _read(sock, _PROOF_BYTES, end)
    if not hmac.compare_digest(proof, _proof(key, b"client", theirs, mine)):
        raise StrangerError("wrong token")
    return PeerConnection(sock, purpose)


def _read(sock: socket.socket, count: int, end: float) -> bytes:
    """Exactly this many bytes, all of them before `end` (monotonic)."""
    data = b""
    while len(data) < count:
        sock.settimeout(max(0.001, end - time.monotonic()))
        more: Any = sock.recv(count - len(data))
        if not more:
            raise ConnectionError("the connection was closed")
        data += more
        if time.monotonic() > end:
            raise TimeoutError("the handshake timed out")
    return data


def _proof(key: bytes, role: bytes, client: bytes, server: bytes) -> bytes:
    return hmac.digest(key, role + client + server, hashlib.sha256)
