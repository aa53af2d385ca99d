"""What is remembered of this machine over the jobs that ran on it: `$HOLDFAST_HOME/machines.json`.

Several machines may share the folder, so each is kept under its host name. Controllers and
`holdfast check` write, one at a time; the file is replaced whole. Nothing is kept off a machine
because of it: the nodes of a local job run here or nowhere.
"""

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.actions import Entry
from holdfast.controller.state import State
from holdfast.diagnosis import machine_memory as memories
from holdfast.diagnosis.lemons import LemonSignal, Signals
from holdfast.diagnosis.machine_memory import MachineMemory
from holdfast.drivers.records import jobs_home, write_private
from holdfast.files import read_plain

MACHINES_MAX = 1_000  # that share a folder


def this_machine() -> str:
    """Its name."""
    return socket.gethostname()


def memory() -> MachineMemory:
    """Of this machine. Raises `OSError` if the file cannot be read."""
    return _all().get(this_machine(), MachineMemory())


def note_check(failed: str) -> None:
    """This machine was checked, and `failed` is what was found. Raises `OSError`."""
    _change(lambda old: memories.checked(old, failed, by="holdfast check", now=time.time()))


class MachineBook:
    """Writes down the signals of one job's nodes, which all run on this machine."""

    def __init__(
        self,
        state: State,
        say: Callable[[str], None],
        later: Callable[[Callable[[], None]], object] = lambda act: act(),
    ) -> None:
        """`later` calls it back once the orders that follow have left: a job waits for those."""
        self._signals = Signals(state.ranks, state.workers_per_node or 1)
        self._say, self._told, self._later = say, "", later

    def hear(self, entry: Entry) -> None:
        """The next line of the journal."""
        given = self._signals.hear(entry)
        if given is not None:
            signals = [(given[0], entry.at)]
            self._later(lambda: self._write(signals, entry.at))

    def _write(self, signals: list[tuple[LemonSignal, float]], at: float) -> None:
        try:
            _change(lambda old: memories.remembered(old, signals, at))
        except OSError as error:
            why = f"the history of this machine cannot be written: {error.strerror}"
            if why != self._told:
                self._say(why)
            self._told = why


def _path() -> Path:
    return jobs_home().parent / "machines.json"


def _all() -> dict[str, MachineMemory]:
    """A file that is no such file is nothing, and is replaced: it is a memory, not a record."""
    try:
        return msgspec.json.decode(read_plain(_path()), type=dict[str, MachineMemory])
    except (FileNotFoundError, msgspec.MsgspecError):
        return {}


def _change(change: Callable[[MachineMemory], MachineMemory]) -> None:
    path, name = _path(), this_machine()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path.with_name(".machines.lock")):
        known = _all()
        known[name] = change(known.pop(name, MachineMemory()))
        newest = dict(list(known.items())[-MACHINES_MAX:])
        write_private(path, msgspec.json.encode(newest).decode())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
