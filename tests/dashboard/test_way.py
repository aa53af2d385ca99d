"""The way from a browser to a job of a cluster: the page behind its Service, the controller behind
its own, both in pods that are real processes, with the rights that `deploy/dashboard` gives."""

import asyncio
import http.client
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.dashboard.controller_figures import figures
from holdfast.drivers.kubernetes.cluster import LEASES, PODS, SERVICES
from holdfast.drivers.kubernetes.manifests.names import JOB, ROLE
from tests.drivers.kubernetes.cluster.fake import FakeCluster, in_thread
from tests.drivers.kubernetes.cluster.rbac import token
from tests.patience import PATIENCE_S
from tests.tidy.source import ROOT
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

STEPS = """
import os, time
from holdfast.events import Milestone
from holdfast.page import Page, StepRecord, WorkerPhase
page = Page(int(os.environ["HOLDFAST_PAGE_FD"]))
page.phase(WorkerPhase.STEP)
for milestone in Milestone:
    if milestone not in (Milestone.FINISHED, Milestone.OUTPUT):
        page.reach(milestone)
for step in range(1, 100_000):
    time.sleep(0.1)
    record = StepRecord(step=step, at=time.monotonic(), loss=0.5, grad_norm=None, tokens=8)
    page.step_done(step, 0.1, record)
"""
CURVE = "/api/jobs/gpt/figures/curve/0/end/100"
GARBAGE = """
import os, socketserver
class Nonsense(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(4096)
        self.request.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\n\\r\\n<html>")
socketserver.TCPServer((os.environ["FAKE_POD_IP"], 7072), Nonsense).serve_forever()
"""


class Site:
    """A cluster with the job `gpt`, and the page in front of it."""

    def __init__(self, it: FakeCluster, folder: Path) -> None:
        self.it, self._folder = it, folder
        config = str(it.do(lambda it: it.kubeconfig()))
        self.env = {**os.environ, "KUBECONFIG": config, "HOLDFAST_ON": "kubernetes"}
        self.apply(*installed())

    def apply(self, *bodies: dict[str, Any]) -> None:
        """As `kubectl apply` does."""

        async def all_of_them() -> None:
            api = self.it.api()
            for body in bodies:
                await api.apply(body)
            await api.close()

        asyncio.run(all_of_them())

    def submit(self) -> None:
        """The job, whose script only counts."""
        script = self._folder / "count.py"
        script.write_text(STEPS)
        said = {"name": "gpt", "image": "img:1", "command": [sys.executable, str(script)],
                "nodes": 1, "workers_per_node": 1}  # fmt: skip
        file = self._folder / "job.yaml"
        file.write_text(json.dumps(said))
        self.holdfast("submit", str(file))

    def holdfast(self, *words: str) -> None:
        """A command of the administrator's, that has to succeed."""
        done = holdfast(*words, env=self.env)
        assert done.returncode == 0, done.stderr

    def ask(self, path: str, who: str = "reader", method: str = "GET") -> tuple[int, Any]:
        """Status and JSON of an answer; 0 while nobody listens there."""
        ip = self.it.network.service("default", "holdfast-dashboard")
        line = http.client.HTTPConnection(ip, 8080, timeout=PATIENCE_S)
        bearer = {"Authorization": f"Bearer {token('default', who)}"} if who else {}
        try:
            line.request(method, path, headers=bearer)
            answer = line.getresponse()
            content = answer.read()
            told = answer.getheader("Content-Type") == "application/json"
            return answer.status, json.loads(content) if told else content.decode()
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            line.close()

    def until(self, true: Callable[[], object]) -> None:
        """Wait until something holds; a look costs more than a pause."""
        end = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < end, (self.ask(CURVE), self.it.do(lambda it: it.story()))
            time.sleep(0.2)

    def jobs(self) -> list[tuple[str, str | None]] | None:
        """Name and controller of each; None while that has not answered."""
        status, told = self.ask("/api/fleet")
        return (
            [(one["job"], one.get("controller")) for one in told["jobs"]] if status == 200 else None
        )

    def curve(self) -> list[int]:
        """Steps of the curve that the page has of the controller."""
        status, told = self.ask(CURVE)
        return list(told["step"]) if status == 200 else []

    def silent(self) -> str:
        """Why the controller's figures are missing; the rest of the page is not concerned."""
        status, told = self.ask(CURVE)
        if status != 500 or told["error"]["slug"] != "controller-silent":
            return ""
        assert self.ask("/api/jobs/gpt")[0] == 200
        return str(told["error"]["why"])

    def controller(self) -> str:
        """The name of the pod that has the lease."""
        lease = self.it.do(lambda it: it.store.find(LEASES, "default", "gpt-controller"))
        return str((lease or {"spec": {}})["spec"].get("holderIdentity", ""))


def installed() -> list[dict[str, Any]]:
    """What is in `deploy/dashboard`, and three accounts: of one who may read what the page shows,
    of one who may read no logs, of one who may read the files of another job alone."""
    files = [
        ROOT / "deploy" / "dashboard" / f"{n}.yaml" for n in ("rights", "deployment", "service")
    ]
    bodies = [body for file in files for body in yaml.safe_load_all(file.read_text())]
    for body in bodies:
        body["metadata"]["namespace"] = "default"
        if body["kind"].startswith("Cluster"):
            del body["metadata"]["namespace"]
        if body["kind"] == "Service":
            body["spec"]["ports"][0]["port"] = 8080  # below 1024 are for root
    read = {"apiGroups": [""], "verbs": ["get", "list"]}
    maps, logs = {**read, "resources": ["configmaps"]}, {**read, "resources": ["pods/log"]}
    one = {**maps, "resourceNames": ["other-job", "other-record"]}
    for name, rules in (("reader", [maps, logs]), ("clerk", [maps]), ("guest", [one, logs])):
        rights = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": _named(name)}
        who = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        bodies += [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _named(name)},
            {**rights, "kind": "Role", "rules": rules},
            {**rights, "kind": "RoleBinding", "roleRef": role, "subjects": [who]},
        ]
    return bodies


def _named(name: str) -> dict[str, str]:
    return {"name": name, "namespace": "default"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with in_thread(machines=2) as it:
        yield Site(it, tmp_path)


def test_the_page_of_a_cluster_shows_figures_of_controllers_that_come_and_go(site: Site) -> None:
    site.until(lambda: site.jobs() == [])
    for who in ("clerk", "guest", "nobody", ""):
        assert site.ask("/api/fleet", who)[0] == site.ask("/", who)[0] == 401, who
    assert site.ask("/api/fleet", method="POST")[0] == 405
    site.submit()
    site.until(lambda: len(site.curve()) > 2)
    site.until(lambda: site.jobs() == [("gpt", "alive")])
    first = site.controller()
    asyncio.run(_from_outside(site.it))
    _another_controller(site, first)
    _garbage(site)
    site.holdfast("delete", "gpt", "--force")
    site.until(lambda: site.jobs() == [])
    status, told = site.ask(CURVE)
    assert (status, told["error"]["slug"]) == (404, "job-not-found")


async def _from_outside(it: FakeCluster) -> None:
    """Through the API server, for whoever may: `holdfast dashboard --on kubernetes` on a laptop."""
    may, may_not = it.api(), it.api(account="reader")
    assert json.loads(await figures(may, "gpt", "curve/0/end/100"))["step"]
    with pytest.raises(ConnectionError, match='cannot get resource "services/proxy"'):
        await figures(may_not, "gpt", "curve/0/end/100")
    await may.close()
    await may_not.close()


def _another_controller(site: Site, first: str) -> None:
    """Its pod is gone; nobody answers until there is another one, which begins a curve."""
    seen = site.curve()[-1]
    asyncio.run(_deleted(site.it, first))
    site.until(lambda: site.controller() not in ("", first) and site.curve()[:1] > [seen])


async def _deleted(it: FakeCluster, pod: str) -> None:
    api = it.api()
    await api.delete(PODS, pod, grace_s=0)
    await api.close()


def _garbage(site: Site) -> None:
    """Another pod has got behind the Service of the controller, or none is."""
    odd = {"app": "odd"}
    container = {"name": "odd", "image": "img:1", "command": [sys.executable, "-S", "-c", GARBAGE],
                 "ports": [{"name": "metrics", "containerPort": 7072}]}  # fmt: skip

    def pointed(labels: dict[str, str]) -> None:
        def edit(body: dict[str, Any]) -> None:
            body["spec"]["selector"] = labels

        site.it.do(lambda it: it.store.change(SERVICES, "default", "gpt-controller", edit))

    pointed(odd)
    site.until(site.silent)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**_named("odd"), "labels": odd}}
    site.apply({**pod, "spec": {"containers": [container]}})
    site.until(lambda: "cannot be read" in site.silent())
    pointed({JOB: "gpt", ROLE: "controller"})
    site.until(site.curve)
