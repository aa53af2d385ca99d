"""How the command line talks to a live controller, and what it knows without one."""

import time
from pathlib import Path

import msgspec
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

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
from holdfast.profiles import AskProfile, ProfileReply, ProfileWish
from holdfast.status import JobStatus

TIMEOUT_S = 5.0
STACKS_S = 60.0  # for all nodes to answer, or to be given up
CHECKS_S = 400.0  # likewise
PROFILE_S = 3600.0  # likewise, of long steps

_decoder = msgspec.msgpack.Decoder(ToClient)


def request(folder: Path, message: FromClient, within_s: float = TIMEOUT_S) -> ToClient:
    """Ask the job's controller. Raises `ConnectionError` if none answers, and `Error`
    controller-version if its answer is not understood."""
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
    try:
        found: ToClient = _decoder.decode(reply if isinstance(reply, bytes) else reply.encode())
    except msgspec.MsgspecError as error:
        raise _other_version(folder, error) from error
    return found


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
        reply = request(folder, AskStatus())
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
