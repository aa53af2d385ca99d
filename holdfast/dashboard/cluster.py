"""The jobs of a namespace in a cluster, as their controllers publish them.

Of each job that is looked at there is a mirror of its journal in a folder of our own, which the
readers of local jobs read; it goes when the page does.

The client speaks on the event loop of the server, questions come from its threads.
"""

import asyncio
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from holdfast.dashboard.app import Serving, listening, serve_on
from holdfast.dashboard.cluster_site import ANSWER_S, ClusterSite
from holdfast.dashboard.fleet import not_found
from holdfast.dashboard.job_record import JobRecord
from holdfast.dashboard.tokens import Tokens
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import ApiError
from holdfast.drivers.kubernetes.listing import jobs
from holdfast.drivers.kubernetes.submit_refusals import About, refused
from holdfast.errors import Error

LISTED_S = 3.0  # for so long a list of jobs is as good as another

T = TypeVar("T")
Opened = Callable[[str | None, str | None], Awaitable[Api]]


def serve(
    opened: Opened,
    reach: tuple[str | None, str | None],
    serving: Serving,
    say: Callable[[str], None],
    *,
    cluster_tokens: bool,
) -> None:
    """Serve the jobs of a context and namespace, until told to stop. Raises `Error`."""

    async def run() -> None:
        cluster = await opened(*reach)
        try:
            with closing(listening(serving)) as listener, tempfile.TemporaryDirectory() as folder:
                fleet = ClusterFleet(cluster, asyncio.get_running_loop(), Path(folder))
                verify = Tokens(cluster).verify if cluster_tokens else None
                await serve_on(listener, fleet, serving._replace(verify=verify), say)
        finally:
            await cluster.close()

    asyncio.run(run())


class Inquiry:
    """Asks the cluster from any thread but that of the loop."""

    def __init__(self, cluster: Api, loop: asyncio.AbstractEventLoop) -> None:
        self.cluster, self._loop = cluster, loop

    def ask(self, call: Coroutine[Any, Any, T], what: str) -> T:
        """Wait for a call. Raises `Error`."""
        asked = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return asked.result(ANSWER_S)
        except ApiError as error:
            raise refused(error, About(what, "v1", self.cluster.namespace, "")) from error
        except TimeoutError as error:
            raise Error(
                "cluster-unreachable",
                f"the API server did not answer about {what}",
                why=f"no answer within {ANSWER_S:.0f} s",
                help="kubectl cluster-info",
            ) from error
        finally:
            asked.cancel()  # whoever asked is gone


class _Mirrored(NamedTuple):
    """A job that was looked at."""

    submitted_at: float
    record: JobRecord


class ClusterFleet:
    """The jobs of a namespace. Mirrors lie in `folder`."""

    def __init__(self, cluster: Api, loop: asyncio.AbstractEventLoop, folder: Path) -> None:
        self.title = f"jobs in namespace {cluster.namespace}"
        self._line, self._folder = Inquiry(cluster, loop), folder
        self._records: dict[str, _Mirrored] = {}
        self._listed: tuple[float, dict[str, float]] = (float("-inf"), {})
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Those that have a controller, or had one."""
        with self._lock:
            if time.monotonic() - self._listed[0] > LISTED_S:
                found = self._line.ask(jobs(self._line.cluster), "jobs")
                there = {one.job: one.submitted_at for one in found if one.managed}
                self._listed = time.monotonic(), there
                self._forget(there)
            return list(self._listed[1])

    def _forget(self, there: Mapping[str, float]) -> None:
        """Jobs that are gone, with their mirrors: another of that name may come."""
        gone = [n for n, one in self._records.items() if there.get(n) != one.submitted_at]
        for name in gone:
            folder = self._records.pop(name).record.folder.parent
            shutil.rmtree(folder, ignore_errors=True)

    def record(self, name: str) -> JobRecord:
        """Only a name that is listed is asked about."""
        if name not in self.names():
            raise not_found(name, self.title)
        with self._lock:
            if name not in self._records:
                mirror = Path(tempfile.mkdtemp(dir=self._folder)) / name
                mirror.mkdir()
                record = JobRecord(mirror, ClusterSite(self._line, mirror))
                self._records[name] = _Mirrored(self._listed[1].get(name, 0.0), record)
            return self._records[name].record

    def version(self, _name: str) -> object | None:
        """Only the cluster knows."""
        return None
