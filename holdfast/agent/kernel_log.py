"""What the kernel has logged since a moment: /dev/kmsg, else the journal of the machine.

In most containers neither can be read, and then it is said why. Of what there is only warnings and
what faults are known by are kept: out-of-memory kills, segmentation faults, device and disk errors,
links that go down.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

KMSG = "/dev/kmsg"
RECORD_BYTES = 8192  # at least a record, or the device refuses
READ_S = 0.3  # for all of it; the ring of a busy machine has tens of thousands of lines
JOURNAL_S = 2.0
LINES_MAX = 20
WARNING = 4  # of syslog: this and below
MARGIN_S = 5.0  # the clock of the log may be off by this
SAYS_MUCH = re.compile(
    r"out of memory|oom|killed process|segfault|trap|xid|nvrm|nvlink|i/o error|ext4|xfs|nfs"
    r"|link (?:is )?(?:up|down)|mce|ecc|hung task|blocked for more than|remount",
    re.IGNORECASE,
)


class KernelLines(NamedTuple):
    """The newest lines, or why there are none."""

    lines: tuple[str, ...] = ()
    unread: str = ""


def kernel_log(since_s: float, path: str = KMSG) -> KernelLines:
    """What was logged in the last `since_s` seconds. Never raises."""
    try:
        return KernelLines(tuple(_ring(time.monotonic() - since_s - MARGIN_S, path)[-LINES_MAX:]))
    except OSError as error:
        why = f"{path}: {error.strerror}"
    return _journal(since_s, why)


def opened(path: str | Path) -> int:
    """The log, to be read without waiting. Raises `OSError` where it may not be read."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def records(fd: int) -> Iterator[bytes]:
    """What there is to read: of the device one record at a time, of a plain file its bytes."""
    while True:
        try:
            data = os.read(fd, RECORD_BYTES)
        except BlockingIOError:
            return
        except BrokenPipeError:  # the oldest were overwritten before we came
            continue
        if not data:
            return
        yield data


def _ring(since: float, path: str) -> list[str]:
    fd, end = opened(path), time.monotonic() + READ_S
    found: list[str] = []
    try:
        for record in records(fd):
            if (line := _told(record.decode(errors="replace"), since)) is not None:
                found.append(line)
            if time.monotonic() >= end:
                break
    finally:
        os.close(fd)
    return found


def _told(record: str, since: float) -> str | None:
    """A record reads `priority,number,microseconds,flags;text`, then lines about its device."""
    head, _, rest = record.partition(";")
    fields = head.split(",")
    if len(fields) < 3 or not (fields[0].isdecimal() and fields[2].isdecimal()):
        return None
    at, text = int(fields[2]) / 1e6, rest.partition("\n")[0]
    severe = int(fields[0]) & 7 <= WARNING
    if at < since or not (severe or SAYS_MUCH.search(text)):
        return None
    return f"[{at:.3f}] {text}"


def _journal(since_s: float, why: str) -> KernelLines:
    program = shutil.which("journalctl")
    if program is None:
        return KernelLines(unread=f"{why}; there is no journalctl")
    command = [
        program, "--dmesg", "--no-pager", "--quiet", "--output=short-iso", f"--lines={LINES_MAX}",
        f"--since=-{int(since_s + MARGIN_S)}s",
    ]  # fmt: skip
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=JOURNAL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return KernelLines(unread=f"{why}; journalctl: {error}")
    lines = tuple(ran.stdout.decode(errors="replace").splitlines()[-LINES_MAX:])
    return KernelLines(lines, "" if lines else f"{why}; the journal has no lines of the kernel")
