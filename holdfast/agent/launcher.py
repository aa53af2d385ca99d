"""An agent that only waits for the end of the job: the launcher of an MPIJob.

Its operator takes the launcher's end for the job's, so it must not end before, and must end well
only if the job does. It asks the controller for the status, the way the command line does, because
that needs nothing to be remembered about it: whichever controller is there can answer. So a
controller has to stay for a moment after the job's end, until launchers have asked.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from holdfast import tls
from holdfast.agent.controller_connection import ControllerAddress
from holdfast.agent.notes import note
from holdfast.messages import MAX_MESSAGE_BYTES, AskStatus, StatusReply

ASK_EVERY_S = 1.0
ANSWER_S = 5.0


class _Status(msgspec.Struct, frozen=True):
    """The part of a `JobStatus` that matters here."""

    outcome: str | None = None


def wait(folder: Path, fatal: int, let_go: int, patience_s: float) -> int:
    """Until the job has ended: 0 if it succeeded, else `fatal`. `let_go` if there has been no
    controller for `patience_s`."""
    heard_at, said = time.monotonic(), ""
    while time.monotonic() - heard_at < patience_s:
        try:
            for outcome in _outcomes(folder):
                heard_at, said = time.monotonic(), ""
                if outcome is not None:
                    note(f"agent: the job has ended: {outcome}")
                    return 0 if outcome == "succeeded" else fatal
        except (OSError, WebSocketException, msgspec.MsgspecError) as error:
            if (why := f"{type(error).__name__}: {error}") != said:
                note(f"agent: no controller: {why}; retrying")
                said = why
        time.sleep(ASK_EVERY_S)
    note("agent: no controller for longer than recovery.controller_absence_s")
    return let_go


def _outcomes(folder: Path) -> Iterator[str | None]:
    """How the job has ended, asked again and again over one connection."""
    address = msgspec.json.decode((folder / "controller.json").read_bytes(), type=ControllerAddress)
    token = (folder / "token").read_text().strip()
    with connect(
        f"{tls.scheme()}://{address.host_in_url}:{address.port}/",
        ssl=tls.client_context(),
        additional_headers={"Authorization": f"Bearer {token}"},
        proxy=None,
        compression=None,
        open_timeout=ANSWER_S,
        close_timeout=ANSWER_S,
        max_size=MAX_MESSAGE_BYTES,
    ) as connection:
        while True:
            yield _ask(connection)
            time.sleep(ASK_EVERY_S)


def _ask(connection: ClientConnection) -> str | None:
    connection.send(msgspec.msgpack.encode(AskStatus()))
    data = connection.recv(timeout=ANSWER_S, decode=False)
    reply = msgspec.msgpack.decode(data, type=StatusReply)
    return msgspec.json.decode(reply.status, type=_Status).outcome
