"""How fast bytes pass from this node to another one, and back: zeros, for half a second each way.

The storage processes of the two measure it over a connection like that for copies, so it needs no
port of its own and both know the job's token. Whoever receives counts, because what was handed to a
socket may still be on its way, and says so; whoever sends stops then, or after a time. Each wait
has a bound, so the other side may be stuck, slow or gone. What is still to be sent is dropped at
the end: it would be in the way of training.
"""

import contextlib

import msgspec

from holdfast.agent.storage.peer_connection import LINKS, PeerConnection, StrangerError, dial
from holdfast.boots import boot_id
from holdfast.links import LinkFigures, Rate

EACH_WAY_S = 0.5
SKIP_S = 0.1  # of it: a connection gets up to speed, and buckets of a shaper are emptied
FIRST_S = 2.0  # until the first byte
WORD_S = 3.0  # until an answer
MOST_BYTES = 1 << 30  # each way


class LinkWord(msgspec.Struct, frozen=True, kw_only=True):
    """The first word of each side: which machine it is on."""

    machine: str


class LinkRate(msgspec.Struct, frozen=True, kw_only=True):
    """What has arrived at the node that was called."""

    bytes_per_s: Rate


def answer(connection: PeerConnection) -> None:
    """The side that was called. Raises `OSError`."""
    connection.patience(WORD_S)
    connection.hear(LinkWord)
    connection.say(LinkWord(machine=boot_id()))
    there = connection.rate(FIRST_S, EACH_WAY_S, SKIP_S, MOST_BYTES)
    connection.patience(WORD_S)
    connection.say(LinkRate(bytes_per_s=there))
    connection.pour(FIRST_S + EACH_WAY_S, MOST_BYTES, answered=False)
    connection.until_closed(WORD_S)  # on a fast link all was sent, and not all read yet
    connection.drop()


def measure(address: str, key: bytes) -> LinkFigures:
    """The link with the node at HOST:PORT. Raises nothing that a network can cause."""
    try:
        connection = dial(address, key, LINKS)
    except (OSError, StrangerError, ValueError) as error:
        return LinkFigures(trouble=_words(error))
    try:
        return _figures(connection)
    except OSError as error:
        return LinkFigures(trouble=_words(error))
    finally:
        with contextlib.suppress(OSError):
            connection.drop()


def _figures(connection: PeerConnection) -> LinkFigures:
    connection.patience(WORD_S)
    connection.say(LinkWord(machine=boot_id()))
    same = connection.hear(LinkWord).machine == boot_id()
    connection.pour(FIRST_S + EACH_WAY_S, MOST_BYTES, answered=True)
    connection.patience(WORD_S)
    there = connection.hear(LinkRate).bytes_per_s
    back = connection.rate(FIRST_S, EACH_WAY_S, SKIP_S, MOST_BYTES)
    return LinkFigures(there_bytes_per_s=there, back_bytes_per_s=back, same_machine=same)


def _words(error: Exception) -> str:
    if isinstance(error, BlockingIOError | TimeoutError):
        return "timed out"
    return (getattr(error, "strerror", None) or str(error))[:300]
