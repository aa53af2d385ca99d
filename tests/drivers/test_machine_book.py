"""This machine is remembered over local jobs, in one file that several processes write."""

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.actions import Entry
from holdfast.cli import main, output
from holdfast.controller.state import Limits, State
from holdfast.diagnosis import machine_memory as memories
from holdfast.diagnosis.lemons import LemonSignal
from holdfast.drivers import machine_book
from holdfast.events import NodeLost, NodeLostReason

NOW = time.time()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def lost(at: float, *, planned: bool = False) -> Entry:
    return Entry(1, at, NodeLost(node="n", reason=NodeLostReason.SILENT, planned=planned), ())


def book() -> machine_book.MachineBook:
    def say(text: str) -> None:
        raise AssertionError(text)

    return machine_book.MachineBook(State(limits=Limits(node_count=1)), say)


def test_what_jobs_met_with_here_adds_up_and_what_was_planned_does_not() -> None:
    book().hear(lost(NOW))
    book().hear(lost(NOW + 2))
    book().hear(lost(NOW + 4, planned=True))
    assert memories.counts(machine_book.memory(), NOW) == {LemonSignal.LOST: 2}


def test_what_is_written_may_wait_until_orders_have_left_and_says_when_it_happened() -> None:
    waits: list[Callable[[], None]] = []
    state = State(limits=Limits(node_count=1))
    machine_book.MachineBook(state, print, waits.append).hear(lost(NOW))
    assert memories.counts(machine_book.memory(), NOW) == {}
    for write in waits:
        write()
    assert machine_book.memory().signals == {LemonSignal.LOST: [int(NOW)]}


def test_jobs_that_write_at_once_lose_nothing() -> None:
    """Each of them reads, changes and replaces the one file."""

    def write(first: int) -> None:
        mine = book()
        for at in range(first, first + 2):
            mine.hear(lost(NOW + at))

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memories.counts(machine_book.memory(), NOW) == {LemonSignal.LOST: 8}


def test_a_file_that_is_none_is_nothing_and_is_replaced(home: Path) -> None:
    home.mkdir()
    (home / "machines.json").write_text("{")
    assert machine_book.memory() == memories.MachineMemory()
    machine_book.note_check("memory: 3 words differ")
    assert machine_book.memory().failed == "memory: 3 words differ"
    assert machine_book.memory().cordon is None, "it is the only one"


def test_what_cannot_be_written_is_said_once_and_the_job_goes_on(home: Path) -> None:
    home.write_text("in the way")
    told: list[str] = []
    mine = machine_book.MachineBook(State(limits=Limits(node_count=1)), told.append)
    mine.hear(lost(NOW))
    mine.hear(lost(NOW + 2))
    assert len(told) == 1 and "cannot be written" in told[0]


def test_nodes_shows_this_machine_though_there_is_no_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_json_wanted", False)
    machine_book.note_check("")
    book().hear(lost(NOW))
    assert main(["nodes", "--on", "local"]) == 0
    shown = capsys.readouterr().out
    assert socket.gethostname() in shown and "1 of 7: 1 losses" in shown and "passed" in shown
    assert main(["nodes", "--on", "local", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["machine"]["score"], told["nodes"]) == (1, [])
