"""Fetch the data sets of a job for one node: `python -m holdfast.agent.datasets FD PID`.

FD is a socket to the agent, whose process is PID. A line of JSON on standard input says what is
wanted; each word about it is a message of JSON, and with the last one of a data set comes the
descriptor of its lease, so that the agent keeps it after this process has ended. What fails is said
and tried again, with pauses, for as long as the agent lives: how long a job waits for its nodes is
the controller's to decide.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time

import msgspec

from holdfast.agent.processes import die_with_parent
from holdfast.datasets.fetch import DatasetRequest, Fetch, FetchNews
from holdfast.errors import Error, clipped, visible
from holdfast.files import unusable
from holdfast.masking import masker

AGAIN_S = (1.0, 2.0, 5.0, 10.0)  # between tries; the last one from then on
WORDS_MAX = 2000
EVERY_S = 0.2  # between words about the same, and counts


class _Teller:
    """Words to the agent, but not all of them. `vain`: what is fetched now was thrown away before,
    so that it is no progress, and the job does not wait for it for ever."""

    def __init__(self, channel: socket.socket) -> None:
        self.vain = False
        self._channel = channel
        self._last = FetchNews(name="", text="")
        self._at = 0.0
        self._masked = masker(os.environ)
        self._lock = threading.Lock()

    def hear(self, news: FetchNews) -> None:
        """Send it, unless it is much like the last and comes soon after it. By any thread."""
        with self._lock:
            self._send(msgspec.structs.replace(news, moved=False) if self.vain else news)

    def _send(self, news: FetchNews) -> None:
        now, counts = time.monotonic(), news.part >= 0 and self._last.part >= 0
        if now - self._at < EVERY_S and (counts or news == self._last):
            return
        self._last, self._at = news, now
        text = clipped(visible(self._masked(news.text)), WORDS_MAX)  # it goes into the journal
        self._channel.send(msgspec.json.encode(msgspec.structs.replace(news, text=text)))

    def deliver(self, news: FetchNews, lease: int) -> None:
        """The last word, with the lease."""
        socket.send_fds(self._channel, [msgspec.json.encode(news)], [lease])


def main() -> int:
    """Until all are there; the exit status."""
    die_with_parent(int(sys.argv[2]), signal.SIGKILL)
    teller = _Teller(socket.socket(fileno=int(sys.argv[1])))
    for wanted in msgspec.json.decode(sys.stdin.buffer.readline(), type=list[DatasetRequest]):
        _bring(wanted, teller)
    return 0


def _bring(wanted: DatasetRequest, teller: _Teller) -> None:
    tries = 0
    while True:
        try:
            lease = Fetch(wanted, teller.hear).run()
        except (Error, OSError) as error:
            told = error if isinstance(error, Error) else unusable(error, "the cache is unusable")
            text = f"error[{told.slug}]: {told.what}: {told.why}; retrying"
            teller.hear(FetchNews(name=wanted.name, text=text, moved=False))
            teller.vain = teller.vain or told.slug not in ("dataset-unavailable", "dataset-no-room")
            time.sleep(AGAIN_S[min(tries, len(AGAIN_S) - 1)])
            tries += 1
            continue
        news = FetchNews(name=wanted.name, text="is ready", data=str(lease.data))
        teller.deliver(news, lease.fd)
        os.close(lease.fd)
        teller.vain = False
        return


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the agent is gone
        sys.exit(main())
