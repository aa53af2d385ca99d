"""A whole cluster in the process of a test: API server, machines that run pods, controllers.

    async with cluster(machines=3, engines=("jobset",)) as it:
        api = it.api()              # our own client, over HTTP
        it.kill_machine("m-1")      # and what else can happen to a cluster

`in_thread` does the same for tests that are not asynchronous; then `do` runs something inside.
"""

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import (
    CLAIMS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    STORAGE_CLASSES,
    Kind,
)
from tests.drivers.kubernetes.cluster import machines, rbac
from tests.drivers.kubernetes.cluster.addresses import Network
from tests.drivers.kubernetes.cluster.engines import deployments
from tests.drivers.kubernetes.cluster.engines.jobs import Jobs
from tests.drivers.kubernetes.cluster.engines.jobsets import JobSets
from tests.drivers.kubernetes.cluster.engines.kubeflow import TrainingOperator
from tests.drivers.kubernetes.cluster.engines.mpijobs import MpiOperator
from tests.drivers.kubernetes.cluster.engines.rayjobs import KubeRay
from tests.drivers.kubernetes.cluster.engines.trainjobs import Trainer
from tests.drivers.kubernetes.cluster.engines.volcano import Volcano
from tests.drivers.kubernetes.cluster.evictions import evict
from tests.drivers.kubernetes.cluster.faults import Faults
from tests.drivers.kubernetes.cluster.garbage import collect
from tests.drivers.kubernetes.cluster.http import Server
from tests.drivers.kubernetes.cluster.kinds import ENGINES, VOLCANO_QUEUES, Kinds
from tests.drivers.kubernetes.cluster.kubelet import Kubelet, Surroundings, pod_folder
from tests.drivers.kubernetes.cluster.loops import Step, reconciling
from tests.drivers.kubernetes.cluster.mounts import kubeconfig
from tests.drivers.kubernetes.cluster.names import Names
from tests.drivers.kubernetes.cluster.output import Extent, lines
from tests.drivers.kubernetes.cluster.pace import Pace
from tests.drivers.kubernetes.cluster.proxy import Proxy
from tests.drivers.kubernetes.cluster.refusal import Body, RefusalError
from tests.drivers.kubernetes.cluster.scheduler import schedule
from tests.drivers.kubernetes.cluster.server import ApiServer
from tests.patience import ENOUGH_S, PATIENCE_S, Patience

T = TypeVar("T")
POLL_S = 0.02


@dataclass
class FakeCluster:
    """One cluster. All methods but `do` are for the thread its loop runs in."""

    folder: Path
    engines: tuple[str, ...]
    pace: Pace
    images: dict[str, Path | None] | None
    network: Network = field(default_factory=Network)
    kubelets: dict[str, Kubelet] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop | None = None

    def __post_init__(self) -> None:
        self.server = ApiServer(Kinds(self.engines), self._logs)
        self.store = self.server.store
        self.http = Server(self.server.handle)
        self.lifecycle = machines.Lifecycle(self.store, self.pace)
        self.proxy = Proxy(self.store, self.network)
        self.server.service = self.proxy.behind

    # ── start and end ─────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Serve, and let the controllers run."""
        self._loop = asyncio.get_running_loop()
        await self.http.start()
        for name in ("default", "kube-system"):
            self.namespace(name)
        if "volcano" in self.engines:
            queue: Body = {"metadata": {"name": "default"}, "status": {"state": "Open"}}
            self.store.create(VOLCANO_QUEUES, "", queue)
        self._run(self.proxy.run())
        for step in self._steps():
            self._run(reconciling(self.store, step))

    def _steps(self) -> list[Step]:
        found: list[Step] = [
            self.lifecycle.step,
            Jobs(self.store, self.pace).step,
            JobSets(self.store, self.pace, self.server.webhooks.gates).step,
            TrainingOperator(self.store, self.pace).step,
            MpiOperator(self.store, self.pace).step,
            KubeRay(self.store, self.pace).step,
            Trainer(self.store).step,
            Volcano(self.store, self.pace).step,
            Names(self.store, self.pace, self.folder).step,
        ]
        found.append(lambda: collect(self.store, self.server.webhooks))
        for plain in (schedule, deployments.step, _bind_claims):
            found.append(_of(plain, self.store))
        return found

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def stop(self) -> None:
        """End everything, processes first. Raises what a controller has died of."""
        for kubelet in self.kubelets.values():
            kubelet.power_off()
        died = [t.exception() for t in self._tasks if t.done() and not t.cancelled()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.http.stop()
        self.network.leave()
        for exception in died:
            if exception is not None:
                raise exception

    # ── what a test needs ─────────────────────────────────────────────────────────────────────

    @property
    def url(self) -> str:
        """Where the API server listens."""
        return f"http://127.0.0.1:{self.http.port}"

    @property
    def faults(self) -> Faults:
        """Faults of the API, to be added."""
        return self.server.faults

    def api(self, namespace: str = "default", *, account: str = "") -> Api:
        """Our client, as the administrator or as a service account."""
        token = rbac.token(namespace, account) if account else rbac.ADMIN
        headers = {"Authorization": f"Bearer {token}"}
        client = httpx2.AsyncClient(
            base_url=self.url, headers=headers, trust_env=False, verify=False
        )
        return Api(client, namespace)

    def kubeconfig(self, namespace: str = "default") -> Path:
        """A file for KUBECONFIG, of the administrator; its context is called `fake`."""
        path = self.folder / f"kubeconfig-{namespace}"
        path.write_text(kubeconfig(self.url, namespace, rbac.ADMIN))
        return path

    def namespace(self, name: str) -> None:
        """A namespace with its account `default`."""
        plain: Body = {"metadata": {"name": name}, "status": {"phase": "Active"}}
        self.store.create(NAMESPACES, "", plain)
        self.store.create(SERVICE_ACCOUNTS, name, {"metadata": {"name": "default"}})

    def machine(self, name: str, *, labels: Mapping[str, str] = {}, **capacity: str) -> None:
        """Another machine; `capacity` as `cpu="4"`, with `gpu` for nvidia.com/gpu."""
        if "gpu" in capacity:
            capacity["nvidia.com/gpu"] = capacity.pop("gpu")
        self.store.create(NODES, "", machines.node(name, capacity, dict(labels)))
        around = Surroundings(
            self.store, self.pace, self.url, self.folder, self.images,
            self.network.pod, self.proxy.addresses,
        )  # fmt: skip
        self.kubelets[name] = Kubelet(name, around)
        self._run(reconciling(self.store, self.kubelets[name].step))

    def kill_machine(self, name: str) -> None:
        """All processes on it die, and nobody hears of it."""
        self.kubelets[name].power_off()
        self._silence(name)

    def partition_machine(self, name: str) -> None:
        """Its processes run on, and reach each other, but its kubelet reaches nobody."""
        self.kubelets[name].silent = True
        self._silence(name)

    def cut_from_api(self, pod: Body, *, cut: bool = True) -> None:
        """The pod reaches every other one, and the API server does not answer it."""
        uids = self.server.cut_off
        (uids.add if cut else uids.discard)(pod["metadata"]["uid"])

    def cut_from_pods(self, pod: Body) -> None:
        """The API server answers the pod, and what it serves reaches nobody: connections stay open
        and say nothing."""
        self.proxy.cut_off.add(pod["status"]["podIP"])

    def freeze_machine(self, name: str) -> None:
        """Its network is cut in the middle of everything: connections stay open and say nothing,
        and what runs there does not know of it when it goes on."""
        self.kubelets[name].freeze()
        self._silence(name)

    def revive_machine(self, name: str) -> None:
        """It is back: after a partition as it was, after its death with nothing on it."""
        kubelet = self.kubelets[name]
        kubelet.freeze(thaw=True)
        if kubelet.dead:
            kubelet.power_on()
        kubelet.silent = False
        self.lifecycle.silent.pop(name, None)
        self._touch(NODES, name)

    def _silence(self, name: str) -> None:
        self.lifecycle.silent[name] = asyncio.get_running_loop().time()
        self._touch(NODES, name)

    def _touch(self, kind: Kind, name: str) -> None:
        """Have the controllers look."""

        def edit(body: Body) -> None:
            marks = body["metadata"].setdefault("annotations", {})
            marks["fake/looks"] = str(int(marks.get("fake/looks", 0)) + 1)

        self.store.change(kind, "", name, edit)

    def drain(self, name: str) -> None:
        """Cordon a machine and evict its pods, as `kubectl drain`. Raises `RefusalError` (429)."""

        def edit(body: Body) -> None:
            body["spec"]["unschedulable"] = True

        self.store.change(NODES, "", name, edit)
        for pod in self.store.all(PODS):
            if pod["spec"].get("nodeName") == name and "deletionTimestamp" not in pod["metadata"]:
                evict(self.store, pod["metadata"]["namespace"], pod["metadata"]["name"], {})

    def pods(self, namespace: str = "default", **labels: str) -> list[Body]:
        """Pods with these labels; `job="a"` and `role="node"` are Holdfast's own. A label that no
        pod can have is a mistake: nothing would be waited for."""
        assert not any("/" in key for key in labels), "the prefix is added here"
        wanted = {f"holdfast.dev/{key}": value for key, value in labels.items()}
        return [
            pod
            for pod in self.store.all(PODS, namespace)
            if wanted.items() <= pod["metadata"].get("labels", {}).items()
        ]

    def pid(self, pod: Body) -> int:
        """Of the first process of a pod that runs here."""
        told = pod["status"]["containerStatuses"][0]
        return int(told["containerID"].partition("://")[2])

    def output(self, pod: Body, container: str = "") -> str:
        """What a container has printed in all its lives."""
        name = container or pod["spec"]["containers"][0]["name"]
        path = pod_folder(self.folder, pod["metadata"]["uid"]) / f"{name}.log"
        return path.read_text(errors="replace") if path.is_file() else ""

    async def until(self, true: Callable[[], T], patience_s: float = ENOUGH_S) -> T:
        """Wait until something holds, and return it. Raises AssertionError with all pods."""
        patience = Patience(patience_s)
        while not (found := true()):
            if patience.is_over:
                raise AssertionError(f"timed out after {patience_s} s\n{self.story()}")
            await asyncio.sleep(POLL_S)
        return found

    def story(self) -> str:
        """All pods and the ends of their output, for a test that failed."""
        told = []
        for pod in self.store.all(PODS):
            state = [s["state"] for s in pod["status"].get("containerStatuses", [])]
            told.append(f"{pod['metadata']['name']}: {pod['status'].get('phase')} {state}")
            told += [f"    {line}" for line in self.output(pod).splitlines()[-15:]]
        return "\n".join(told)

    def do(self, action: Callable[["FakeCluster"], T]) -> T:
        """Run something in the cluster's own thread, for tests that are in another."""
        assert self._loop is not None, "started before"

        async def inside() -> T:
            return action(self)

        return asyncio.run_coroutine_threadsafe(inside(), self._loop).result(PATIENCE_S)

    async def _reachable(self, namespace: str, uid: str, container: str) -> None:
        """The API server fetches logs from kubelets. Raises `RefusalError` if one is away, after it
        was dialled for a while."""
        mine = (p for p in self.store.all(PODS, namespace) if p["metadata"]["uid"] == uid)
        pod = next(mine)
        kubelet = self.kubelets.get(pod["spec"].get("nodeName", ""))
        if kubelet is None or kubelet.silent or kubelet.dead:
            await asyncio.sleep(self.pace.s(self.pace.dial_s))
            where = f"https://127.0.0.1:10250/containerLogs/{namespace}"
            path = f"{where}/{pod['metadata']['name']}/{container}"
            raise RefusalError(500, f'Get "{path}": dial tcp 127.0.0.1:10250: i/o timeout')

    async def _logs(
        self, namespace: str, uid: str, container: str, follow: bool, extent: Extent
    ) -> AsyncIterator[bytes]:
        path = pod_folder(self.folder, uid) / f"{container}.log"
        await self._reachable(namespace, uid, container)

        def runs() -> bool:
            mine = (p for p in self.store.all(PODS, namespace) if p["metadata"]["uid"] == uid)
            return any(p["status"].get("phase") in ("Pending", "Running") for p in mine)

        return lines(path, runs if follow else lambda: False, extent)


def _of(step: Callable[[Any], None], store: Any) -> Step:
    def bound() -> None:
        step(store)

    return bound


def _bind_claims(store: Any) -> None:
    """Claims are bound at once, unless they name a class that is not there."""
    for claim in store.all(CLAIMS):
        meta, class_ = claim["metadata"], claim["spec"].get("storageClassName")
        phase = "Pending" if class_ and not store.find(STORAGE_CLASSES, "", class_) else "Bound"

        def edit(body: Body, phase: str = phase) -> None:
            body.setdefault("status", {})["phase"] = phase

        store.change(CLAIMS, meta["namespace"], meta["name"], edit)


@asynccontextmanager
async def cluster(
    *,
    machines: int = 3,
    engines: Iterable[str] = tuple(ENGINES),
    pace: Pace = Pace(),  # noqa: B008
    images: Mapping[str, Path | None] | None = None,
) -> AsyncIterator[FakeCluster]:
    """A cluster with machines `m-0`, `m-1`, ..., gone with all its processes at the end.

    `engines` are those whose kinds are installed; `images` maps the names of images that can be
    pulled to the folder that their programs start in; without it every image can be.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-", ignore_cleanup_errors=True) as folder:
        known = None if images is None else dict(images)
        made = FakeCluster(Path(folder), tuple(engines), pace, known)
        try:
            await made.start()
            for number in range(machines):
                made.machine(f"m-{number}")
            yield made
        finally:
            await made.stop()


@contextmanager
def in_thread(**options: Any) -> Iterator[FakeCluster]:
    """The same in a thread of its own."""
    ready: list[FakeCluster] = []
    started, over = threading.Event(), threading.Event()
    failure: list[BaseException] = []

    async def live() -> None:
        async with cluster(**options) as made:
            ready.append(made)
            started.set()
            while not over.is_set():
                await asyncio.sleep(POLL_S)

    def run() -> None:
        try:
            asyncio.run(live())
        except BaseException as exc:
            failure.append(exc)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="cluster")
    thread.start()
    started.wait()
    try:
        if ready:
            yield ready[0]
    finally:
        over.set()
        thread.join()
    if failure:
        raise failure[0]
