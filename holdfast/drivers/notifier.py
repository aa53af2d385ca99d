"""Tells receivers of a job's incidents by HTTP, beside the controller and never in its way.

Each receiver has a queue of its own with a bound, a request at a time in a thread, and retries with
a growing pause; what cannot be delivered within `GIVE_UP_S`, or is refused, is dropped with a line
in the controller's log. A URL may contain a token, so only its host is ever said.

What receivers know is in `notified.json` beside the journal.
"""

import asyncio
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from holdfast.controller import State
from holdfast.drivers.notices import Notice, Notices, ToldOf, body_of, dated
from holdfast.drivers.records import NOTIFIED, write_private
from holdfast.shell.supervision import keep_running
from holdfast.spec import Job
from holdfast.spec.notify import URL_VARIABLE, Notify
from holdfast.status import Goodput

TIMEOUT_S = 10.0  # of a request
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
GIVE_UP_S = 600.0  # after which a notice is no news
QUEUE = 100  # notices that wait for a receiver
LAST_S = 10.0  # for the end of the job to be delivered
LOOK_S = 5.0  # at most between two looks while something may last too long
AGAIN = (408, 429)  # statuses of a refusal that may pass, besides those from 500 on
Say = Callable[[str], None]


class Notifier:
    """The receivers of one job. `account` gives that of its time until now, `clock` is the
    controller's."""

    def __init__(
        self,
        job: Job,
        state: State,
        folder: Path,
        account: Callable[[], Goodput],
        clock: Callable[[], float],
    ) -> None:
        self._state, self._account, self._file = state, account, folder / NOTIFIED
        self._clock = clock
        known = _known(self._file)
        told = [known.get(str(i), ToldOf()) for i in range(len(job.notify))]
        self._receivers = [
            Receiver(i, rule, Notices(job.name, rule, told[i]), clock)
            for i, rule in enumerate(job.notify)
        ]
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self, say: Say) -> None:
        """A controller has begun: what was before is no news."""
        self._say = say
        for receiver in self._receivers:
            receiver.notices.resume(self._state)
            if not receiver.url:
                say(f"{receiver.name}: {receiver.missing}; notifications are disabled")
        if self._receivers:
            self._task = asyncio.create_task(keep_running("notifying", self._run, say))

    def heard(self) -> None:
        """Something has been decided."""
        self._changed.set()

    async def close(self) -> None:
        """Tell of the end, if it has come, and deliver what waits; within a bound."""
        if self._task is None:
            return
        self._look()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                await asyncio.gather(*(receiver.queue.join() for receiver in self._receivers))
        self._task.cancel()
        for receiver in self._receivers:
            if receiver.waiting:
                self._say(f"{receiver.name}: {receiver.waiting} notices were not delivered in time")

    async def _run(self) -> None:
        looking = self._look_again_and_again()
        delivering = (receiver.deliver(self._say) for receiver in self._receivers)
        await asyncio.gather(looking, *delivering)

    async def _look_again_and_again(self) -> None:
        while True:
            self._changed.clear()
            self._look()
            wait_s = LOOK_S if self._is_pending() else None
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)

    def _is_pending(self) -> bool:
        return any(r.notices.next_look(self._state) is not None for r in self._receivers)

    def _look(self) -> None:
        now, found = self._clock(), False
        for receiver in self._receivers:
            for notice in receiver.notices.look(self._state, self._account().ettr, now):
                receiver.add(notice, self._say)
                found = True
        if found:
            told = {str(r.number): r.notices.told for r in self._receivers}
            try:
                write_private(self._file, msgspec.json.encode(told).decode())
            except OSError as error:
                self._say(f"{NOTIFIED} cannot be written: {error.strerror}")


class Receiver:
    """One of them, and what waits for it."""

    def __init__(
        self, number: int, rule: Notify, notices: Notices, clock: Callable[[], float]
    ) -> None:
        self.number, self.rule, self.notices, self._clock = number, rule, notices, clock
        self.queue: asyncio.Queue[Notice] = asyncio.Queue(QUEUE)
        self.waiting = 0  # notices, with the one that is being sent
        found = rule.url or os.environ.get(rule.url_env or URL_VARIABLE.format(number), "")
        self.url, place = found.strip(), None
        with suppress(ValueError):  # `post` says that it is not valid
            place = urlsplit(self.url).hostname
        self.name = f"notify[{number}]" + (f" ({place})" if place else "")

    @property
    def missing(self) -> str:
        """Why there is no URL."""
        if self.rule.url_env is not None:
            return f"variable {self.rule.url_env} is not set"
        return "url_secret is for jobs on Kubernetes"

    def add(self, notice: Notice, say: Say) -> None:
        """One more; the oldest goes where there is no room."""
        if not self.url:
            return
        if self.queue.full():
            say(f"{self.name}: dropped, {QUEUE} notices wait: {self.queue.get_nowait().text}")
            self.waiting -= 1
            self.queue.task_done()
        self.waiting += 1
        self.queue.put_nowait(notice)

    async def deliver(self, say: Say) -> None:
        """For ever, one after the other."""
        while True:
            notice = await self.queue.get()
            await self._send(notice, say)
            self.waiting -= 1
            self.queue.task_done()

    async def _send(self, notice: Notice, say: Say) -> None:
        ahead_s, pause_s = time.time() - self._clock(), FIRST_PAUSE_S
        body = body_of(dated(notice, ahead_s), self.rule)
        first = True
        while True:
            why, final = await asyncio.to_thread(post, self.url, body)
            if not why:
                return
            if final or self._clock() - notice.at > GIVE_UP_S:
                say(f"{self.name}: {why}; not delivered: {notice.text}")
                return
            if first:
                say(f"{self.name}: {why}; retrying")
            first = False
            await asyncio.sleep(pause_s)
            pause_s = min(LAST_PAUSE_S, 2 * pause_s)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET, and a token would be shown to somebody else."""

    def redirect_request(self, *_: object) -> None:
        """Follow none."""


def post(url: str, body: bytes) -> tuple[str, bool]:
    """Why it was not taken (empty: it was), and whether trying again is useless."""
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S):
            return "", False
    except urllib.error.HTTPError as error:
        error.close()
        final = error.code < 500 and error.code not in AGAIN
        return f"the receiver answered {error.code} {error.reason}", final
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        return f"it cannot be reached: {reason}", False
    except (ValueError, http.client.InvalidURL):
        return "its URL is not valid", True
    except http.client.HTTPException as error:
        return f"its answer cannot be read: {type(error).__name__}", False


def _known(file: Path) -> dict[str, ToldOf]:
    """What receivers were told by former controllers; nothing if that is not known."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, ToldOf])
    except (OSError, msgspec.DecodeError):
        return {}
