"""Checks without torch: the clock, shared memory, memory and disks.

python -m holdfast.checks.host '{"check": "clock"}'
"""

import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable

import msgspec

from holdfast.checks.outcome import CheckFinding, tell
from holdfast.checks.plan import DISK, MIB, CheckOrder

PATTERNS = (0x00, 0xFF, 0x55, 0xAA)
BLOCK = MIB
SHM_LEAST_BYTES = 64 * MIB  # what container runtimes give unless told otherwise: too little
CLOCK_S, DRIFT = 0.25, 0.002  # a wall clock that is being adjusted runs 0.0005 off at most
OLDEST = 1_700_000_000.0  # seconds since the epoch: this file is younger


def order() -> CheckOrder:
    """What this process is told. Whoever has started it ends it in time; if nobody does, it ends by
    itself after twice that."""
    told = msgspec.json.decode(sys.argv[1], type=CheckOrder)
    signal.alarm(max(1, round(2 * told.deadline_s)))
    return told


def main() -> None:
    """The check that is asked for."""
    told = order()
    checks: dict[str, Callable[[], CheckFinding]] = {
        "clock": clock,
        "shared memory": shared_memory,
        "memory": lambda: memory(told.bytes),
        "disk": lambda: disk(told.file, told.bytes),
    }
    name = f"{DISK}{os.path.dirname(told.file)}" if told.file else told.check
    tell(name, checks[told.check])


def clock() -> CheckFinding:
    """The wall clock is not in the past and runs as fast as the monotonic one."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(CLOCK_S)
    passed, lasted = time.time() - wall, time.monotonic() - steady
    drift = abs(passed - lasted) / lasted
    remedy = "synchronise the clock (chrony, systemd-timesyncd) and check the machine's battery"
    if wall < OLDEST:
        return CheckFinding(
            "failed", f"the date is {time.strftime('%Y-%m-%d', time.gmtime(wall))}", help=remedy
        )
    if drift > DRIFT:
        return CheckFinding("failed", f"it ran {passed:.4f} s in {lasted:.4f} s", help=remedy)
    return CheckFinding(
        "ok", f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(wall))} UTC, runs evenly"
    )


def shared_memory(path: str = "/dev/shm") -> CheckFinding:
    """/dev/shm has room for the processes of data loaders."""
    remedy = "set resources.shm in the job file, or run the container with --shm-size"
    try:
        found = os.statvfs(path)
    except OSError as error:
        return CheckFinding("failed", f"{path}: {error.strerror}", help=remedy)
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    words = f"{path} has {size / MIB:,.0f} MiB, {free / MIB:,.0f} MiB free"
    if size > SHM_LEAST_BYTES and free > SHM_LEAST_BYTES:
        return CheckFinding("ok", words)
    small = size <= SHM_LEAST_BYTES  # as the container is set, wherever it runs
    return CheckFinding("failed", words, help=remedy, environment=small)


def memory(size: int) -> CheckFinding:
    """Patterns that alternate, and one that differs from place to place, are read as written."""
    blocks = size // BLOCK
    area = mmap.mmap(-1, blocks * BLOCK)
    noise = random.Random(7).randbytes(BLOCK)
    try:
        for block in [*(bytes([pattern]) * BLOCK for pattern in PATTERNS), noise]:
            if bad := _kept_otherwise(area, blocks, block, turned=block is noise):
                words = f"read-back mismatch in {bad} of {blocks} blocks of 1 MiB"
                return CheckFinding("failed", words, help="replace the machine's memory")
    finally:
        area.close()
    return CheckFinding("ok", f"{blocks} MiB, {len(PATTERNS) + 1} patterns read as written")


def _kept_otherwise(area: mmap.mmap, blocks: int, block: bytes, *, turned: bool) -> int:
    """How many blocks are not read as they were written."""
    for n in range(blocks):
        area[n * BLOCK : (n + 1) * BLOCK] = _turned(block, n) if turned else block
    return sum(
        area[n * BLOCK : (n + 1) * BLOCK] != (_turned(block, n) if turned else block)
        for n in range(blocks)
    )


def _turned(block: bytes, number: int) -> bytes:
    """Another block for each place, so that one that lies elsewhere is noticed."""
    by = number * 8 % BLOCK
    return block[by:] + block[:by]


def disk(file: str, size: int) -> CheckFinding:
    """What is written, flushed and dropped from the page cache is read as written."""
    remedy = "check free space, rights and the disk's log (dmesg); use another place"
    data = random.Random(file).randbytes(BLOCK)
    try:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except PermissionError as error:
        words = f"{error.strerror} for user {os.geteuid()}, group {os.getegid()}"
        return CheckFinding("failed", words, help=remedy, environment=True)
    except OSError as error:
        return CheckFinding("failed", f"{error.strerror}", help=remedy)
    try:
        return _written_and_read(fd, data, size // BLOCK, remedy)
    except OSError as error:
        return CheckFinding("failed", f"{error.strerror}", help=remedy)
    finally:
        os.close(fd)
        os.unlink(file)


def _written_and_read(fd: int, data: bytes, blocks: int, remedy: str) -> CheckFinding:
    began = time.monotonic()
    for number in range(blocks):
        _write(fd, _turned(data, number))
    os.fsync(fd)
    written = time.monotonic()
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(fd, 0, os.SEEK_SET)
    bad = sum(_read(fd) != _turned(data, number) for number in range(blocks))
    read_s = time.monotonic() - written
    speed = f"{blocks / (written - began):,.0f} MiB/s written and flushed"
    if bad:
        words = f"read-back mismatch in {bad} of {blocks} blocks of 1 MiB"
        return CheckFinding("failed", words, help=remedy)
    return CheckFinding("ok", f"{blocks} MiB read as written; {speed}, {blocks / read_s:,.0f} read")


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _read(fd: int) -> bytes:
    parts: list[bytes] = []
    while (missing := BLOCK - sum(map(len, parts))) and (part := os.read(fd, missing)):
        parts.append(part)
    return b"".join(parts)


if __name__ == "__main__":
    main()
