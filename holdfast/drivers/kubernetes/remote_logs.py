"""What the workers of a job in a cluster print, from the logs of its pods.

Agents put the rank before each line of a worker; every other line is their own talk. Pods come and
go, so whoever follows looks for new ones again and again. A stream that was cut begins anew from
the start of the log, and what was shown of it is left out.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import NamedTuple

from holdfast.drivers.kubernetes.cluster import ApiError, Cluster, InvalidError, NotFoundError
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.remote import look

LOOK_S = 2.0  # between two looks for new pods
AGAIN_S = 1.0  # after a stream was cut
QUEUE_LINES = 10_000
RANK = re.compile(r"\[rank (\d+)\] ?(.*)$")
MAIN = frozenset(
    ("main", "node", "worker", "pytorch", "tensorflow", "jax", "xgboost", "paddle", "mpi")
)
"""Containers that train, as the engines call them."""


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


def container(pod: Pod) -> str:
    """The container that trains; a mesh or a cloud may add others."""
    names = [status.name for status in pod.status.container_statuses]
    return next((name for name in names if name in MAIN), names[0] if names else "main")


async def written(cluster: Cluster, pod: Pod) -> AsyncIterator[Printed]:
    """What a pod has printed until now; nothing if it has not started. Raises `ApiError`."""
    try:
        async for line in cluster.log(pod.metadata.name, container=container(pod)):
            yield parsed(pod.metadata.name, line)
    except (InvalidError, NotFoundError):
        return


class Following:
    """The logs of all pods of a job, until it has ended and all has been read."""

    def __init__(self, cluster: Cluster, name: str, words: str = "") -> None:
        self._cluster, self._name, self._words = cluster, name, words
        self._queue: asyncio.Queue[Printed] = asyncio.Queue(QUEUE_LINES)
        self._reading: dict[tuple[str, int], asyncio.Task[None]] = {}  # by pod and restarts

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
            seen = await look(self._cluster, self._name, self._words)
            for pod in seen.nodes:
                self._begin(pod)
            if seen.outcome is not None or not (seen.pods or seen.kept):
                await asyncio.gather(*self._reading.values())
                return
            await asyncio.sleep(LOOK_S)

    def _begin(self, pod: Pod) -> None:
        restarts = max((c.restart_count for c in pod.status.container_statuses), default=0)
        key = (pod.uid, restarts)
        if key not in self._reading and (pod.running or pod.ended):
            self._reading[key] = asyncio.create_task(self._read(pod))

    async def _read(self, pod: Pod) -> None:
        shown = 0
        while True:
            number = 0
            lines = self._cluster.log(pod.metadata.name, container=container(pod), follow=True)
            try:
                async for line in lines:
                    number += 1
                    if number > shown:
                        shown = number
                        await self._queue.put(parsed(pod.metadata.name, line))
                return
            except ApiError as error:
                if not error.transient:
                    return  # the pod is gone
                await asyncio.sleep(AGAIN_S)
