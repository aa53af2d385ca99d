"""The pod that replaces a lost node takes the place of work of a lower priority.

An extended resource of the test's own, one on each of three machines, says who fits where: two hold
the job and the third one other work, so that a replacement finds none that is free.
"""

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.drivers.kubernetes.cluster import NODES, PODS, PRIORITIES, ApiError, NotFoundError
from holdfast.drivers.kubernetes.manifests.overlay import merged
from tests.end_to_end.kubernetes.cluster import RealCluster, until
from tests.end_to_end.kubernetes.job import ClusterJob, took

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(300)]


class Slots:
    """Three machines with one slot each, and two priority classes; all of it is taken away."""

    def __init__(self, cluster: RealCluster) -> None:
        own = secrets.token_hex(3)
        self.cluster, self.resource = cluster, f"holdfast.example/slot-{own}"
        self.low, self.urgent = f"low-{own}", f"urgent-{own}"
        self.machines = cluster.machines()[:3]

    def make(self) -> None:
        """Raises `ApiError` where the test may not do that."""
        for name, value in ((self.low, -10), (self.urgent, 1000)):
            head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
            body = {**head, "metadata": {"name": name}, "value": value}
            self.cluster.call(lambda c, body=body: c.create(body))  # type: ignore[misc]
        for machine in self.machines:
            self._offer(machine, "1")

    def remove(self) -> None:
        for name in (self.low, self.urgent):
            self.cluster.call(lambda c, name=name: c.delete(PRIORITIES, name))  # type: ignore[misc]
        for machine in self.machines:
            self._offer(machine, None)

    def _offer(self, machine: str, count: str | None) -> None:
        slots = {self.resource: count}
        patch = {"status": {"capacity": slots, "allocatable": slots}}
        self.cluster.call(lambda c: c.patch(NODES, machine, patch, part="status"))

    def take(self, name: str, priority_class: str) -> None:
        """Another pod takes a slot, and runs."""
        container = {
            "name": "main",
            "image": "holdfast-e2e",
            "command": ["python", "-c", "import time; time.sleep(600)"],
            "resources": {"limits": {self.resource: "1"}},
        }
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
        spec |= {"containers": [container]}
        body = merged({"metadata": {"name": name}, "spec": spec}, self.cluster.overlay, main="main")
        body["metadata"] = {**body["metadata"], "namespace": self.cluster.namespace}
        body["spec"]["priorityClassName"] = priority_class
        self.cluster.call(lambda c: c.create({"apiVersion": "v1", "kind": "Pod", **body}))
        until(lambda: self.pod(name)["spec"].get("nodeName"), f"{name} to be placed")

    def pod(self, name: str) -> dict[str, Any]:
        try:
            return self.cluster.call(lambda c: c.get(PODS, name))
        except NotFoundError:
            return {"metadata": {"deletionTimestamp": "it is gone"}, "spec": {}}


@pytest.fixture
def slots(cluster: RealCluster) -> Iterator[Slots]:
    """Skips where there are not enough machines or rights."""
    if len(cluster.machines()) < 3:
        pytest.skip("needs three machines that take pods")
    found = Slots(cluster)
    try:
        found.make()
    except ApiError as error:
        found.remove()
        pytest.skip(f"the cluster lets the test offer no resource of its own: {error}")
    yield found
    found.remove()


def test_a_replacement_preempts_work_of_a_lower_priority(
    cluster: RealCluster, slots: Slots, tmp_path: Path, note: dict[str, float]
) -> None:
    own = {"cpu": "500m", "memory": "1500Mi", "shm": "256Mi", "extended": {slots.resource: 1}}
    job = ClusterJob(
        cluster, tmp_path, "pods", name="urgent", steps=100_000, resources=own,
        nodes={"count": 2}, scheduling={"replacement_priority_class": slots.urgent},
    ).start()  # fmt: skip
    job.trains()
    slots.take("other", slots.low)
    lost = job.member(1)
    try:
        cluster.call(
            lambda c: c.patch(NODES, lost.spec.node_name, {"spec": {"unschedulable": True}})
        )
        began = time.monotonic()
        cluster.delete_pod(lost)
        job.trains(attempt=2)
        note["replaced by preemption"] = took(began)
        assert "deletionTimestamp" in slots.pod("other")["metadata"], "it had to make room"
        assert job.member(1).spec.node_name not in (lost.spec.node_name, None)
    finally:
        cluster.undrain(lost.spec.node_name)
    cluster.holdfast("stop", job.name)
    job.ends("stopped")
