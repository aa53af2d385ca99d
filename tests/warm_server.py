"""`python -m tests.warm_server FD`: imports the command line once, and forks it for each order.

The child becomes a child of whoever started the server (CLONE_PARENT), so that they wait for it,
signal it and account for it as for any other. No thread is started here, and no lock is held while
it forks; the server ends when the connection is closed.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

CLONE_PARENT = 0x8000
NR_CLONE = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
MAX_BYTES = 1 << 18
ROOM = {"HOLDFAST_TEST_ROOM": "-" * (1 << 16)}  # for the environment of a child, see `_show`
PACKAGES = (
    "agent", "cli", "spec", "drivers", "shell", "goodput", "diagnosis", "journal", "simulation",
)  # fmt: skip


def main() -> None:
    """Serve; in a child, return what it runs."""
    _import_all()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    sock = socket.socket(fileno=int(sys.argv[1]))
    while True:
        data, fds, _, _ = socket.recv_fds(sock, MAX_BYTES, 3)
        if not data:
            return
        pid = _fork()
        if pid == 0:
            sock.close()
            _become(json.loads(data), fds)
        sock.send(json.dumps(pid).encode())
        for fd in fds:
            os.close(fd)


def _import_all() -> None:
    """What any command imports; none may import torch."""
    for name in PACKAGES:
        package = importlib.import_module(f"holdfast.{name}")
        for found in pkgutil.walk_packages(getattr(package, "__path__", ()), f"holdfast.{name}."):
            if not found.name.endswith(("__main__", "plots")):
                importlib.import_module(found.name)


def _fork() -> int:
    """`os.fork`, but for the parent."""
    python, libc = ctypes.pythonapi, ctypes.CDLL(None, use_errno=True)
    python.PyOS_BeforeFork()
    pid = int(libc.syscall(NR_CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return pid


def _become(order: dict[str, Any], fds: list[int]) -> NoReturn:
    """Run the command as if it had just been started."""
    for own, fd in enumerate(fds):
        os.dup2(fd, own)
        os.close(fd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order["env"])
    _show(order["env"])
    os.chdir(order["folder"])
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = _stream(1, "strict")
    sys.stderr = _stream(2, "backslashreplace")
    sys.argv = ["holdfast", *order["words"]]
    try:
        sys.exit(importlib.import_module(order["module"]).main())
    except SystemExit as end:
        _end(end)
        raise


def _end(end: SystemExit) -> None:
    """As the interpreter does, but without taking apart all that was imported; unless it has to
    say something."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        if end.code is None or isinstance(end.code, int):
            os._exit((end.code or 0) & 0xFF)


def _show(env: dict[str, str]) -> None:
    """Write the environment where /proc shows it: by it processes know whose they are."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        start, end = map(int, file.read().rpartition(")")[2].split()[47:49])
    text = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items())
    ctypes.memmove(start, text[: end - start].ljust(end - start, b"\0"), end - start)


def _stream(fd: int, errors: str) -> io.TextIOWrapper:
    """As the interpreter makes them: what goes to a terminal, or is an error, goes line by line."""
    by_lines = fd == 2 or os.isatty(fd) or "PYTHONUNBUFFERED" in os.environ
    return io.TextIOWrapper(open(fd, "wb", closefd=False), "utf-8", errors, None, by_lines)


if __name__ == "__main__":
    main()
