"""Running a group of checks in a process of its own, for so long and no longer.

The process has a session of its own and is killed with all its children when its time is up; it
also has an alarm set, so that it ends without us, if later. What it has told by then counts. One
that was ready and got no processor for most of its time has found nothing: the machine is busy.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from holdfast.checks.outcome import CheckFinding, CheckResult, parse
from holdfast.checks.plan import CheckGroup

KILL_S = 2.0  # for a process that was killed to be gone; one that waits for a disk may stay
REPEAT = "run `holdfast check` again; a machine that fails twice should not train"
BUSY = "see with `top` what keeps the processors busy, or raise the CPU limit of the container"


def run(group: CheckGroup) -> list[CheckResult]:
    """The result of each check of the group."""
    command = [sys.executable, "-P", "-m", group.module, msgspec.json.encode(group.order).decode()]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    missing = None
    try:
        out, err = process.communicate(timeout=group.order.deadline_s)
    except subprocess.TimeoutExpired:
        missing = late(group.order.deadline_s, _starved_s(process.pid))
        out, err = _end(process)
    finally:
        _kill(process)
        for path in group.leaves:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    missing = missing or _ending(process, group, err)
    return [*_results(group.names, out.splitlines(), missing)]


def late(deadline_s: float, starved_s: float) -> CheckFinding:
    """Of a check that has not ended in time, and was ready and got no processor for so long."""
    if starved_s > deadline_s / 2:
        why = f"it got no processor for {starved_s:.0f} of its {deadline_s:g} s; not checked"
        return CheckFinding("skipped", why, help=BUSY)
    return CheckFinding("failed", f"timed out after {deadline_s:g} s", help=REPEAT)


def _starved_s(pid: int) -> float:
    """Seconds that its main thread was ready and had no processor (sched-stats.rst of Linux); 0
    where the kernel does not count them."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _results(
    names: Sequence[str], lines: Iterable[bytes], missing: CheckFinding
) -> Iterable[CheckResult]:
    told = {one.name: one for one in map(parse, lines) if one is not None}
    for name in names:
        yield told.get(name) or CheckResult(name=name, **missing._asdict())


def _end(process: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    """Kill it; what it has written."""
    _kill(process)
    try:
        return process.communicate(timeout=KILL_S)
    except subprocess.TimeoutExpired as stuck:
        return stuck.stdout or b"", stuck.stderr or b""


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """It and its children, also those that it has left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _ending(process: "subprocess.Popen[bytes]", group: CheckGroup, err: bytes) -> CheckFinding:
    last = (err.decode(errors="replace").strip().splitlines() or [""])[-1]
    code = process.returncode
    if code == -signal.SIGALRM:
        return late(group.order.deadline_s, 0.0)
    if code is None:
        how = "does not end"
    elif code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    else:
        how = f"exited with status {code}"
    return CheckFinding("failed", f"the check {how}{': ' if last else ''}{last}", help=REPEAT)
