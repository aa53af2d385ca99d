"""The data sets of the job, fetched before this node has workers.

The work is done in a process of its own, because a folder or server that does not answer must not
make the agent mute. What it says becomes a fact for the controller, so that the job waits for as
long as the fetch goes on; and what it delivers is the lease on each data set, which the agent keeps
for as long as it lives. A script finds a data set at a link in the folder of this node, made once
all of it is there: its name is known before, and never leads to a part.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from holdfast.agent.notes import note
from holdfast.datasets.fetch import PARTS, DatasetRequest, FetchNews
from holdfast.events import NodePreparing
from holdfast.spec import Job
from holdfast.spec.quantities import amount
from holdfast.spec.storage import Dataset, data_variable

AGAIN_S = 2.0  # before one that died is followed by another
USED_EVERY_S = 600.0  # the time of last use is that of a lease
MESSAGE_BYTES = 1 << 16
STEPS = 4  # facts about progress in `recovery.node_wait_s`, at least
TOLD_PARTS = 20  # of a data set, each at once
STARTING = "starting its worker processes"  # when all data sets are here
MAX_FRUITLESS = 3  # processes in a row that die where one has died before: no progress


class DatasetsHandle:
    """`whole`: all are here. `tell` hears it now and then, `done` once."""

    def __init__(
        self,
        job: Job,
        folder: Path,
        node: Path,
        environment: Mapping[str, str],
        tell: Callable[[NodePreparing], None],
    ) -> None:
        """`folder`: the cache, where the job names none; `node`: of this node."""
        self._wanted = {one.name: _wanted(one, folder) for one in _fetched(job)}
        self._node, self._environment, self._tell = node, environment, tell
        self._every_s = job.recovery.node_wait_s / STEPS
        self._told: tuple[float, str, int, bool] = (0.0, "", -1, False)
        self._moved = False  # since then
        self._since: set[str] = set()  # said since bytes have come
        self._furthest: dict[str, int] = {}  # part that any process has come to
        self._further, self._fruitless = False, 0  # this process than those before; processes not
        self._leases: dict[str, int] = {}

    @property
    def whole(self) -> bool:
        """Whether all are here."""
        return self._leases.keys() == self._wanted.keys()

    async def fetch(self, done: Callable[[], None]) -> None:
        """Until all are here; then keep what is leased marked as used."""
        while not self.whole:
            self._further = self._moved = False
            await self._one_process()
            self._fruitless = 0 if self._further else self._fruitless + 1
            if not self.whole:
                note("agent: the process that fetches data sets has died; restarting it")
                await asyncio.sleep(AGAIN_S)
        done()
        while self._leases:
            await asyncio.sleep(USED_EVERY_S)
            for fd in self._leases.values():
                with contextlib.suppress(OSError):  # a disk that broke is told by who reads it
                    await asyncio.to_thread(os.utime, fd)

    async def _one_process(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        command = [sys.executable, "-P", "-m", "holdfast.agent.datasets"]
        process = subprocess.Popen(
            [*command, str(theirs.fileno()), str(os.getpid())],
            env=dict(self._environment),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            process_group=0,
        )
        theirs.close()
        assert process.stdin is not None
        left = [wanted for name, wanted in self._wanted.items() if name not in self._leases]
        with contextlib.suppress(BrokenPipeError):  # it has died; the end of the socket follows
            process.stdin.write(msgspec.json.encode(left) + b"\n")
            process.stdin.close()
        try:
            while not self.whole and self._hear(*await _received(ours)):
                pass
        finally:
            ours.close()

    def _hear(self, message: bytes, fds: list[int]) -> bool:
        """One word of the process; False if it has ended."""
        if not message:
            return False
        news = msgspec.json.decode(message, type=FetchNews)
        if news.data and not fds:
            return False  # this process has too many files open: without its lease it is not ours
        if news.data:
            self._leases[news.name] = fds[0]
            self._make_link(news)
        self._say(news)
        return True

    def _make_link(self, news: FetchNews) -> None:
        link = _link(self._node, news.name)
        link.parent.mkdir(parents=True, exist_ok=True)
        fresh = link.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(news.data)
        fresh.replace(link)

    def _say(self, news: FetchNews) -> None:
        """Each word once, and the same again only now and then."""
        at, *before = self._told
        now, text = time.monotonic(), f"data set {news.name}: {news.text}"
        if news.moved is None and text in self._since:
            return  # it tries the same again
        told = news.part * TOLD_PARTS // PARTS
        self._since = set() if news.moved else {*self._since, text}
        self._moved = self._is_progress(news) or self._moved
        kind = [news.name if news.part >= 0 else text, told, self._moved]
        if kind == before and now - at < self._every_s:
            return
        self._told = now, str(kind[0]), told, self._moved
        note(f"agent: {text}")
        node = self._environment["HOLDFAST_NODE"]
        what = STARTING if self.whole else text  # what the job waits for now, not what was
        self._tell(NodePreparing(node=node, what=what, moved=self._moved))
        self._moved = False

    def _is_progress(self, news: FetchNews) -> bool:
        """One that runs out of memory at the same place each time would be waited for for ever."""
        what = f"{news.name} {news.text.rpartition(' ')[2]}"  # fetched, or looked over
        if news.data or news.part > self._furthest.get(what, -1):
            self._furthest[what], self._further = news.part, True
        return news.moved is not False and (self._further or self._fruitless < MAX_FRUITLESS)


async def _received(channel: socket.socket) -> tuple[bytes, list[int]]:
    """The next message and the descriptors with it."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(channel, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(channel)
    try:
        message, fds, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return b"", []
    return message, fds


def variables(job: Job, node: Path) -> dict[str, str]:
    """Where scripts find the data sets that are fetched."""
    return {data_variable(one.name): str(_link(node, one.name)) for one in _fetched(job)}


def _link(node: Path, name: str) -> Path:
    return node / "datasets" / name


def _fetched(job: Job) -> list[Dataset]:
    return [one for one in job.datasets if one.source is not None]


def _wanted(dataset: Dataset, folder: Path) -> DatasetRequest:
    assert dataset.source is not None, "only those are fetched"
    cache = dataset.cached
    return DatasetRequest(
        name=dataset.name,
        source=dataset.source,
        endpoint=dataset.endpoint,
        manifest=dataset.manifest,
        sha256=dataset.sha256,
        folder=cache.folder or str(folder),
        limit=int(amount(cache.size)),
        full=cache.verify == "full",
    )
