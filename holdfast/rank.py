"""The rank of a worker, which may come after its process has begun.

A warm worker runs its script ahead and has no rank yet; its agent sends it later, one line of JSON
(`Assignment`) over a socket. Whatever cannot be done without a rank waits for that line, wherever
in the script it is asked for: `join()`, a look at RANK and the like in `os.environ`, a process
group, a GPU, a step of an optimizer, the end of the script. So a script finds what it would have
found in a process that was started with its rank, and what stands above the first such place is
done ahead. End of file instead of a line: the worker is not needed any more and ends at once.

The line is looked at and not taken, because threads and forked children of the script may wait for
it as well. Starting such a script again without running it ahead would be slower and need more to
be remembered.
"""

import contextlib
import functools
import os
import select
import socket
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

import msgspec

from holdfast.diagnosis.logs import is_library
from holdfast.files import not_the_worker
from holdfast.messages import Assignment

CONTROL = "HOLDFAST_CONTROL_FD"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
VARIABLES = frozenset(
    (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE", ERROR_FILE),
        *("HOLDFAST_ATTEMPT", "HOLDFAST_REDO_UNTIL", "HOLDFAST_RESTORE_BELOW"),
        *("HOLDFAST_RESTORE_COMMITTED", "HOLDFAST_BAD_STEPS", "HOLDFAST_SKIPS"),
    )
)
LINE_BYTES = 64 * 1024
END = "its end"  # where a script waits that has never asked for its rank
# A GPU is among them because a warm worker would take memory from the one that trains on it.
_CALLS = (
    ("torch.distributed", "init_process_group"),
    ("torch.distributed.distributed_c10d", "init_process_group"),
    ("torch.cuda", "_lazy_init"),
    ("torch.cuda.memory", "_lazy_init"),  # these two have taken the name
    ("torch.cuda.random", "_lazy_init"),
)

_JOINS = frozenset(("accelerate.state",))  # modules of libraries in which a script joins anyway

Thing = TypeVar("Thing")
on_exception: list[Callable[[], object]] = []
"""Called before an exception of the script counts."""
on_rank: list[Callable[[], object]] = []
"""Called when the rank of a worker that ran ahead has come, before its script goes on."""
while_waiting: list[Callable[[int], object]] = []
"""Called when a worker begins to wait for its rank, with the socket on which that will come; the
last one first."""
looks_again: list[Callable[[FrameType], bool]] = []
"""Whether whoever looks for the rank in this frame is made to look once more when it has come: then
there is none for now, and nothing waits."""
_LOOKUP = ("os", "collections.abc", "_collections_abc")  # modules between environ and who reads it
_assignments = msgspec.json.Decoder(Assignment)  # made ahead: it takes milliseconds
_undo: list[Callable[[], object]] = []  # what `run_ahead` has set up
_unsaid: list[str] = []
_prepares = False  # what needs the rank is none of the script's lines


class _Waiting(os._Environ[str]):
    """The environment of a process without a rank: whoever asks for the rank waits for it.

    Only for names: iterating shows what is there, because many libraries copy the environment for a
    child that asks for no rank.
    """

    def __getitem__(self, name: str) -> str:
        if name in VARIABLES:
            frame = reader()
            if not any(again(frame) for again in looks_again):
                need(name)
        return os._Environ.__getitem__(self, name)  # by now a plain one

    def __setitem__(self, name: str, value: str) -> None:
        if name in VARIABLES:
            need(name)
        os._Environ.__setitem__(self, name, value)

    def __delitem__(self, name: str) -> None:
        if name in VARIABLES:
            need(name)
        os._Environ.__delitem__(self, name)


def reader() -> FrameType:
    """Where the environment is read, asked by its `__getitem__`."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__") in _LOOKUP:
        frame = frame.f_back
    return frame


def run_ahead() -> None:
    """From here on, until the rank has come, whatever needs it waits for it."""
    environment, plain = os.environ, type(os.environ)
    environment.__class__ = _Waiting
    _undo.append(lambda: setattr(environment, "__class__", plain))
    for name, function in _CALLS:
        if (module := sys.modules.get(name)) is not None:
            _undo.append(_make_wait(module, function))
    if (optimizer := sys.modules.get("torch.optim.optimizer")) is not None:
        hook = optimizer.register_optimizer_step_pre_hook(lambda *_: need("optimizer.step()"))
        _undo.append(hook.remove)


def _make_wait(module: Any, name: str) -> Callable[[], object]:
    plain = getattr(module, name)

    @functools.wraps(plain)
    def waiting(*args: Any, **options: Any) -> Any:
        need(f"{module.__name__}.{name.lstrip('_')}()")
        return plain(*args, **options)

    setattr(module, name, waiting)
    return lambda: setattr(module, name, plain)


def need(what: str) -> None:
    """The script has asked for something that takes a rank: wait for it, and say so once."""
    if _undo:
        place = _place() if not _prepares else None
        if place is not None:
            say(
                f"{place} needs the rank ({what}) above join(), so that a warm worker waits there; "
                "the code below it does not run ahead of time. Move it below join() to restart "
                "faster."
            )
        await_rank(what)


def _place() -> str | None:
    """The innermost line of the user's own code; None where a library has asked that joins."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if frame.f_globals.get("__name__") in _JOINS:
            return None
        if file != __file__ and not is_library(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return "the script"


def await_rank(where: str = "join()") -> None:
    """Return once the environment holds this worker's rank; the process ends where none will come.

    The agent hears `where` the script waits. Returns at once in a process that was started with its
    rank, or without any agent.
    """
    control = os.environ.get(CONTROL)
    if control is not None:
        sys.stdout.flush()
        line = _line_on(int(control), where)
        if not line.endswith(b"\n"):
            os._exit(0)  # nothing of the script is to be done any more
        _take(_assignments.decode(line).env)
    for text in _emptied(_unsaid):
        _tell(text)


def _prepare(control: int) -> None:
    """Do what can be done meanwhile. What needs the rank itself waits for it as ever."""
    global _prepares
    _prepares = True
    for act in _emptied(while_waiting):
        act(control)
    _prepares = False


def has_come(control: int, within_s: float) -> bool:
    """Whether the rank is there, or none will come."""
    return bool(select.select([control], [], [], within_s)[0])


def _line_on(control: int, where: str) -> bytes:
    """Empty where the agent has hung up, having read what we said or not."""
    try:
        sock = socket.socket(fileno=os.dup(control))
    except OSError as error:
        raise not_the_worker(control) from error
    with sock:
        with contextlib.suppress(BrokenPipeError):
            sock.send(f"{where}\n".encode())
        _prepare(control)
        with contextlib.suppress(ConnectionResetError):
            return sock.recv(LINE_BYTES, socket.MSG_PEEK)
    return b""


def _take(env: dict[str, str]) -> None:
    """First the variables, then the end of waiting: another thread may be looking."""
    for name, value in env.items():
        _set(name, value)
    os.environ.pop(CONTROL, None)
    for undo in _emptied(_undo):
        undo()
    for act in _emptied(on_rank):
        act()


def _set(name: str, value: str) -> None:
    """In what is `os.environ` by now: a script may have put a plain dict there."""
    environment: object = os.environ
    if isinstance(environment, os._Environ):
        os._Environ.__setitem__(os.environ, name, value)
    else:
        os.putenv(name, value)  # where libraries in C and children look
        os.environ[name] = value


def _emptied(things: list[Thing]) -> Iterator[Thing]:
    """Each of them once, also when several threads are at it; the last one first."""
    with contextlib.suppress(IndexError):
        while True:
            yield things.pop()


def say(text: str) -> None:
    """Tell the user once in a job: rank 0 does it, in the first attempt, as soon as it knows."""
    if CONTROL in os.environ:
        _unsaid.append(text)
    else:
        _tell(text)


def _tell(text: str) -> None:
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if first and os.environ.get("RANK", "0") == "0":
        print(f"holdfast: {text}", file=sys.stderr, flush=True)
