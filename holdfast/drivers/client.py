"""How the command line talks to a live controller, and what it does without one."""

import time
from pathlib import Path

import msgspec
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from holdfast import tls
from holdfast.drivers import records
from holdfast.drivers.engines import clear
from holdfast.drivers.fencing import require_gone
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
from holdfast.profiles import AskProfile, ProfileReply, ProfileWish
from holdfast.status import JobStatus

TIMEOUT_S = 5.0
STACKS_S = 60.0  # for all nodes to answer, or to be given up
CHECKS_S = 400.0  # likewise
PROFILE_S = 3600.0  # likewise, of long steps

_decoder = msgspec.msgpack.Decoder(ToClient)


def request(folder: Path, message: FromClient, within_s: float = TIMEOUT_S) -> ToClient:
    """Ask the job's controller. Raises `ConnectionError` if none answers."""
    address = records.read_address(folder)
    if address is None or not records.controller_alive(folder):
        raise ConnectionError(f"no controller is running for {folder.name}")
    headers = {"Authorization": f"Bearer {records.read_secret(folder)}"}
    try:
        with connect(
            f"{tls.scheme()}://{address.host}:{address.port}/",
            ssl=tls.client_context(),
            additional_headers=headers,
            open_timeout=TIMEOUT_S,
            compression=None,
            proxy=None,
            max_size=MAX_MESSAGE_BYTES,
        ) as connection:
            connection.send(msgspec.msgpack.encode(message))
            reply = connection.recv(timeout=within_s)
    except (OSError, WebSocketException, ValueError) as error:  # ValueError: no name of a host
        raise ConnectionError(f"the controller of {folder.name} does not respond") from error
    found: ToClient = _decoder.decode(reply if isinstance(reply, bytes) else reply.encode())
    return found


def status(folder: Path) -> JobStatus:
    """The job's status: from its controller if that lives, else from the journal."""
    try:
        reply = request(folder, AskStatus())
    except ConnectionError:
        return records.status(folder, time.time())
    assert isinstance(reply, StatusReply)
    return msgspec.json.decode(reply.status, type=JobStatus)


def stacks(folder: Path) -> StacksReply:
    """What the job's workers do now. Raises `ConnectionError` if no controller answers."""
    reply = request(folder, AskStacks(), STACKS_S)
    assert isinstance(reply, StacksReply)
    return reply


def checks(folder: Path) -> ChecksReply:
    """Have the job's spares check their machines. Raises `ConnectionError` if no controller
    answers."""
    reply = request(folder, AskChecks(), CHECKS_S)
    assert isinstance(reply, ChecksReply)
    return reply


def profile(folder: Path, wish: ProfileWish) -> ProfileReply:
    """Have ranks of the job profiled. Raises `ConnectionError` if no controller answers."""
    reply = request(folder, AskProfile(wish=wish), PROFILE_S)
    assert isinstance(reply, ProfileReply)
    return reply


def kill_leftovers(folder: Path) -> int:
    """Kill every process of the job's nodes; for when its controller is gone. Returns how many.

    Raises `Error` process-stuck if some of them cannot be killed.
    """
    fenced = clear(folder)
    remedy = f"holdfast stop {folder.name}   (once the process has exited)"
    require_gone(fenced, f"some processes of job {folder.name!r} are still running", remedy)
    return fenced.killed
