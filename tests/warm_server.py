"""`python -m tests.warm_server FD`: imports the command line once, and forks it for each order.

The child becomes a child of whoever started the server (CLONE_PARENT), so that they wait for it,
signal it and account for it as for any other. No thread is started here, and no lock is held while
it forks; the server ends when the connection is closed.

A child that starts further processes of ours gets a server of its own, forked from this one: a job
is a tree of processes as it is without us, and none of them imports anything (`warm_tree`).
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import tempfile
import threading
from typing import Any, NoReturn

import typer

from holdfast.agent import preloading
from tests import huge_pages, warm, warm_tree
from tests.warm_tree import MAX_BYTES, MAX_FDS

CLONE_PARENT = 0x8000
NR_CLONE = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
PR_SET_PDEATHSIG = 1
ABOVE = 300  # numbers of file descriptors that no order asks for
PACKAGES = (
    "agent", "cli", "spec", "drivers", "shell", "goodput", "diagnosis", "journal", "simulation",
)  # fmt: skip
LEFT_OUT = ("__main__", "plots", "forkserver")
_tests: list[str] = []  # modules
_set_aside: list[Any] = []  # commands do not find them; to take them apart would copy them
AT_THE_FIRST_REQUEST = ("httpcore2", "anyio._backends._asyncio", "typer._adapters")


def main() -> None:
    """Serve; in a child, return what it runs."""
    gc.disable()  # imports make many objects, and no garbage
    os.environ["OMP_NUM_THREADS"] = "1"  # libraries read it once, and threads outlive no `_fork`
    _import_all()
    sys.path.pop(0)  # what -m put there: processes of ours are started with -P
    huge_pages.share()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(socket.socket(fileno=int(sys.argv[1])))


def serve(sock: socket.socket) -> None:
    """Fork for each order, until nobody can give one."""
    gc.freeze()
    gc.enable()
    while True:
        data, fds, _, _ = socket.recv_fds(sock, MAX_BYTES, MAX_FDS)
        if not data:
            return
        order = json.loads(data)
        if order["tree"] and "torch" not in sys.modules:
            _import_for_workers()
        if order["tests"] and not _tests:
            _import_tests(*order["imports"])
        ready, is_ready = os.pipe()
        pid = _fork()
        if pid == 0:
            sock.close()
            os.close(ready)
            _become(order, fds, is_ready)
        for fd in (is_ready, *fds):
            os.close(fd)
        os.read(ready, 1)
        os.close(ready)
        sock.send(json.dumps(pid).encode())


def _import_all() -> None:
    """What any command imports; none may import torch, and only those for Ray need ray, which
    runs code at the end of each process that has it."""
    for name in PACKAGES:
        package = importlib.import_module(f"holdfast.{name}")
        for found in pkgutil.walk_packages(getattr(package, "__path__", ()), f"holdfast.{name}."):
            if not found.name.endswith(LEFT_OUT) and ".drivers.ray." not in found.name:
                importlib.import_module(found.name)
    for name in AT_THE_FIRST_REQUEST:
        importlib.import_module(name)
    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(sys.modules["holdfast.cli.app"].app)  # forty verbs, of which one is used


def _import_for_workers() -> None:
    """What takes seconds in each node of a job that trains."""
    gc.disable()
    for name in importlib.import_module("holdfast.agent.environment").TORCH_PRELOAD:
        importlib.import_module(name)
    preloading.keep_operators()
    huge_pages.share()
    gc.enable()


def _import_tests(words: list[str], files: list[str]) -> None:
    """What takes seconds in each process that runs tests, and is no business of commands."""
    gc.disable()
    forked_workers = importlib.import_module("tests.forked_workers")
    _tests.extend(forked_workers.import_tests(words, files))
    forked_workers.use_first()
    huge_pages.share()
    gc.enable()


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


def _become(order: dict[str, Any], fds: list[int], is_ready: int) -> NoReturn:
    """Run the command as if it had just been started."""
    if order["session"]:
        os.setsid()
    if order["group"] >= 0:
        os.setpgid(0, order["group"])
    is_ready = fcntl.fcntl(is_ready, fcntl.F_DUPFD_CLOEXEC, ABOVE)
    _arrange(fds, [0, 1, 2, *order["kept"]])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order["env"])
    tempfile.tempdir = None  # it may have another TMPDIR
    said = ["-m", order["module"]] if order["is_main"] else ["holdfast"]
    _show([sys.executable, *said, *order["words"]], order["env"])
    os.chdir(order["folder"])
    os.write(is_ready, b"!")
    os.close(is_ready)
    _open_streams()
    sys.argv = ["holdfast", *order["words"]]
    if not order["is_main"]:
        importlib.import_module(order["module"])
    for name in ("sitecustomize", order["module"]):
        getattr(sys.modules.get(name), "adopt", lambda: None)()
    if order["tree"]:
        server = _branch()
        (warm if order["tests"] else warm_tree).adopt(server)
    if order["tests"]:  # they look at what a command does, of which building the parser is a part
        typer.main.get_command = typer.main.get_command.__wrapped__  # type: ignore[attr-defined]
    try:
        _run(order["module"], order["is_main"])
    except (Exception, SystemExit) as error:
        _end(error)
        raise


def _arrange(fds: list[int], numbers: list[int]) -> None:
    """Give what was received the numbers that it has where it came from, and close the rest."""
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, ABOVE) for fd in fds]
    os.closerange(3, ABOVE)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def _show(words: list[str], env: dict[str, str]) -> None:
    """Write words and environment where /proc shows them: by them processes are found."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        places = [int(field) for field in file.read().rpartition(")")[2].split()[45:49]]
    shown = (words, [f"{name}={value}" for name, value in env.items()])
    for start, end, texts in zip(places[::2], places[1::2], shown, strict=True):
        data = b"".join(os.fsencode(text) + b"\0" for text in texts)
        ctypes.memmove(start, data[: end - start].ljust(end - start, b"\0"), end - start)


def _open_streams() -> None:
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = _stream(1, "strict")
    sys.stderr = _stream(2, "backslashreplace")


def _stream(fd: int, errors: str) -> io.TextIOWrapper:
    """As the interpreter makes them: what goes to a terminal, or is an error, goes line by line."""
    by_lines = fd == 2 or os.isatty(fd) or "PYTHONUNBUFFERED" in os.environ
    return io.TextIOWrapper(open(fd, "wb", closefd=False), "utf-8", errors, None, by_lines)


def _branch() -> socket.socket:
    """A server for what this process will start. It goes with this process."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork():
        its.close()
        return ours
    ours.close()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _show(["(warm)"], {})  # it is no part of the job
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_aside.extend(sys.modules.pop(name, None) for name in _tests)
    if os.getppid() == parent:
        serve(its)
    os._exit(0)


def _run(module: str, is_main: bool) -> NoReturn:
    """`python -m MODULE`, or its `main`."""
    if is_main:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit()
    sys.exit(importlib.import_module(module).main())


def _end(error: Exception | SystemExit) -> None:
    """As the interpreter does, but without taking apart all that was imported, which costs a worker
    with torch more than it has done; unless it has to say something."""
    code = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        if code is None or isinstance(code, int):
            os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    main()
