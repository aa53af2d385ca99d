"""Asking a controller that does not answer, cannot be reached, or speaks for another version."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.sync.server import ServerConnection, serve

from holdfast import __version__
from holdfast.cli.story import headline
from holdfast.drivers import client, records
from holdfast.errors import Error
from holdfast.messages import AskStatus, StatusReply
from holdfast.spec import Job, job_from_dict

JOB: Job = job_from_dict({"name": "run", "command": ["true"]}, where="test")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Of a job whose controller lives: somebody holds its lock."""
    found = tmp_path / "run"
    lock = records.create(JOB, found, now=1.0)
    yield found
    os.close(lock)


def at(folder: Path, port: int, pid: int = 0) -> None:
    """Its controller says that it listens there."""
    address = records.Address(host="127.0.0.1", port=port, pid=pid or os.getpid())
    records.write_private(folder / "controller.json", msgspec.json.encode(address).decode())


@pytest.fixture
def answering(folder: Path) -> Iterator[Callable[[bytes], None]]:
    """Have a controller answer this to every question."""
    told: list[bytes] = []

    def answer(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(told[0])

    with serve(answer, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        at(folder, server.socket.getsockname()[1])
        yield told.append
        server.shutdown()
        thread.join()


def test_a_controller_that_lives_and_cannot_be_reached_has_not_died(folder: Path) -> None:
    found = client.status(folder)
    assert found.controller == "starting", "it has not said yet where it listens"
    at(folder, 9)  # as from another network namespace
    found = client.status(folder)
    assert found.controller == "unreachable"
    assert "its controller runs" in headline(found) and "died" not in headline(found)


def test_one_that_holds_no_lock_has_died(tmp_path: Path) -> None:
    os.close(records.create(JOB, tmp_path / "run", now=1.0))
    at(tmp_path / "run", 9)
    assert client.status(tmp_path / "run").controller == "away"


@pytest.mark.parametrize(
    "answer",
    [
        b"\xc1 no message at all",
        msgspec.msgpack.encode({"type": "OfTomorrow"}),
        msgspec.msgpack.encode(StatusReply(status=b'{"job": "run", "phase": 7}')),
    ],
)
def test_one_that_answers_as_another_version_would_is_told_with_a_slug(
    folder: Path, answering: Callable[[bytes], None], answer: bytes
) -> None:
    answering(answer)
    with pytest.raises(Error) as raised:
        client.status(folder)
    assert raised.value.slug == "controller-version"
    assert f"Holdfast {__version__}" in raised.value.why


def _answers_late(connection: Connection, work_s: float) -> None:
    """A controller that does something else first, for so many seconds of the processor."""

    def answer(client: ServerConnection) -> None:
        client.recv()
        while time.process_time() < work_s:
            pass
        client.send(msgspec.msgpack.encode(StatusReply(status=b"{}")))

    with serve(answer, "127.0.0.1", 0) as server:
        connection.send(server.socket.getsockname()[1])
        server.serve_forever()


@pytest.fixture
def late() -> Iterator[Callable[[float], tuple[int, int]]]:
    """Start such a controller; its port and pid."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    started: list[Any] = []

    def start(work_s: float) -> tuple[int, int]:
        started.append(context.Process(target=_answers_late, args=(theirs, work_s)))
        started[0].start()
        return ours.recv(), started[0].pid

    yield start
    for process in started:
        process.kill()
        process.join()


def test_a_controller_that_works_is_waited_for_and_one_that_does_nothing_is_not(
    folder: Path, late: Callable[[float], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, pid = late(1.0)
    at(folder, port, pid)
    assert isinstance(client.request(folder, AskStatus(), 0.5), StatusReply)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(client, "TIMEOUT_S", 0.3)
    with pytest.raises(ConnectionError, match="does not respond"):
        client.request(folder, AskStatus())
