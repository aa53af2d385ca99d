"""What the kernel of this machine knows of a connection: whether that of the other one answers.

Linux tells it of every TCP connection (`TCP_INFO`, linux/tcp.h), without a packet, a port or a
right of its own, and through whatever passes packets on. Behind a proxy it is the proxy that
answers. Other systems tell it otherwise or not at all: None, and nobody is judged by it.
"""

import socket
import struct
import sys

from holdfast.detection.answers import TcpState

LAYOUT = struct.Struct("@2xB5x24I")  # `struct tcp_info` up to `tcpi_total_retrans`
UNACKED, DATA_SENT, DATA_HEARD, ACK_HEARD, ROUND_TRIP = 4, 9, 11, 12, 15  # of its 24 numbers
NAME_BYTES = 16
THIN_LINEAR_TIMEOUTS = 16  # an option of TCP that Python has no name for


def tcp_state(connection: socket.socket | None, now: float) -> TcpState | None:
    """What is known of this connection at this moment."""
    if connection is None or not _is_watched(connection):
        return None
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAYOUT.size)
    except OSError:  # it has just been closed
        return None
    tries, *numbers = LAYOUT.unpack(told)
    heard_ms = min(numbers[DATA_HEARD], numbers[ACK_HEARD])
    return TcpState(
        waits=numbers[UNACKED] > 0,
        tries=tries,
        sent_at=now - numbers[DATA_SENT] / 1_000,
        answered_at=now - heard_ms / 1_000,
        round_trip_s=numbers[ROUND_TRIP] / 1_000_000,
    )


def repeat_evenly(connection: socket.socket) -> None:
    """Send what is not acknowledged again five times a second, at first, and not after pauses that
    double: so it is known sooner that nothing arrives, and that something does again. Holds for a
    few packets under way. BBR doubles all the same, so it is not used for these connections, which
    carry little."""
    if not _is_watched(connection):
        return
    connection.setsockopt(socket.IPPROTO_TCP, THIN_LINEAR_TIMEOUTS, 1)
    name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME_BYTES)
    if name.startswith(b"bbr"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def _is_watched(connection: socket.socket) -> bool:
    return sys.platform == "linux" and connection.family in (socket.AF_INET, socket.AF_INET6)
