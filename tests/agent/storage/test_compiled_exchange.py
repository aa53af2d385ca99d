"""Compiled code passes between the storage processes of two nodes, whatever stands against it."""

import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from holdfast import compiled_code
from holdfast.agent.storage import compiled_watch, protocol
from holdfast.agent.storage.compiled_exchange import (
    CompiledAsk,
    CompiledIndex,
    CompiledPart,
    CompiledSum,
    CompiledWant,
    fetch,
)
from holdfast.agent.storage.peer_connection import PeerConnection, admit, key_of
from holdfast.compiled_code import CompiledFile
from tests.agent.storage.site import TOKEN, Site
from tests.patience import PATIENCE_S

KEY = key_of(TOKEN)
MACHINE = compiled_code.machine()


def made(folder: Path, count: int = 3) -> dict[str, bytes]:
    """Code that a compiler has left there."""
    found = {f"inductor/a{n}/ca{n}.so": os.urandom(1000 + n) for n in range(count)}
    found["triton/k/kernel.cubin"] = os.urandom(5_000_000)  # more than one block
    for name, content in found.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return found


def held(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.slow
def test_a_node_gets_what_another_has_compiled_and_says_so(tmp_path: Path) -> None:
    nodes = [Site(tmp_path, compiled=str(tmp_path / home)) for home in ("member", "spare")]
    member, spare = nodes
    code = made(tmp_path / "member")
    try:
        member.start()
        spare.start()
        seen = member.news(4 * compiled_watch.LOOK_S)
        assert isinstance(seen, protocol.CompiledSeen) and seen.stamp
        assert spare.sock is not None
        protocol.send(spare.sock, protocol.FetchCompiled(name="m", address=member.address))
        came = spare.news()
        assert isinstance(came, protocol.CompiledFetched) and came.why == ""
        assert (came.count, came.size) == (len(code), sum(map(len, code.values())))
        assert held(tmp_path / "spare") == code
        assert spare.news(4 * compiled_watch.LOOK_S) == seen, "what it has now is the same"
        member.kill()
        member.listener.close()
        protocol.send(spare.sock, protocol.FetchCompiled(name="m", address=member.address))
        gone = spare.news()
        assert isinstance(gone, protocol.CompiledFetched) and gone.why and gone.count == 0
    finally:
        for node in nodes:
            node.close()


@contextmanager
def member(files: dict[str, bytes], says: bytes | None = None, most: int = 99) -> Iterator[str]:
    """One that hands out these, instead of the bytes of each what it `says`, and is gone after so
    many; its address."""
    server = socket.create_server(("127.0.0.1", 0))
    index = [CompiledFile(name, len(data), 1, False) for name, data in files.items()]

    def answer() -> None:
        sock, _ = server.accept()
        with sock:
            connection = admit(sock, KEY)
            assert connection.hear(CompiledAsk).machine == MACHINE
            packed = msgspec.msgpack.encode(index)
            connection.say(CompiledIndex(size=len(packed)))
            connection.send(memoryview(packed))
            for _ in range(min(most, len(files))):
                hand_over(connection, files, says)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.close()
        thread.join(PATIENCE_S)


def hand_over(connection: PeerConnection, files: dict[str, bytes], says: bytes | None) -> None:
    try:
        data = files[connection.hear(CompiledWant).name]
        connection.say(CompiledPart(size=len(data)))
        connection.send(memoryview(data if says is None else says))
        connection.say(CompiledSum(sha256=hashlib.sha256(data).hexdigest()))
    except OSError:  # it has heard enough
        pass


def test_bytes_that_changed_on_the_way_are_not_kept(tmp_path: Path) -> None:
    with member({"inductor/a/c.so": b"good"}, says=b"evil") as address:
        came = fetch(address, KEY, tmp_path, MACHINE)
    assert "corrupted in transit" in came.why and came.count == 0 and held(tmp_path) == {}


def test_a_member_that_dies_leaves_whole_files_behind(tmp_path: Path) -> None:
    files = {f"inductor/a/c{n}.so": b"code" for n in range(3)}
    with member(files, most=2) as address:
        came = fetch(address, KEY, tmp_path, MACHINE)
    assert came.why and came.count == 2
    assert held(tmp_path).items() <= files.items() and len(held(tmp_path)) == 2


@pytest.mark.parametrize("name", ["../c.so", "/tmp/c.so", "inductor/../../c.so", "cuda/index"])
def test_a_name_that_leads_elsewhere_ends_it(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "compiled"
    with member({"inductor/a/c.so": b"code", name: b"evil"}, most=0) as address:
        came = fetch(address, KEY, folder, MACHINE)
    assert "is not the name of a compiled file" in came.why and held(tmp_path) == {}


def test_a_full_disk_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_code, "ROOM_BYTES", 1 << 60)  # that must stay free
    with member({"inductor/a/c.so": b"code"}, most=0) as address:
        came = fetch(address, KEY, tmp_path, MACHINE)
    assert "no room" in came.why and came.count == 0


def test_no_more_is_taken_than_a_cache_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_code, "MOST_BYTES", 9)
    files = {f"inductor/a/c{n}.so": b"code" for n in range(3)}
    with member(files, most=2) as address:
        came = fetch(address, KEY, tmp_path, MACHINE)
    assert came.count == 2 and "more than" in came.why


@pytest.mark.slow
def test_code_for_another_kind_of_machine_and_files_under_way_stay_where_they_are(
    tmp_path: Path,
) -> None:
    node = Site(tmp_path, compiled=str(tmp_path / "member"))
    code = made(tmp_path / "member", 1)
    try:
        node.start()
        other = fetch(node.address, KEY, tmp_path / "spare", "another")
        assert "another kind of machine" in other.why and other.count == 0
        late = tmp_path / "member" / "inductor" / "locks" / "x.lock"
        late.parent.mkdir()
        late.touch()
        assert fetch(node.address, KEY, tmp_path / "spare", MACHINE).why == ""
        assert held(tmp_path / "spare") == code
        assert fetch("127.0.0.1:1", KEY, tmp_path / "spare", MACHINE).why, "nobody listens"
    finally:
        node.close()
