"""Names in the cluster of the tests come as late as in a real one, where torchrun falls into it: it
asks once, at its start, whether the endpoint that all meet at is its own."""

import sys
from typing import Any

from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import PODS
from holdfast.drivers.kubernetes.manifests.render import unchecked
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.cluster.names import file_of
from tests.drivers.kubernetes.cluster.pace import Pace
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.playing import playing

LATE = Pace(names_s=300.0)  # 3 s: longer than a pod takes to start
ASKS = """
import socket, sys, time
def ask(name):
    try:
        return sorted({found[4][0] for found in socket.getaddrinfo(name, 80)})
    except OSError:
        return []
print("me", socket.gethostname(), ask(socket.gethostname()), flush=True)
print("first", ask(sys.argv[1]), flush=True)
while not ask(sys.argv[1]):
    time.sleep(0.02)
print("then", ask(sys.argv[1]), flush=True)
time.sleep(600)
"""
DECIDES = """
import socket, sys
name = sys.argv[1]
try:
    told = {found[4][0] for found in socket.getaddrinfo(name, None)}
except OSError:
    told = set()
mine = {found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None)}
print("host" if told & mine else "guest", flush=True)
"""


def service(**spec: Any) -> Body:
    kind = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "run"}}
    return {**kind, "spec": {"clusterIP": "None", "selector": {"l": "x"}, **spec}}


def asks(name: str, **container: Any) -> Body:
    """A pod called `a` that prints what it knows of a name."""
    command = [sys.executable, "-c", ASKS, name]
    main = {"name": "main", "image": "i", "command": command, **container}
    spec = {"restartPolicy": "Never", "hostname": "a", "subdomain": "run", "containers": [main]}
    meta = {"name": "a", "labels": {"l": "x"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


async def said(it: FakeCluster, word: str) -> str:
    """The rest of the line that begins with this word."""

    def found() -> str:
        lines = it.output(it.pods()[0]).splitlines()
        return next((x.removeprefix(word).strip() for x in lines if x.startswith(word)), "")

    return await it.until(found)


def test_a_pod_knows_itself_at_once_and_others_know_it_later() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(service(publishNotReadyAddresses=True))
        await api.create(asks("a.run.default.svc.cluster.local"))
        ip = str(await it.until(lambda: it.pods()[0]["status"].get("podIP")))
        assert await said(it, "me") == f"a ['{ip}']"
        assert await said(it, "first") == "[]"
        assert await said(it, "then") == f"['{ip}']"

    playing(act, machines=3, engines=(), pace=LATE)


def test_a_name_that_nobody_has_is_unknown_and_no_one_else_is_asked() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(asks("example.com"))
        assert await said(it, "first") == "[]"

    playing(act, machines=3, engines=(), pace=LATE)


def test_the_service_itself_has_the_addresses_of_all_its_pods_or_its_own() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(service(clusterIP=None, ports=[{"port": 80}]))
        await api.create(asks("run"))
        address = it.network.service("default", "run")
        assert await said(it, "then") == f"['{address}']"

    playing(act, machines=3, engines=(), pace=Pace())


def test_a_pod_that_is_not_ready_has_a_name_only_where_the_service_says_so() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(service())
        never = {"tcpSocket": {"port": 1}}
        await api.create(asks("a.run", readinessProbe=never))
        await said(it, "first")
        names = file_of(it.folder, "default")
        await api.create(service(publishNotReadyAddresses=True) | {"metadata": {"name": "early"}})
        await it.until(lambda: names.is_file() and "early" in names.read_text())
        assert "a.run" not in names.read_text()
        assert "then" not in it.output(it.pods()[0])

    playing(act, machines=3, engines=(), pace=Pace())


def test_a_name_outlives_its_pod_for_as_long_as_it_came_late() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(service(publishNotReadyAddresses=True))
        await api.create(asks("a.run"))
        await said(it, "then")
        names = file_of(it.folder, "default")
        for pod in it.pods():
            it.store.delete(PODS, "default", pod["metadata"]["name"], grace_s=0)
        assert it.pods() == [] and "a.run" in names.read_text()
        await it.until(lambda: "a.run" not in names.read_text())

    playing(act, machines=3, engines=(), pace=LATE)


# ── what torchrun decides ─────────────────────────────────────────────────────────────────────


def decisions(*, waits: bool) -> list[str]:
    """What the two pods of a plain job take themselves for, if the program is asked as its launcher
    would: whether the endpoint in its command is here."""
    found: list[str] = []

    async def act(it: FakeCluster, api: Api) -> None:
        request = asked("job", "plain", nodes=2, namespace="default")
        for body in unchecked(request):
            if body["kind"] == "Job":
                _replaced(body, waits=waits)
            await api.apply(body)
        words = ("host", "guest")

        def both() -> bool:
            found[:] = [w for p in it.pods(job="run") for w in it.output(p).split() if w in words]
            return len(found) == 2

        await it.until(both)

    playing(act, machines=3, engines=(), pace=LATE)
    return sorted(found)


def _replaced(body: Body, *, waits: bool) -> None:
    """DECIDES in place of torchrun, behind what comes before it or without that."""
    spec = body["spec"]["template"]["spec"]
    (main,) = spec["containers"]
    first = main["command"].index("torchrun")
    (endpoint,) = [w for w in main["command"] if w.startswith("--rdzv-endpoint=")]
    host = endpoint.removeprefix("--rdzv-endpoint=").rpartition(":")[0]
    before = main["command"][:first] if waits else []
    main["command"] = [*before, sys.executable, "-c", DECIDES, host]


def test_without_waiting_for_its_name_nobody_is_the_host() -> None:
    assert decisions(waits=False) == ["guest", "guest"]


def test_a_plain_job_waits_for_its_first_name_and_one_is_the_host() -> None:
    assert decisions(waits=True) == ["guest", "host"]
