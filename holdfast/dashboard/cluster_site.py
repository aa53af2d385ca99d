"""One job of a cluster as its controller publishes it: its record, and a mirror of its journal.

Nothing but reading: records and journals are ConfigMaps, output comes from pods, figures from the
controller's port for metrics.
"""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from holdfast.dashboard.controller_figures import figures
from holdfast.dashboard.job_record import LOG_LINES, RankOutput
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import NODES, ApiError
from holdfast.drivers.kubernetes.machines import RACKS, Machine
from holdfast.drivers.kubernetes.queued import Workloads, quoted, words
from holdfast.drivers.kubernetes.record_journal import published_journal
from holdfast.drivers.kubernetes.remote import Look, look, status
from holdfast.drivers.kubernetes.remote_logs import everything
from holdfast.drivers.kubernetes.sharded import Cache
from holdfast.drivers.records import JOURNAL
from holdfast.errors import Error
from holdfast.history.answers import kind_of_answer
from holdfast.status import JobStatus

RACKS_S = 60.0
JOURNAL_S = 5.0  # between two readings of a published journal
ANSWER_S = 30.0
POD_LINES = 20 * LOG_LINES  # of a pod, whose workers share a log

T = TypeVar("T")


class Asks(Protocol):
    """A cluster, and a way to wait for its answers."""

    @property
    def cluster(self) -> Api:
        """Which."""

    def ask(self, call: Coroutine[Any, Any, T], what: str) -> T:
        """The answer to a call, which is about `what`. Raises `Error`."""


class ClusterSite:
    """One job there, and the mirror of its journal."""

    def __init__(self, line: Asks, mirror: Path) -> None:
        self._line, self._mirror = line, mirror
        self._name, self.alive = mirror.name, False
        self._cache: Cache = {}
        self.racks: Mapping[str, str] = {}
        self.engine = ""
        self._workloads = Workloads(line.cluster)
        self._read_at = self._racks_at = float("-inf")

    def status(self) -> JobStatus | None:
        """As recorded; the journal is read anew now and then."""
        return self._line.ask(self._look(), f"job {self._name}")

    async def _look(self) -> JobStatus | None:
        cluster = self._line.cluster
        seen = await look(cluster, self._name, cache=self._cache)
        if time.monotonic() - self._read_at > JOURNAL_S:
            content = await published_journal(cluster, self._name)
            self._read_at = time.monotonic()
            if content is not None:
                await asyncio.to_thread(_mirror, self._mirror / JOURNAL, content)
        if not (self._mirror / JOURNAL).exists():
            raise Error(
                "record-incomplete",
                f"there is no record of job {self._name} yet",
                why="its controller has not published a journal",
                help=f"holdfast status {self._name} --on kubernetes",
            )
        if time.monotonic() - self._racks_at > RACKS_S:
            self.racks, self._racks_at = await _racks(cluster, seen), time.monotonic()
        found = status(seen)
        if found.waiting_for and _is_queued(seen):
            told = await self._workloads.of(None)
            found = quoted(found, words(told, self._name, [pod.uid for pod in seen.nodes]))
        self.alive = found.controller == "alive"
        return found if seen.record is not None else None

    def figures(self, path: str) -> tuple[bytes, str] | None:
        """From the controller that keeps them; without one there are none."""
        kind = kind_of_answer(path)
        if kind is None:
            return None
        try:
            asked = figures(self._line.cluster, self._name, path)
            return self._line.ask(asked, f"the controller of {self._name}"), kind
        except ConnectionError as error:
            raise _unanswered(self._name, str(error)) from error

    def output(self, rank: int, _attempt: int | None, node: str | None) -> RankOutput:
        """What its pod has printed, and what was kept of pods that are gone; all attempts are in
        one log there."""
        lines = self._line.ask(self._printed(rank, node), f"the logs of {self._name}")
        return RankOutput(rank, None, [], lines)

    async def _printed(self, rank: int, node: str | None) -> list[str]:
        cluster, troubles = self._line.cluster, list[str]()
        seen = await look(cluster, self._name, cache=self._cache)
        if its := tuple(pod for pod in seen.pods if pod.metadata.name == node):
            seen = replace(seen, pods=its)
        lines = deque[str](maxlen=LOG_LINES)
        async for line in everything(cluster, seen, troubles.append, tail=POD_LINES):
            if line.rank == rank:
                lines.append(line.text)
        return [*troubles, *lines]


def _is_queued(seen: Look) -> bool:
    """Whether Kueue has to admit it; not known of a job that this version cannot read."""
    try:
        return bool(seen.queue)
    except Error:
        return False


async def _racks(cluster: Api, seen: Look) -> dict[str, str]:
    """Of each pod the rack of its machine, as its labels name it; none to whoever may not read
    machines."""
    try:
        machines = (await cluster.listed(NODES, Machine)).items
    except ApiError:
        return {}
    known = {one.metadata.name: one.metadata.labels for one in machines}
    found = {}
    for pod in seen.nodes:
        labels = known.get(pod.spec.node_name, {})
        rack = next((labels[name] for name in RACKS if name in labels), None)
        if rack is not None:
            found[pod.metadata.name] = rack
    return found


def _mirror(path: Path, content: bytes) -> None:
    """What is new is added, so that whoever follows the file reads only that."""
    known = path.read_bytes() if path.exists() else b""
    if known and content.startswith(known):
        with path.open("ab") as file:
            file.write(content[len(known) :])
        return
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)


def _unanswered(name: str, why: str) -> Error:
    return Error(
        "controller-silent",
        f"the controller of {name} does not return its figures",
        why=why,
        help=f"kubectl get service {name}-controller",
    )
