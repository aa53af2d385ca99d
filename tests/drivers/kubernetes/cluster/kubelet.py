"""Runs the pods of one machine as real processes and tells the API server about them.

One task for each pod: wait until its volumes can be mounted, run the init containers one after the
other, then all containers; restart as the policy says; when the pod is to be deleted, SIGTERM,
the grace time, SIGKILL, and only then is it gone.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.drivers.kubernetes.cluster import EVENTS, PODS
from tests.drivers.kubernetes.cluster import processes
from tests.drivers.kubernetes.cluster.conditions import set_condition
from tests.drivers.kubernetes.cluster.mounts import Mounts, NotYetError, Place
from tests.drivers.kubernetes.cluster.names import file_of
from tests.drivers.kubernetes.cluster.pace import Pace
from tests.drivers.kubernetes.cluster.probes import live, ready
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.cluster.store import Store, written

KILLED = 137
MOUNT_S = 0.05  # between two looks at what is missing
PHASE_S = 0.2  # from the last container's end to the pod's, and to the end of its object


def pod_folder(folder: Path, uid: str) -> Path:
    """Where a pod keeps its things: a short path, because sockets may lie below it."""
    return folder / "pods" / uid[:13]


@dataclass
class Surroundings:
    """What the kubelets of a cluster share."""

    store: Store
    pace: Pace
    server: str  # address of the API
    folder: Path
    images: dict[str, Path | None] | None  # folder of each image; None: every image is there
    address: Callable[[], str]
    addresses: Callable[[str], dict[str, str]]


@dataclass
class Kubelet:
    """The pods of one machine. While `silent`, it tells nobody anything; a dead one has no pods."""

    name: str
    around: Surroundings
    silent: bool = False
    dead: bool = False
    pods: dict[str, "PodLife"] = field(default_factory=dict)

    def step(self) -> None:
        """Start pods that are new here, and end those that are to go or are gone."""
        if self.silent or self.dead:
            return
        mine = {
            p["metadata"]["uid"]: p
            for p in self.around.store.all(PODS)
            if p["spec"].get("nodeName") == self.name
        }
        for uid, pod in mine.items():
            if uid not in self.pods and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                self.pods[uid] = PodLife(self, pod)
                self.pods[uid].begin()
            self._going(uid, pod)
        for uid in self.pods.keys() - mine.keys():
            self.pods.pop(uid).kill()

    def _going(self, uid: str, pod: Body) -> None:
        if "deletionTimestamp" in pod["metadata"] and uid in self.pods:
            self.pods[uid].leave(float(pod["metadata"].get("deletionGracePeriodSeconds") or 0))

    def power_off(self) -> None:
        """Everything here dies at once, and nobody hears of it."""
        self.dead = True
        for pod in self.pods.values():
            pod.kill()
        self.pods.clear()

    def freeze(self, *, thaw: bool = False) -> None:
        """Everything here stands still, with all its connections open; or goes on."""
        self.silent = not thaw
        for pod in self.pods.values():
            pod.signal(signal.SIGCONT if thaw else signal.SIGSTOP)

    def power_on(self) -> None:
        """Back with nothing running: pods that were here have ended, containers were lost."""
        self.dead = self.silent = False
        for pod in self.around.store.all(PODS):
            if pod["spec"].get("nodeName") == self.name:
                self._lost(pod)

    def _lost(self, pod: Body) -> None:
        meta = pod["metadata"]

        def edit(body: Body) -> None:
            status = body["status"]
            status["phase"] = "Failed"
            for told in status.get("containerStatuses", []):
                told["state"] = {
                    "terminated": {"exitCode": KILLED, "reason": "ContainerStatusUnknown"}
                }
                told["ready"] = False

        self.around.store.change(PODS, meta["namespace"], meta["name"], edit)
        if "deletionTimestamp" in meta:
            self.around.store.delete(
                PODS, meta["namespace"], meta["name"], uid=meta["uid"], grace_s=0
            )


class PodLife:
    """One pod on one machine, from its arrival to its end."""

    def __init__(self, kubelet: Kubelet, pod: Body) -> None:
        self._kubelet, self._around, self.pod = kubelet, kubelet.around, pod
        self._meta, self._spec = pod["metadata"], pod["spec"]
        self.ip = self._around.address()
        self.folder = pod_folder(self._around.folder, self._meta["uid"])
        self._statuses: dict[str, Body] = {}
        self._running: dict[str, processes.Container] = {}
        self._task: asyncio.Task[None] | None = None
        self._end: asyncio.Task[None] | None = None
        self.leaving = False
        self._left = asyncio.Event()

    # ── life and death ────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Start."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._task = asyncio.ensure_future(self._live())

    def kill(self) -> None:
        """End at once, telling nobody."""
        for task in (self._task, self._end):
            if task is not None:
                task.cancel()
        for process in self._running.values():
            process.kill()

    def signal(self, number: int) -> None:
        """A signal for all that runs in it."""
        for process in self._running.values():
            process.signal(number)

    def leave(self, grace_s: float) -> None:
        """End in an orderly way within some seconds; a second call can only shorten them."""
        deadline = asyncio.get_running_loop().time() + grace_s
        if self._end is None:
            self._deadline = deadline
            self._end = asyncio.ensure_future(self._depart())
        elif deadline < self._deadline:
            self._deadline = deadline

    async def _depart(self) -> None:
        self.leaving = True
        self._left.set()
        for process in self._running.values():
            process.terminate()
        loop = asyncio.get_running_loop()
        while self._task and not self._task.done() and loop.time() < self._deadline:
            await asyncio.wait([self._task], timeout=min(0.05, self._deadline - loop.time()))
        for process in self._running.values():
            process.kill()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self._statuses and self._deadline > loop.time():  # not for one that is forced to go
            await asyncio.sleep(PHASE_S)
        self._bury()

    def _bury(self) -> None:
        """Nothing runs any more: only now may the object go."""
        where = (self._meta["namespace"], self._meta["name"])
        found = self._around.store.find(PODS, *where)
        if found and found["metadata"]["uid"] == self._meta["uid"] and not self._kubelet.silent:
            self._around.store.delete(PODS, *where, uid=self._meta["uid"], grace_s=0)

    async def _live(self) -> None:
        mounts = await self._mounted()
        if mounts is None:
            return await self._finish([])
        for spec in self._spec.get("initContainers", []):
            if spec.get("restartPolicy") == "Always":
                self._aside = asyncio.ensure_future(self._contain(spec, mounts))
            elif await self._contain(spec, mounts) != 0:
                return await self._finish([1])
        lives = [self._contain(spec, mounts) for spec in self._spec["containers"]]
        return await self._finish(list(await asyncio.gather(*lives)))

    async def _mounted(self) -> Mounts | None:
        """Volumes, as soon as everything that they come from is there."""
        machine = self._around.folder / "machines" / self._kubelet.name
        folder = self._around.folder
        names = file_of(folder, self._meta["namespace"])
        place = Place(self.folder, machine, folder / "shared", names)
        mounts = Mounts(self._around.store, self.pod, place, self._around.server)
        while not self.leaving:
            try:
                mounts.prepare()
                return mounts
            except NotYetError as exc:
                self._waits("ContainerCreating", "")
                self._event("FailedMount", f"MountVolume.SetUp failed: {exc}")
                await self._pause(MOUNT_S)
        return None

    # ── containers ────────────────────────────────────────────────────────────────────────────

    async def _contain(self, spec: Body, mounts: Mounts) -> int:
        """All lives of a container; the exit status of the last."""
        restarts, code = 0, KILLED  # also if it never was started
        while not self.leaving:
            process = await self._started(spec, mounts, restarts)
            if process is None:
                return 128
            began = asyncio.get_running_loop().time()
            code = await self._watched(spec, process)
            self._ended(spec["name"], code, restarts)
            if not self._again(spec, code):
                break
            lasted = asyncio.get_running_loop().time() - began
            await self._back_off(spec["name"], restarts, lasted)
            restarts += 1
        return code

    async def _started(
        self, spec: Body, mounts: Mounts, restarts: int
    ) -> processes.Container | None:
        if not await self._pulled(spec):
            return None
        images = self._around.images or {}
        addresses = self._around.addresses(self._meta["namespace"])
        while not self.leaving:
            try:
                found = mounts.container(spec, self.ip, images.get(spec["image"]), addresses)
                log = self.folder / f"{spec['name']}.log"
                process = processes.start(found.command, found.env, found.folder, log)
            except NotYetError as exc:
                self._wait(spec["name"], "CreateContainerConfigError", str(exc), restarts)
                await self._pause(MOUNT_S)
            except (OSError, IndexError) as exc:
                self._wait(spec["name"], "RunContainerError", str(exc), restarts)
                await self._pause(self._around.pace.s(self._around.pace.backoff_s))
            else:
                self._runs(spec, process, restarts)
                return process
        return None

    async def _pulled(self, spec: Body) -> bool:
        """Whether the image could be had; waits for it otherwise."""
        images = self._around.images
        while images is not None and spec["image"] not in images:
            if self.leaving:
                return False
            why = f'Back-off pulling image "{spec["image"]}": not found'
            self._wait(spec["name"], "ImagePullBackOff", why, 0)
            await self._pause(MOUNT_S)
        return not self.leaving

    async def _watched(self, spec: Body, process: processes.Container) -> int:
        """The exit status of a container that is probed as long as it runs."""
        self._running[spec["name"]] = process
        if self.leaving:
            process.terminate()
        probes = [
            asyncio.ensure_future(ready(spec, self, self._around.pace)),
            asyncio.ensure_future(live(spec, self, self._around.pace, process)),
        ]
        try:
            return await process.wait()
        finally:
            for probe in probes:
                probe.cancel()
            self._running.pop(spec["name"], None)

    def _again(self, spec: Body, code: int) -> bool:
        policy = spec.get("restartPolicy") or self._spec["restartPolicy"]
        first = spec in self._spec.get("initContainers", ()) and "restartPolicy" not in spec
        always = policy == "Always" and not first  # an init container runs until it succeeds
        failed = policy != "Never" and code != 0
        return not self.leaving and (always or failed)

    async def _back_off(self, name: str, restarts: int, lasted: float) -> None:
        """The first restart comes at once, each further one later, up to five minutes."""
        pace = self._around.pace
        if restarts == 0 or lasted > pace.s(2 * pace.crash_backoff_max_s):
            return
        ended = self._statuses[name]["state"]
        self._wait(name, "CrashLoopBackOff", "back-off restarting failed container", restarts)
        self._statuses[name]["lastState"] = ended
        seconds = min(pace.crash_backoff_max_s, pace.backoff_s * 2 ** (restarts - 1))
        await self._pause(pace.s(seconds))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._left.wait()

    # ── telling ───────────────────────────────────────────────────────────────────────────────

    def set_ready(self, name: str, value: bool) -> None:
        """What a readiness probe has found."""
        if name in self._statuses and self._statuses[name]["ready"] != value:
            self._statuses[name]["ready"] = value
            self._publish()

    def _waits(self, reason: str, message: str) -> None:
        for spec in self._spec["containers"]:
            self._wait(spec["name"], reason, message, 0)

    def _event(self, reason: str, message: str) -> None:
        """Once: the pod itself says only that its containers are being created."""
        meta, name = self._meta, f"{self._meta['name']}.{reason.lower()}"
        if self._around.store.find(EVENTS, meta["namespace"], name) is not None:
            return
        who = {"kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        said = {"involvedObject": who, "reason": reason, "message": message, "type": "Warning"}
        self._around.store.create(EVENTS, meta["namespace"], {"metadata": {"name": name}, **said})

    def _wait(self, name: str, reason: str, message: str, restarts: int) -> None:
        waiting = {"waiting": {"reason": reason, "message": message}}
        self._set(name, waiting, restarts, ready=False)

    def _runs(self, spec: Body, process: processes.Container, restarts: int) -> None:
        state = {"running": {"startedAt": written(self._around.store.clock())}}
        self._set(spec["name"], state, restarts, ready="readinessProbe" not in spec)
        self._statuses[spec["name"]]["containerID"] = f"process://{process.pid}"
        self._publish()

    def _ended(self, name: str, code: int, restarts: int) -> None:
        reason = "Completed" if code == 0 else "Error"
        at = written(self._around.store.clock())
        state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}
        self._set(name, state, restarts, ready=False)

    def _set(self, name: str, state: Body, restarts: int, *, ready: bool) -> None:
        last = self._statuses.get(name, {}).get("state", {})
        before = {"lastState": last} if "terminated" in last and "terminated" not in state else {}
        earlier = self._statuses.get(name, {}).get("lastState")
        if earlier and not before:
            before = {"lastState": earlier}
        told = {"name": name, "state": state, "ready": ready, "restartCount": restarts}
        self._statuses[name] = {**told, **before, "image": self._image(name), "imageID": ""}
        self._publish()

    def _image(self, name: str) -> str:
        every = [*self._spec.get("initContainers", []), *self._spec["containers"]]
        return str(next(spec["image"] for spec in every if spec["name"] == name))

    def _publish(self, phase: str = "") -> None:
        """Write the status, unless the machine is silent or the pod another by now."""
        if self._kubelet.silent or self._kubelet.dead:
            return
        main = [spec["name"] for spec in self._spec["containers"]]
        mine = [self._statuses[name] for name in main if name in self._statuses]
        before = [s for name, s in self._statuses.items() if name not in main]

        def edit(body: Body) -> None:
            if body["metadata"]["uid"] != self._meta["uid"]:
                return
            status = body["status"]
            if status.get("phase") not in ("Succeeded", "Failed"):
                status["phase"] = phase or _phase(mine)
            status |= {"podIP": self.ip, "podIPs": [{"ip": self.ip}], "hostIP": "127.0.0.1"}
            status.setdefault("startTime", written(self._around.store.clock()))
            status["containerStatuses"] = [dict(told) for told in mine]
            if before:
                status["initContainerStatuses"] = [dict(told) for told in before]
            all_ready = len(mine) == len(main) and all(told["ready"] for told in mine)
            for name in ("ContainersReady", "Ready"):
                set_condition(body, name, str(all_ready))
            set_condition(body, "Initialized", str(any("waiting" not in t["state"] for t in mine)))

        self._around.store.change(PODS, self._meta["namespace"], self._meta["name"], edit)

    async def _finish(self, codes: list[int]) -> None:
        """First the containers have ended, and only some time later the pod: who deletes it in
        between has no result."""
        good = bool(codes) and not any(codes)
        aside = getattr(self, "_aside", None)
        for process in self._running.values() if aside else ():
            process.kill()
        if codes and not self.leaving:
            await self._pause(PHASE_S)
            good = good and not self.leaving
        self._publish("Succeeded" if good else "Failed")


def _phase(statuses: list[Body]) -> str:
    started = any("waiting" not in s["state"] or s["restartCount"] for s in statuses)
    return "Running" if started else "Pending"
