"""Has a worker's handler in C write where its threads stand, and reads that (`dumped_stacks`).

The memory is one open file that the worker and whatever it forks hold, too: we set the place at
which the next dump begins, and only who has it open is sent the signal, which nobody else expects.
faulthandler does not say when it is done, so the kernel is asked: the signal is neither pending nor
blocked any more by a thread that runs its handler. A process that is stopped answers nothing, and
is not asked. A call in C that a signal interrupts, as a sleep, ends early: so this comes last.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.dumped_stacks import DumpOffer, read
from holdfast.stacks import ThreadStack

ANSWER_S = 1.0
POLL_S = 0.02
OFFER_BYTES = 1 << 16
DUMP_BYTES = 1 << 20  # that are read
ASLEEP = "TtDZX"  # states in which no handler runs

_offers = msgspec.json.Decoder(DumpOffer)


class _Signals(NamedTuple):
    """Of a process or a thread, as proc_pid_status(5) shows them: bits."""

    state: str
    pending: int
    blocked: int
    caught: int


class DumpMemory:
    """Our end of that of one worker."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._turn = asyncio.Lock()

    @classmethod
    def pair(cls) -> "tuple[DumpMemory, int]":
        """Our end, and the worker's."""
        fd = os.memfd_create("holdfast-dump", os.MFD_CLOEXEC)
        return cls(fd), os.dup(fd)

    def close(self) -> None:
        """The worker has died."""
        os.close(self._fd)
        self._fd = -1

    async def stacks(self, pid: int) -> tuple[ThreadStack, ...]:
        """Of the worker, or of a process that it has forked; empty where none can be had. Never
        raises; takes `ANSWER_S` at most, for each that asks."""
        async with self._turn:
            try:
                return await self._ask(pid)
            except (OSError, ValueError):  # it has ended; or another file by now
                return ()

    async def _ask(self, pid: int) -> tuple[ThreadStack, ...]:
        line, found, _ = os.pread(self._fd, OFFER_BYTES, 0).partition(b"\n")
        if not found:
            return ()
        offer, begin = _offers.decode(line), len(line) + 1
        process = os.pidfd_open(pid)
        try:
            bit = 1 << (offer.signal - 1)
            if not self._expects_it(pid, offer, bit):
                return ()
            blocking = {thread for thread, has in _threads(pid).items() if has.blocked & bit}
            os.ftruncate(self._fd, begin)
            os.lseek(self._fd, begin, os.SEEK_SET)  # for the worker, too
            signal.pidfd_send_signal(process, offer.signal)
        finally:
            os.close(process)
        end = asyncio.get_running_loop().time() + ANSWER_S
        while os.fstat(self._fd).st_size == begin or _runs(pid, bit, blocking):
            if asyncio.get_running_loop().time() > end:
                return ()
            await asyncio.sleep(POLL_S)
        dump = os.pread(self._fd, DUMP_BYTES, begin)
        return read(dump.decode(errors="replace"), offer, pid)

    def _expects_it(self, pid: int, offer: DumpOffer, bit: int) -> bool:
        """Whether it writes to our memory when it is sent the signal, and at once."""
        its = os.stat(f"/proc/{pid}/fd/{offer.fd}")
        has = _signals_of(Path(f"/proc/{pid}/status"))
        able = has.caught & bit and not has.pending & bit and has.state not in ASLEEP
        return bool(able) and os.path.samestat(its, os.fstat(self._fd))


def _runs(pid: int, bit: int, blocking: set[int]) -> bool:
    """Whether a thread still has to run the handler, or does; `blocking` are those that block the
    signal anyhow."""
    if _signals_of(Path(f"/proc/{pid}/status")).pending & bit:
        return True
    known = _threads(pid).items()
    return any(has.blocked & bit for thread, has in known if thread not in blocking)


def _threads(pid: int) -> dict[int, _Signals]:
    tasks = Path(f"/proc/{pid}/task")
    found = {}
    for thread in tasks.iterdir():
        try:
            found[int(thread.name)] = _signals_of(thread / "status")
        except OSError:  # it has just ended
            continue
    return found


def _signals_of(status: Path) -> _Signals:
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    pending, blocked, caught = (int(fields[one], 16) for one in ("ShdPnd", "SigBlk", "SigCgt"))
    own = int(fields["SigPnd"], 16)
    return _Signals(fields["State"].strip()[:1], pending | own, blocked, caught)
