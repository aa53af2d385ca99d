"""How the command line talks to a live controller, and what it knows without one."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from holdfast import __version__, tls
from holdfast.drivers import records
from holdfast.errors import Error
from holdfast.journal import read_header
from holdfast.messages import (
    MAX_MESSAGE_BYTES,
    AskChecks,
    AskStacks,
    AskStatus,
    ChecksReply,
    FromClient,
    StacksReply,
    StatusReply,
    ToClient,
)
from holdfast.profiles import AskProfile, ProfileReply, ProfileRequest
from holdfast.status import JobStatus

TIMEOUT_S = 5.0
BUSY_S = 120.0  # for one that works, and gets little of the processor
STACKS_S = 60.0  # for all nodes to answer, or to be given up
CHECKS_S = 400.0  # likewise
PROFILE_S = 3600.0  # likewise, of long steps

_decoder = msgspec.msgpack.Decoder(ToClient)


Answer = TypeVar("Answer")


class _Patience:
    """How long a controller is waited for, if that is more than a first try takes."""

    def __init__(self, pid: int, for_s: float) -> None:
        self._pid, self._until = pid, time.monotonic() + for_s
        self._used_s = self._asked_s()

    def _asked_s(self) -> float:
        """How long it has had a processor, or waited for one."""
        waited = "0"
        with contextlib.suppress(OSError, LookupError):  # some kernels do not count it
            waited = Path(f"/proc/{self._pid}/schedstat").read_text().split()[1]
        try:
            times = psutil.Process(self._pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system) + int(waited) / 1e9

    def until_answered(self, ask: Callable[[], Answer]) -> Answer:
        """Ask again as long as it gets on with its work. Raises `TimeoutError`."""
        while True:
            try:
                return ask()
            except TimeoutError:
                before_s, self._used_s = self._used_s, self._asked_s()
                if self._used_s <= before_s or time.monotonic() >= self._until:
                    raise


def request(
    folder: Path, message: FromClient, within_s: float = TIMEOUT_S, *, busy_s: float = BUSY_S
) -> ToClient:
    """Ask the job's controller. One that works and does not come to it is given `busy_s` in all.
    Raises `ConnectionError` if none answers, and `Error` controller-version if its answer is not
    understood."""
    address = records.read_address(folder)
    if address is None or not records.controller_alive(folder):
        raise ConnectionError(f"no controller is running for {folder.name}")
    patience = _Patience(address.pid, busy_s)
    try:
        with patience.until_answered(lambda: _connect(folder, address)) as connection:
            connection.send(msgspec.msgpack.encode(message))
            reply = patience.until_answered(lambda: connection.recv(timeout=within_s))
    except (OSError, WebSocketException, ValueError) as error:  # ValueError: no name of a host
        raise ConnectionError(f"the controller of {folder.name} does not respond") from error
    try:
        found: ToClient = _decoder.decode(reply if isinstance(reply, bytes) else reply.encode())
    except msgspec.MsgspecError as error:
        raise _other_version(folder, error) from error
    return found


def _connect(folder: Path, address: records.Address) -> ClientConnection:
    return connect(
        f"{tls.scheme()}://{address.host}:{address.port}/",
        ssl=tls.client_context(),
        additional_headers={"Authorization": f"Bearer {records.read_secret(folder)}"},
        open_timeout=TIMEOUT_S,
        compression=None,
        proxy=None,
        max_size=MAX_MESSAGE_BYTES,
    )


def _other_version(folder: Path, error: Exception) -> Error:
    writer = read_header(folder / records.JOURNAL).holdfast
    return Error(
        "controller-version",
        f"the controller of {folder.name} answers in a form that this version does not support",
        why=f"its job was started with Holdfast {writer}, and this is {__version__}: {error}",
        help=f"use the version of Holdfast that runs the job (pip install holdfast=={writer})",
    )


def status(folder: Path) -> JobStatus:
    """The job's status: from its controller if that answers, else from the journal, with what is
    known of the controller. Raises `Error` controller-version."""
    try:
        reply = request(folder, AskStatus(), busy_s=0.0)
    except ConnectionError:
        return _of_journal(folder)
    assert isinstance(reply, StatusReply)
    try:
        return msgspec.json.decode(reply.status, type=JobStatus)
    except msgspec.MsgspecError as error:
        raise _other_version(folder, error) from error


def _of_journal(folder: Path) -> JobStatus:
    """A controller that holds the job's lock lives, though it does not answer: it begins, or it is
    to be reached from elsewhere only (another network namespace), or is too busy."""
    found = records.status(folder, time.time())
    if found.controller != "away" or not records.controller_alive(folder):
        return found
    known = records.read_address(folder) is not None
    return msgspec.structs.replace(found, controller="unreachable" if known else "starting")


def stacks(folder: Path, *, native: bool = False, rank: int | None = None) -> StacksReply:
    """What the job's workers do now, `native` with frames of C, of one `rank` or of all. Raises
    `ConnectionError` if no controller answers."""
    reply = request(folder, AskStacks(native=native, rank=rank), STACKS_S)
    assert isinstance(reply, StacksReply)
    return reply


def checks(folder: Path) -> ChecksReply:
    """Have the job's spares check their machines. Raises `ConnectionError` if no controller
    answers."""
    reply = request(folder, AskChecks(), CHECKS_S)
    assert isinstance(reply, ChecksReply)
    return reply


def profile(folder: Path, wish: ProfileRequest) -> ProfileReply:
    """Have ranks of the job profiled. Raises `ConnectionError` if no controller answers."""
    reply = request(folder, AskProfile(wish=wish), PROFILE_S)
    assert isinstance(reply, ProfileReply)
    return reply
