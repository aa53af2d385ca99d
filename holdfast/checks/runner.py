"""Running a group of checks in a process of its own, for so long and no longer.

The process has a session of its own and is killed with all its children when its time is up; it
also has an alarm set, so that it ends in time without us. What it has told by then counts.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.checks.outcome import CheckResult, parse
from holdfast.checks.plan import CheckGroup

KILL_S = 2.0  # for a process that was killed to be gone; one that waits for a disk may stay
REPEAT = "run `holdfast check` again; a machine that fails twice should not train"


def run(group: CheckGroup) -> list[CheckResult]:
    """The result of each check of the group."""
    command = [sys.executable, "-P", "-m", group.module, msgspec.json.encode(group.order).decode()]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    late = False
    try:
        out, err = process.communicate(timeout=group.order.deadline_s)
    except subprocess.TimeoutExpired:
        late = True
        out, err = _end(process)
    finally:
        _kill(process)
        for path in group.leaves:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    why = _late(group) if late or process.returncode == -signal.SIGALRM else _ending(process, err)
    return [*_results(group.names, out.splitlines(), why)]


def _results(names: Sequence[str], lines: Iterable[bytes], why: str) -> Iterable[CheckResult]:
    told = {one.name: one for one in map(parse, lines) if one is not None}
    for name in names:
        found = told.get(name)
        yield found or CheckResult(name=name, state="failed", found=why, help=REPEAT)


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


def _late(group: CheckGroup) -> str:
    return f"timed out after {group.order.deadline_s:g} s"


def _ending(process: "subprocess.Popen[bytes]", err: bytes) -> str:
    last = (err.decode(errors="replace").strip().splitlines() or [""])[-1]
    code = process.returncode
    if code is None:
        how = "does not end"
    elif code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    else:
        how = f"exited with status {code}"
    return f"the check {how}{': ' if last else ''}{last}"
