"""A real cluster for the tests: what it offers, a namespace of its own, and blunt tools.

Everything is done the way a user does it, by the command line, except harm, which goes straight to
the API: pods deleted and evicted, machines drained, their kubelets stopped.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import (
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    ApiError,
    Cluster,
    NotFoundError,
)
from holdfast.drivers.kubernetes.config import connect
from holdfast.drivers.kubernetes.manifests.overlay import merged
from holdfast.drivers.kubernetes.pods import Pod

T = TypeVar("T")

KUBECONFIG = "HOLDFAST_E2E_KUBECONFIG"
OVERLAY = "HOLDFAST_E2E_OVERLAY"
OF_CONTAINERS = frozenset(
    ("image", "imagePullPolicy", "env", "envFrom", "volumeMounts", "resources", "securityContext")
)
DEADLINE_S = 240.0
POLL_S = 0.5

ENGINES: dict[str, tuple[str, str]] = {  # engine → API and resource that the cluster has to serve
    "pods": ("v1", "pods"),
    "job": ("batch/v1", "jobs"),
    "jobset": ("jobset.x-k8s.io/v1alpha2", "jobsets"),
    "pytorchjob": ("kubeflow.org/v1", "pytorchjobs"),
    "tfjob": ("kubeflow.org/v1", "tfjobs"),
    "jaxjob": ("kubeflow.org/v1", "jaxjobs"),
    "xgboostjob": ("kubeflow.org/v1", "xgboostjobs"),
    "paddlejob": ("kubeflow.org/v1", "paddlejobs"),
    "mpijob": ("kubeflow.org/v2beta1", "mpijobs"),
    "rayjob": ("ray.io/v1", "rayjobs"),
    "trainjob": ("trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "volcano": ("batch.volcano.sh/v1alpha1", "jobs"),
}


class RealCluster:
    """One namespace of the cluster that HOLDFAST_E2E_KUBECONFIG names."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.environ = {**os.environ, "KUBECONFIG": os.environ[KUBECONFIG]}
        named = os.environ.get(OVERLAY)
        self.overlay = overlay_in(Path(named)) if named else {}

    # ── the API ──

    def call(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        """Do something with the API."""
        os.environ["KUBECONFIG"] = self.environ["KUBECONFIG"]

        async def done() -> T:
            cluster = Api(connect().client, self.namespace)
            try:
                return await work(cluster)
            finally:
                await cluster.close()

        return asyncio.run(done())

    def make(self) -> None:
        """Create the namespace."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        self.call(lambda c: c.create(body))

    def remove(self) -> None:
        """Delete the namespace and all that is in it."""
        self.call(lambda c: c.delete(NAMESPACES, self.namespace, foreground=True))

    def serves(self, engine: str) -> bool:
        """Whether the cluster has what this engine needs."""
        api, plural = ENGINES[engine]
        path = f"/apis/{api}" if "/" in api else f"/api/{api}"
        try:
            found = self.call(lambda c: c.ask(path))
        except NotFoundError:
            return False
        return plural in {resource["name"] for resource in found["resources"]}

    def pods(self, job: str) -> list[Pod]:
        """Pods of a job that train or wait."""
        return self.pods_of_role(job, "node", "spare")

    def pods_of_role(self, job: str, *roles: str) -> list[Pod]:
        """Pods of a job with one of these roles that are not on their way out."""
        label = f"holdfast.dev/job={job},holdfast.dev/role in ({','.join(roles)})"
        return self.call(lambda c: c.listed(PODS, Pod, labels=label)).items

    def leader(self, job: str) -> Pod:
        """The pod of the controller that decides; another one stands by."""

        def found() -> Pod | None:
            lease = self.call(lambda c: c.get(LEASES, f"{job}-controller"))
            holder = lease["spec"].get("holderIdentity")
            there = self.pods_of_role(job, "controller")
            return next((pod for pod in there if pod.metadata.name == holder), None)

        pod: Pod = until(found, "a controller to hold the lease")
        return pod

    def machines(self) -> list[str]:
        """Names of the machines that take pods."""

        async def found(cluster: Cluster) -> list[str]:
            listed = await cluster.listed(NODES, dict)
            return [
                n["metadata"]["name"]
                for n in listed.items
                if not n.get("spec", {}).get("unschedulable")
                and not any(
                    t["effect"] == "NoSchedule" for t in n.get("spec", {}).get("taints", [])
                )
            ]

        return self.call(found)

    # ── harm ──

    def delete_pod(self, pod: Pod) -> None:
        """As `kubectl delete pod`."""
        self.call(lambda c: c.delete(PODS, pod.metadata.name, uid=pod.uid))

    def evict_pod(self, pod: Pod) -> bool:
        """As the Eviction API does; False if the budget forbids it."""
        return self.call(lambda c: c.evict(pod.metadata.name, uid=pod.uid))

    def drain(self, machine: str, job: str) -> None:
        """As `kubectl drain`, as far as this job is concerned."""
        self.call(lambda c: c.patch(NODES, machine, {"spec": {"unschedulable": True}}))
        for pod in [p for p in self.pods(job) if p.spec.node_name == machine]:
            until(lambda pod=pod: self.evict_pod(pod), f"eviction of {pod.metadata.name}")  # type: ignore[misc]

    def undrain(self, machine: str) -> None:
        """As `kubectl uncordon`."""
        self.call(lambda c: c.patch(NODES, machine, {"spec": {"unschedulable": None}}))

    def freeze(self, machine: str, image_of: Pod) -> str:
        """Stop kubelet and the job's processes of a machine, as if it had lost power; name of the
        pod that did it. Raises `ApiError` where privileged pods are not allowed."""
        name = f"freezer-{int(time.time())}"
        container = {
            "name": "main",
            "image": "holdfast-e2e",
            "command": ["python", "-c", FREEZE, self.namespace],
            "securityContext": {"privileged": True, "runAsUser": 0},
        }
        spec = {"nodeName": machine, "hostPID": True, "restartPolicy": "Never",
                "tolerations": [{"operator": "Exists"}], "containers": [container]}  # fmt: skip
        template = merged({"metadata": {"name": name}, "spec": spec}, self.overlay, main="main")
        template["spec"]["containers"][0]["securityContext"] = container["securityContext"]
        template["metadata"] = {**template["metadata"], "namespace": self.namespace}
        self.call(lambda c: c.create({"apiVersion": "v1", "kind": "Pod", **template}))
        assert image_of.spec.node_name == machine
        return name

    # ── the command line ──

    def holdfast(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command as a user does."""
        where = ("--on", "kubernetes", "--namespace", self.namespace)
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.cli", *words, *where],
            capture_output=True, text=True, env=self.environ, check=False, timeout=DEADLINE_S,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stderr}"
        return done

    def told(self, *words: str) -> Any:
        """The JSON answer of a command."""
        return json.loads(self.holdfast(*words, "--json").stdout)


def overlay_in(path: Path) -> dict[str, Any]:
    """The overlay of a file, however short it is: as in a job file, or only a pod's spec, or only
    the keys of a container. Its containers stand for all that a pod has."""
    said: dict[str, Any] = yaml.safe_load(path.read_text()) or {}
    said = said.get("overlay", said)
    if not {"spec", "metadata"} & said.keys():
        own = {key: value for key, value in said.items() if key in OF_CONTAINERS}
        spec = {key: value for key, value in said.items() if key not in own}
        if own:
            spec["containers"] = [{"name": "*", **own}, *spec.get("containers", [])]
        said = {"spec": spec}
    containers = said.get("spec", {}).get("containers", [])
    for container in containers:
        if container.get("name") != "controller":
            container["name"] = "*"  # init containers and the controller need the image too
    return said


FREEZE = """
import os, signal, sys, time
# SIGSTOP to kubelet, and to every process that belongs to a job of the namespace: for the cluster
# that is a dead machine. Undone after four minutes, so that the machine comes back by itself.
def pids(match):
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            if match(int(pid)):
                yield int(pid)
        except OSError:
            pass
def name(pid):
    return open(f'/proc/{pid}/comm').read().strip()
def ours(pid):
    return pid != os.getpid() and b'HOLDFAST_NODE=' in open(f'/proc/{pid}/environ', 'rb').read()
stopped = [*pids(lambda p: name(p) == 'kubelet'), *pids(ours)]
for pid in stopped:
    os.kill(pid, signal.SIGSTOP)
time.sleep(240)
for pid in stopped:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass
"""


def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Poll until something is true, and return it."""
    end = time.monotonic() + deadline_s
    while True:
        try:
            found = condition()
        except ApiError as error:
            if not error.transient:
                raise
            found = None
        if found:
            return found
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {what}"
        time.sleep(POLL_S)
