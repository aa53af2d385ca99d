"""The last part of what each pod has printed, kept with the record, because output outlives pods.

The API has a pod's log only as long as the pod is there: one that is deleted, evicted or replaced
takes it along, and so does the end of a job whose engine removes its pods. So a pod on its way out
is read until its container has ended, one that has ended at once, and at the end of the job those
that are left, before the engine hears of it. ConfigMap `NAME-logs` holds the last lines of each,
compressed; of many pods those that were read last. Nothing waits for this for long, and a log that
cannot be read any more is simply not there.
"""

import asyncio
import gzip
import zlib
from collections import deque
from collections.abc import Coroutine, Iterable
from contextlib import suppress

import msgspec

from holdfast.drivers.kubernetes.cluster import (
    CONFIG_MAPS,
    ApiError,
    Cluster,
    DeniedError,
    NotFoundError,
)
from holdfast.drivers.kubernetes.config_map import Content, binary_of, config_map
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.pods import Pod, main_container
from holdfast.drivers.kubernetes.talk import Complaint

LINES = 1000  # of each pod
PODS = 48
PIECE_BYTES = 14_000  # of each, compressed: with base64 all of them are less than a mebibyte
AT_ONCE = 8
TAKE_S = 120.0  # for a pod on its way out to end
GLANCE_S = 2.0  # before we remove one ourselves
SETTLE_S = 10.0  # for all that are left at the end
ONE_S = 3.0  # for one of them: the log of a machine that is away does not come at all
PUBLISH_S = 2.0  # what comes within this time is published together


class KeptLog(msgspec.Struct, frozen=True):
    """The end of one pod's output."""

    pod: str
    uid: str
    lines: tuple[str, ...]
    cut: bool = False  # whether there was more before


def logs_name(job: str) -> str:
    """Name of the ConfigMap."""
    return f"{job}-logs"


class KeptLogs:
    """Reads and publishes them."""

    def __init__(self, cluster: Cluster, job: str, owner: Body) -> None:
        self._cluster, self._job, self._owner = cluster, job, owner
        self._kept: dict[str, bytes] = {}  # by key in the ConfigMap, the oldest first
        self._taken: set[str] = set()  # UIDs of pods that are or were read to their end
        self._unread: dict[str, Pod] = {}  # those of which the end has not been read, by UID
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._news = asyncio.Event()
        self._publishing = asyncio.Lock()
        self._complain, self._denied = Complaint(), Complaint()

    async def load(self) -> None:
        """What a controller before this one has kept."""
        with suppress(ApiError):
            body = await self._cluster.get(CONFIG_MAPS, logs_name(self._job))
            self._kept = binary_of(body)

    async def run(self) -> None:
        """Publish what comes, for ever."""
        while True:
            await self._news.wait()
            await asyncio.sleep(PUBLISH_S)
            await self.publish()

    async def publish(self) -> None:
        """What there is, if it is new."""
        async with self._publishing:
            if self._news.is_set():
                self._news.clear()
                try:
                    await self._apply()
                except BaseException:  # cancelled: whoever publishes at the end does
                    self._news.set()
                    raise

    async def _apply(self) -> None:
        name = logs_name(self._job)
        content = Content(binary=self._kept)
        try:
            await self._cluster.apply(
                config_map(self._cluster, self._job, name, self._owner, content, bulk=True)
            )
        except ApiError as error:
            self._complain(f"{name} cannot be published: {error}")
            if error.transient:
                self._news.set()
        else:
            self._complain("")

    def wants(self, pod: Pod) -> bool:
        """Whether this pod's output is to be read now: soon nobody can."""
        going = pod.leaving or pod.over
        return going and bool(pod.spec.node_name) and pod.uid not in self._taken

    def take(self, pod: Pod) -> Coroutine[object, object, None]:
        """Its output until it ends; from now on nobody else is to read it."""
        self._taken.add(pod.uid)
        self._unread[pod.uid] = pod
        return self._take(pod)

    async def _take(self, pod: Pod) -> None:
        async with self._turns:
            if await self._read(pod, TAKE_S, follow=not pod.over):
                del self._unread[pod.uid]

    async def glance(self, pod: Pod) -> None:
        """Its output until now, because it is about to be removed."""
        await self._read(pod, GLANCE_S, follow=False)

    async def settle(self, pods: Iterable[Pod]) -> None:
        """The output of what is left at the end of the job, those that matter most first; what is
        still being read, or could not be, is read as far as it is, because nobody waits for that.
        """
        left = [*self._unread.values()]
        left += [pod for pod in pods if pod.spec.node_name and pod.uid not in self._taken]
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(pod: Pod) -> None:
            async with turns:
                await self._read(pod, ONE_S, follow=False)

        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await asyncio.gather(*(one(pod) for pod in left[:PODS]))
        await self.publish()

    async def _read(self, pod: Pod, within_s: float, *, follow: bool) -> bool:
        """Whether all there was has come within that time."""
        whole = False
        lines: deque[str] = deque(maxlen=LINES)
        count = 0
        reading = self._cluster.log(
            pod.metadata.name, container=main_container(pod), follow=follow, tail=LINES
        )
        try:
            async with asyncio.timeout(within_s):
                async for line in reading:
                    lines.append(line)
                    count += 1
            whole = True
        except DeniedError as error:
            self._denied(f"output of pods that end is not kept: {error}")
        except (ApiError, TimeoutError):
            pass
        if lines:
            self._keep(KeptLog(pod.metadata.name, pod.uid, tuple(lines), cut=count >= LINES))
        return whole

    def _keep(self, found: KeptLog) -> None:
        key = f"{found.pod}.{found.uid[:8]}.json.gz"
        self._kept.pop(key, None)
        self._kept[key] = packed(found)
        while len(self._kept) > PODS:
            del self._kept[next(iter(self._kept))]
        self._news.set()


def packed(found: KeptLog) -> bytes:
    """Compressed, with as many of the last lines as there is room for."""
    while len(piece := gzip.compress(msgspec.json.encode(found), mtime=0)) > PIECE_BYTES:
        if len(found.lines) == 1:
            found = msgspec.structs.replace(found, lines=(found.lines[0][-PIECE_BYTES // 2 :],))
            continue
        half = found.lines[len(found.lines) // 2 :]
        found = msgspec.structs.replace(found, lines=half, cut=True)
    return piece


async def kept_logs(cluster: Cluster, job: str) -> list[KeptLog]:
    """What was kept of a job; what others have put there is left out. Raises `ApiError`."""
    try:
        body = await cluster.get(CONFIG_MAPS, logs_name(job))
    except NotFoundError:
        return []
    found: list[KeptLog] = []
    for piece in binary_of(body).values():
        with suppress(OSError, EOFError, zlib.error, msgspec.DecodeError):
            found.append(msgspec.json.decode(gzip.decompress(piece), type=KeptLog))
    return found
