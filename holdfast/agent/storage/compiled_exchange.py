"""Compiled code from node to node: what this one has, handed out; what another has, brought here.

The one that asks says first what machine it is on; only one of the same kind is told what there is.
It then takes, one after the other, the files that it lacks, each with the SHA-256 of what was sent.
Whatever stands against one (bytes that changed on the way, a disk that is full, the other node
gone) ends the fetch with a reason. What has come until then stays: each file is good by itself.
"""

import hashlib
import time
from pathlib import Path

import msgspec

from holdfast import compiled_code
from holdfast.agent.storage.peer_connection import (
    BLOCK_BYTES,
    COMPILED,
    PeerConnection,
    StrangerError,
    dial,
)
from holdfast.compiled_code import CompiledFile
from holdfast.decoding import known
from holdfast.files import open_plain

INDEX_BYTES = 16 << 20


class CompiledAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What is there for this kind of machine? Answered by `CompiledIndex`."""

    machine: str


class CompiledIndex(msgspec.Struct, frozen=True, kw_only=True):
    """So many bytes follow: the files, as msgpack. Or why there are none."""

    size: int = 0
    why: str = ""


class CompiledWant(msgspec.Struct, frozen=True, kw_only=True):
    """Send this one. Answered by `CompiledPart`."""

    name: str


class CompiledPart(msgspec.Struct, frozen=True, kw_only=True):
    """Its bytes follow, and then a `CompiledSum`; or why not."""

    size: int = 0
    why: str = ""


class CompiledSum(msgspec.Struct, frozen=True, kw_only=True):
    """SHA-256 of what was sent."""

    sha256: str


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """What a fetch came to. `why`: it ended before its end."""

    count: int = 0
    size: int = 0
    seconds: float = 0.0
    why: str = ""


# ── handing out ───────────────────────────────────────────────────────────────────────────────


def hand_out(connection: PeerConnection, folder: Path, machine: str) -> None:
    """Answer one that has connected for this, until it hangs up. Raises `OSError`."""
    asked = connection.hear(CompiledAsk)
    if asked.machine != machine:
        connection.say(CompiledIndex(why="its code is for another kind of machine"))
        return
    files = {file.name: file for file in compiled_code.listed(folder)}
    index = msgspec.msgpack.encode(list(files.values()))
    connection.say(CompiledIndex(size=len(index)))
    connection.send(memoryview(index))
    while True:
        _send(connection, folder, files.get(connection.hear(CompiledWant).name))


def _send(connection: PeerConnection, folder: Path, file: CompiledFile | None) -> None:
    """Only what was listed, and as it was then: a compiler may be writing."""
    data = None if file is None else _content(folder, file)
    if data is None:
        connection.say(CompiledPart(why="it has changed"))
        return
    connection.say(CompiledPart(size=len(data)))
    connection.send(memoryview(data))
    connection.say(CompiledSum(sha256=hashlib.sha256(data).hexdigest()))


def _content(folder: Path, file: CompiledFile) -> bytes | None:
    path = folder / file.name
    try:
        with open_plain(path) as opened:
            data = opened.read(file.size + 1)
        now = path.lstat()
    except OSError:
        return None
    return data if (now.st_size, now.st_mtime_ns) == (len(data), file.mtime_ns) else None


# ── bringing here ─────────────────────────────────────────────────────────────────────────────


def fetch(address: str, key: bytes, folder: Path, machine: str) -> Fetched:
    """Bring here what the node at HOST:PORT has and this one lacks. Raises nothing."""
    taking = _Taking(folder, time.monotonic())
    try:
        connection = dial(address, key, COMPILED)
    except (OSError, StrangerError) as error:
        return taking.result(str(error))
    try:
        taking.all_of(connection, machine)
    except (OSError, ValueError) as error:
        return taking.result(str(error))
    finally:
        connection.close()
    return taking.result(taking.why)


class _Taking:
    """One fetch."""

    def __init__(self, folder: Path, began: float) -> None:
        self._folder, self._began = folder, began
        self._count = self._size = 0
        self.why = ""

    def result(self, why: str) -> Fetched:
        seconds = time.monotonic() - self._began
        return Fetched(count=self._count, size=self._size, seconds=round(seconds, 3), why=why)

    def all_of(self, connection: PeerConnection, machine: str) -> None:
        """Raises `OSError`, `ValueError`; `why` says what else ended it."""
        connection.say(CompiledAsk(machine=machine))
        told = connection.hear(CompiledIndex)
        if told.why or not 0 <= told.size <= INDEX_BYTES:
            self.why = told.why or f"an index of {told.size} bytes"
            return
        index = bytearray(told.size)
        connection.receive(memoryview(index))
        files = msgspec.msgpack.decode(index, type=known(list[CompiledFile]))
        wanted = compiled_code.lacking(self._folder, files[: compiled_code.MOST_FILES])
        for file in wanted:
            self.why = self._against(file) or self._one(connection, file)
            if self.why:
                return

    def _against(self, file: CompiledFile) -> str:
        if file.size < 0 or self._size + file.size > compiled_code.MOST_BYTES:
            return f"it has more than {compiled_code.MOST_BYTES >> 20} MiB"
        if file.size > compiled_code.room(self._folder):
            return f"there is no room for {file.name} ({file.size} bytes)"
        return ""

    def _one(self, connection: PeerConnection, file: CompiledFile) -> str:
        """Take this one; why not, where that ends the fetch."""
        connection.say(CompiledWant(name=file.name))
        part = connection.hear(CompiledPart)
        if part.why:
            return ""  # it will be there as another one, next time
        if part.size != file.size:
            return f"{file.name} has {part.size} bytes, not {file.size}"
        digest, left = hashlib.sha256(), file.size
        with compiled_code.arriving(self._folder, file) as opened:
            while left:
                block = bytearray(min(left, BLOCK_BYTES))
                connection.receive(memoryview(block))
                digest.update(block)
                opened.write(block)
                left -= len(block)
            if connection.hear(CompiledSum).sha256 != digest.hexdigest():
                raise ValueError(f"{file.name} was corrupted in transit")
        self._count, self._size = self._count + 1, self._size + file.size
        return ""
