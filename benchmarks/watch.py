"""What it costs a controller to learn of 12,500 pods, and of a change of each of them.

    .venv/bin/python benchmarks/watch.py [--quick] [--json] [--pods N]

A server in a process of its own has the answers ready: pods as a managed job has them (about 7 KB
each, with what Kubernetes adds), in pages of 500, then a watch in which every pod changes once.
Each contestant is a fresh process that lists, watches to the end and says what it used of its
processor. Holdfast decodes the fields it needs; lightkube's own client decodes whole models.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from table import Row, report

PAGE = 500
KIB = 1024
Body = dict[str, Any]
Figures = dict[str, float]


def main() -> None:
    args = _arguments()
    rounds = 1 if args.quick else args.rounds
    contestants = {"holdfast": holdfast, "lightkube": lightkube}
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    server = spawn.Process(target=serve, args=(theirs, args.pods), daemon=True)
    server.start()
    url, size = ours.recv()
    try:
        rows = {name: _measure(way, url, args.pods, rounds) for name, way in contestants.items()}
    finally:
        server.kill()
    report(
        f"Learning of {args.pods:,} pods ({size / 1e6:,.0f} MB of JSON)",
        rows,
        as_json=args.json,
        note="list_cpu_s: all of them once. change_cpu_s: every one changes once. Best of rounds.",
    )


def _measure(
    way: Callable[[str, int], Awaitable[Figures]], url: str, pods: int, rounds: int
) -> Row:
    spawn = multiprocessing.get_context("spawn")
    found = []
    for _ in range(rounds):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_contestant, args=(theirs, way, url, pods))
        process.start()
        found.append(ours.recv())
        process.join()
    least = {key: round(min(figures[key] for figures in found), 3) for key in found[0]}
    return {"n": pods, "rounds": rounds, **least}


def _contestant(
    told: Connection, way: Callable[[str, int], Awaitable[Figures]], url: str, pods: int
) -> None:
    async def whole() -> Figures:
        return await way(url, pods)

    figures = asyncio.run(whole())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB
    told.send({**figures, "peak_mib": peak})


class Clock:
    """Time and processor time since the last look."""

    def __init__(self) -> None:
        self._last = (time.perf_counter(), time.process_time())

    def lap(self, name: str) -> Figures:
        """Both, by name, and start again."""
        before, self._last = self._last, (time.perf_counter(), time.process_time())
        wall, cpu = (now - then for now, then in zip(self._last, before, strict=True))
        return {f"{name}_cpu_s": cpu, f"{name}_wall_s": wall}


# ── contestants ───────────────────────────────────────────────────────────────────────────────


class Meta(msgspec.Struct):
    name: str
    uid: str
    labels: dict[str, str] = {}
    leaving: str = msgspec.field(name="deletionTimestamp", default="")


class Status(msgspec.Struct):
    phase: str = ""
    address: str = msgspec.field(name="podIP", default="")


class Spec(msgspec.Struct):
    machine: str = msgspec.field(name="nodeName", default="")


class Pod(msgspec.Struct):
    """What a controller needs of a pod."""

    metadata: Meta
    spec: Spec
    status: Status


async def holdfast(url: str, pods: int) -> Figures:
    """Our own client and watch."""
    import httpx2

    from holdfast.drivers.kubernetes.api import Api
    from holdfast.drivers.kubernetes.cluster import PODS
    from holdfast.drivers.kubernetes.watch import follow

    api = Api(httpx2.AsyncClient(base_url=url, trust_env=False), "default")
    known: dict[str, Pod] = {}
    changes: list[str] = []
    figures: Figures = {}
    over = asyncio.Event()
    clock = Clock()

    def on_listed(items: Any) -> None:
        known.update((item.metadata.uid, item) for item in items)
        figures.update(clock.lap("list"))

    def on_change(change: Any) -> None:
        known[change.object.metadata.uid] = change.object
        changes.append(change.type)
        if len(changes) == pods:
            figures.update(clock.lap("change"))
            over.set()

    task = asyncio.ensure_future(follow(api, PODS, Pod, "", on_listed, on_change))
    await over.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await api.close()
    assert len(known) == pods
    return figures


async def lightkube(url: str, pods: int) -> Figures:
    """The client of lightkube with its models."""
    from lightkube.config.kubeconfig import KubeConfig
    from lightkube.config.models import Cluster, User
    from lightkube.core.async_client import AsyncClient
    from lightkube.resources.core_v1 import Pod as Model

    config = KubeConfig.from_one(cluster=Cluster(server=url), user=User())
    client: Any = AsyncClient(config=config, trust_env=False)
    known: dict[str, Any] = {}
    clock = Clock()
    listed = client.list(Model, namespace="default", chunk_size=PAGE)
    async for item in listed:
        known[item.metadata.uid] = item
    figures = clock.lap("list")
    seen = 0
    async for _, item in client.watch(
        Model, namespace="default", resource_version=listed.resourceVersion
    ):
        known[item.metadata.uid] = item
        seen += 1
        if seen == pods:
            break
    figures |= clock.lap("change")
    assert len(known) == pods
    return figures


# ── the server ────────────────────────────────────────────────────────────────────────────────


def serve(told: Connection, pods: int) -> None:
    """Answer lists in pages, and one kind of watch, from memory."""
    whole = [pod(index) for index in range(pods)]
    pages = [_page(whole[start : start + PAGE], start, pods) for start in range(0, pods, PAGE)]
    lines = [json.dumps({"type": "MODIFIED", "object": body}).encode() for body in whole]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = {key: value[0] for key, value in parse_qs(urlsplit(self.path).query).items()}
            with suppress(ConnectionError):
                self._watch() if query.get("watch") == "true" else self._list(query)

        def _list(self, query: dict[str, str]) -> None:
            body = pages[int(query.get("continue", "0")) // PAGE]
            self._head({"Content-Length": str(len(body))})
            self.wfile.write(body)

        def _watch(self) -> None:
            self._head({"Transfer-Encoding": "chunked"})
            for line in lines:
                self.wfile.write(b"%x\r\n%s\n\r\n" % (len(line) + 1, line))
            self.wfile.write(b"0\r\n\r\n")

        def _head(self, headers: dict[str, str]) -> None:
            self.send_response(200)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.send((f"http://127.0.0.1:{server.server_port}", sum(map(len, pages))))
    server.serve_forever()


def _page(items: list[Body], start: int, pods: int) -> bytes:
    meta: Body = {"resourceVersion": "1"}
    if start + PAGE < pods:
        meta["continue"] = str(start + PAGE)
    return json.dumps({"kind": "PodList", "metadata": meta, "items": items}).encode()


def pod(index: int) -> Body:
    """A pod of a managed job after Kubernetes has added its own."""
    from holdfast.drivers.kubernetes.manifests.render import render, requested
    from holdfast.spec import job_from_dict

    if not TEMPLATE:
        said = {"name": "big", "image": "registry.example/train:1", "script": "train.py"}
        request = requested(job_from_dict(said, where="benchmark"), engine="job")
        found = next(body for body in render(request) if body["kind"] == "Job")
        TEMPLATE.update(found["spec"]["template"])
    name = f"big-{index}"
    spec = {**TEMPLATE["spec"], "nodeName": f"machine-{index}"}
    managed = [_managed(manager) for manager in ("kube-controller-manager", "kubelet")]
    own = {"name": name, "namespace": "default", "uid": str(uuid.UUID(int=index))}
    meta = {**TEMPLATE["metadata"], **own, "resourceVersion": "2", "managedFields": managed}
    times = {"lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z", "status": "True"}
    names = ("PodScheduled", "Initialized", "ContainersReady", "Ready", "PodReadyToStartContainers")
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    told = {"name": "main", "ready": True, "restartCount": 0, "state": state, "image": "i" * 60}
    status = {
        "phase": "Running",
        "podIP": f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}",
        "conditions": [{"type": type_, **times} for type_ in names],
        "containerStatuses": [{**told, "imageID": "i" * 120, "containerID": "c" * 75}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def _managed(manager: str) -> Body:
    """A record of owned fields as big as a real one."""
    fields: Body = {
        f"f:{name}": {"f:value": {}, "f:name": {}, ".": {}} for name in map(str, range(30))
    }
    said = {"manager": manager, "operation": "Update", "apiVersion": "v1"}
    return {**said, "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": fields}}


TEMPLATE: Body = {}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--pods", type=int, default=12_500)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
