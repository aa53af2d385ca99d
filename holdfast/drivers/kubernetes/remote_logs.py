"""What the workers of a job in a cluster print, from the logs of its pods.

Agents put the rank before each line of a worker; every other line is their own talk. Pods come and
go, so whoever follows looks for new ones again and again. A stream that was cut begins anew from
the start of the log, and what was shown of it is left out. Of pods that are gone there is what the
controller has kept of their output; a plain job has no controller, so its lines go with its pods:
when it fails its engine removes those that still run, and keeps those that have failed.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple

from holdfast.drivers.kubernetes.cluster import ApiError, Cluster, InvalidError, NotFoundError
from holdfast.drivers.kubernetes.kept_logs import KeptLog, kept_logs
from holdfast.drivers.kubernetes.pods import Pod, main_container
from holdfast.drivers.kubernetes.remote import Look, look
from holdfast.drivers.kubernetes.sharded import Cache

LOOK_S = 2.0  # between two looks for new pods
AGAIN_S = 1.0  # after a stream was cut
QUEUE_LINES = 10_000
LAST_S = 30.0  # for containers to end once the job has
QUIET_S = 60.0  # in which no pod of a plain job has come back after a failure: it has ended
Say = Callable[[str], object]
RANK = re.compile(r"\[rank (\d+)\] ?(.*)$")


def _quiet(_what: str) -> None:
    """Nobody wants to know."""


class Printed(NamedTuple):
    """One line; `rank` None: an agent's own."""

    pod: str
    rank: int | None
    text: str


def parsed(pod: str, line: str) -> Printed:
    """A line of a pod's log."""
    found = RANK.match(line)
    if found is None:
        return Printed(pod, None, line)
    return Printed(pod, int(found[1]), found[2])


async def written(
    cluster: Cluster, pod: Pod, since: float | None = None, tail: int | None = None
) -> AsyncIterator[Printed]:
    """What a pod has printed until now, or the last lines of it; nothing if it has not started.
    Raises `ApiError`."""
    try:
        container = main_container(pod)
        lines = cluster.log(pod.metadata.name, container=container, since=since, tail=tail)
        async for line in lines:
            yield parsed(pod.metadata.name, line)
    except (InvalidError, NotFoundError):
        return


async def everything(
    cluster: Cluster, seen: Look, say: Say, since: float | None = None, tail: int | None = None
) -> AsyncIterator[Printed]:
    """What all pods of a job have printed, from `since` (seconds since the epoch) on: of those that
    are gone, or whose machine does not answer, what was kept of it, which has no times and is told
    whole. `tail`: of each pod only so many lines. `say` hears what is missing."""
    kept = {found.uid: found for found in await _kept(cluster, seen.name)}
    there = {pod.uid for pod in seen.nodes}
    for found in [k for k in kept.values() if k.uid not in there]:
        for line in _shown(found, say):
            yield line
    unread = set()
    for pod in sorted(seen.nodes, key=lambda pod: (len(pod.metadata.name), pod.metadata.name)):
        shown = False
        try:
            async for line in written(cluster, pod, since, tail):
                shown = True
                yield line
        except ApiError as error:
            say(f"the log of {pod.metadata.name} cannot be read: {error}")
        if not shown and since is None and pod.uid in kept:
            for line in _shown(kept[pod.uid], say):
                yield line
        elif not shown and since is None:
            unread.add(pod.uid)
    for found in await _kept(cluster, seen.name) if unread else ():  # they may have gone just now
        if found.uid in unread:
            for line in _shown(found, say):
                yield line


def _shown(found: KeptLog, say: Say) -> Iterator[Printed]:
    if found.cut:
        say(f"of pod {found.pod} only the last {len(found.lines)} lines were kept")
    for line in found.lines:
        yield parsed(found.pod, line)


async def _kept(cluster: Cluster, name: str) -> list[KeptLog]:
    """None to whoever may not read them."""
    try:
        return await kept_logs(cluster, name)
    except ApiError:
        return []


class Following:
    """The logs of all pods of a job, until it has ended and all has been read."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        words: str = "",
        say: Say = _quiet,
        since: float | None = None,
    ) -> None:
        self._since = since
        self._cluster, self._name, self._words, self._say = cluster, name, words, say
        self._queue: asyncio.Queue[Printed] = asyncio.Queue(QUEUE_LINES)
        self._reading: dict[tuple[str, int], asyncio.Task[None]] = {}  # by pod and restarts
        self._cache: Cache = {}
        self._shown: set[str] = set()  # UIDs of pods of which something was
        self._ended_at: float | None = None  # since when no pod of a plain job lives

    async def lines(self) -> AsyncIterator[Printed]:
        """Every line in the order in which it arrives."""
        finding = asyncio.create_task(self._find())
        try:
            while not (finding.done() and self._queue.empty()):
                try:
                    yield await asyncio.wait_for(self._queue.get(), timeout=0.2)
                except TimeoutError:
                    continue
            finding.result()
        finally:
            tasks = [finding, *self._reading.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _find(self) -> None:
        """Begin to read every pod that has started, until the job has ended."""
        while True:
            seen = await look(self._cluster, self._name, self._words, self._cache)
            for pod in seen.nodes:
                self._begin(pod)
            if self._over(seen):
                if self._reading:
                    await asyncio.wait(self._reading.values(), timeout=LAST_S)
                await self._rest(seen)
                return
            await asyncio.sleep(LOOK_S)

    def _over(self, seen: Look) -> bool:
        """Nobody records the end of a plain job: when its pods have ended, others may come."""
        if seen.outcome is not None or not (seen.pods or seen.kept):
            return True
        if seen.file is not None or not all(pod.ended for pod in seen.nodes):
            self._ended_at = None
            return False
        self._ended_at = self._ended_at or time.monotonic()
        well = all(pod.status.phase == "Succeeded" for pod in seen.nodes)
        return well or time.monotonic() - self._ended_at > QUIET_S

    async def _rest(self, seen: Look) -> None:
        """Of an ended job what was kept of pods that are gone."""
        for found in await _kept(self._cluster, seen.name):
            if found.uid not in self._shown:
                for line in _shown(found, self._say):
                    await self._queue.put(line)

    def _begin(self, pod: Pod) -> None:
        key = (pod.uid, pod.restarts)
        if key not in self._reading and (pod.running or pod.ended):
            self._reading[key] = asyncio.create_task(self._read(pod))

    async def _read(self, pod: Pod) -> None:
        shown, told = 0, False
        while True:
            number = 0
            container, since = main_container(pod), self._since
            lines = self._cluster.log(
                pod.metadata.name, container=container, follow=True, since=since
            )
            try:
                async for line in lines:
                    number += 1
                    if number > shown:
                        shown = number
                        self._shown.add(pod.uid)
                        await self._queue.put(parsed(pod.metadata.name, line))
                return
            except ApiError as error:
                if not error.transient:
                    return  # the pod is gone
                if not told:
                    self._say(f"the log of {pod.metadata.name} cannot be read now: {error}")
                told = True
                await asyncio.sleep(AGAIN_S)
