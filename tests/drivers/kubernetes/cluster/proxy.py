"""Services: each has an address that leads to a ready pod, as kube-proxy would have it."""

import asyncio
import contextlib
import random

from holdfast.drivers.kubernetes.cluster import PODS, SERVICES
from tests.drivers.kubernetes.cluster.addresses import Network
from tests.drivers.kubernetes.cluster.conditions import is_true
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.cluster.selectors import fits
from tests.drivers.kubernetes.cluster.store import Store

PIECE = 65536
POLL_S = 0.05
Listening = tuple[str, int]


class Proxy:
    """Listens on the addresses of Services and hands connections on."""

    def __init__(self, store: Store, network: Network) -> None:
        self._store, self._network = store, network
        self._servers: dict[Listening, asyncio.Server] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.cut_off: set[str] = set()  # addresses of pods to and from which nothing passes

    async def run(self) -> None:
        """Keep the listeners in step with the Services, until cancelled."""
        try:
            while True:
                version = self._store.version
                for service in self._store.all(SERVICES):
                    await self._listen(service)
                await self._store.changed(version)
        finally:
            for server in self._servers.values():
                server.close()
            for task in self._tasks:
                task.cancel()

    def addresses(self, namespace: str) -> dict[str, str]:
        """The addresses of Services by name."""
        names = [s["metadata"]["name"] for s in self._store.all(SERVICES, namespace)]
        return {name: self._network.service(namespace, name) for name in names}

    async def _listen(self, service: Body) -> None:
        meta, spec = service["metadata"], service["spec"]
        if spec.get("clusterIP") == "None":
            return
        ip = self._network.service(meta["namespace"], meta["name"])
        if spec.get("clusterIP") != ip:

            def edit(new: Body) -> None:
                new["spec"]["clusterIP"] = ip

            self._store.change(SERVICES, meta["namespace"], meta["name"], edit)
        for port in spec.get("ports", []):
            at = (ip, port["port"])
            if at not in self._servers:
                self._servers[at] = await self._server(meta["namespace"], meta["name"], port, at)

    async def _server(self, namespace: str, name: str, port: Body, at: Listening) -> asyncio.Server:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                with contextlib.suppress(OSError, asyncio.CancelledError):
                    await self._hand_on(namespace, name, port, reader, writer)
            finally:
                self._tasks.discard(task)
                writer.transport.abort()

        return await asyncio.start_server(connected, *at)

    async def _hand_on(
        self, namespace: str, name: str, port: Body, reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        service = self._store.find(SERVICES, namespace, name)
        target = service and self._target(service, port)
        if not target:
            return
        inner_reader, inner_writer = await asyncio.open_connection(*target)
        try:
            ip = target[0]
            ways = [self._copy(ip, reader, inner_writer), self._copy(ip, inner_reader, writer)]
            tasks = [asyncio.ensure_future(way) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            inner_writer.transport.abort()

    def behind(self, namespace: str, name: str, port: str) -> Listening | None:
        """Where a pod behind a Service listens, by the name of the port."""
        service = self._store.find(SERVICES, namespace, name)
        named = (p for p in service["spec"]["ports"] if p.get("name") == port) if service else ()
        found = next(iter(named), None)
        return self._target(service, found) if service and found else None

    def _target(self, service: Body, port: Body) -> tuple[str, int] | None:
        """Some ready pod and its port: any of them, whether it lives or only seems to."""
        selector = {"matchLabels": service["spec"].get("selector", {})}
        found = [
            pod
            for pod in self._store.all(PODS, service["metadata"]["namespace"])
            if fits(selector, pod["metadata"].get("labels", {})) and _reachable(service, pod)
        ]
        if not found:
            return None
        pod = random.choice(found)
        return pod["status"]["podIP"], _port(pod, port)

    async def _copy(
        self, ip: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE):
                while ip in self.cut_off:
                    await asyncio.sleep(POLL_S)
                writer.write(piece)
                await writer.drain()
            writer.write_eof()


def _reachable(service: Body, pod: Body) -> bool:
    early = service["spec"].get("publishNotReadyAddresses")
    gone = "deletionTimestamp" in pod["metadata"]
    return "podIP" in pod["status"] and (bool(early) or (is_true(pod, "Ready") and not gone))


def _port(pod: Body, port: Body) -> int:
    return named_port(pod, port["targetPort"] if "targetPort" in port else port["port"])


def named_port(pod: Body, target: int | str) -> int:
    """The number of a port of a pod that may be given by name."""
    if isinstance(target, int):
        return target
    ports = [p for c in pod["spec"]["containers"] for p in c.get("ports", [])]
    return int(next(p["containerPort"] for p in ports if p.get("name") == target))
