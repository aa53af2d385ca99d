"""Jobs on a real cluster: trained to the end, through everything that happens there.

    HOLDFAST_E2E_KUBECONFIG=~/.kube/config HOLDFAST_E2E_OVERLAY=overlay.yaml \\
        pytest tests/end_to_end/kubernetes -k "pods or jobset" -m kubernetes

The overlay gives every pod an image, or volumes, with Holdfast and torch in it.
HOLDFAST_E2E_STORAGE_CLASS names a class whose claims several pods can write to; what needs one is
skipped without.
"""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.drivers.kubernetes.cluster import ApiError
from tests.end_to_end.kubernetes.cluster import RealCluster, until
from tests.end_to_end.kubernetes.job import ClusterJob, took

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(300)]

LONG = 100_000  # steps: more than any test waits for
STORAGE_CLASS = "HOLDFAST_E2E_STORAGE_CLASS"


def test_a_job_trains_to_its_end(
    cluster: RealCluster, engine: str, tmp_path: Path, note: dict[str, float]
) -> None:
    began = time.monotonic()
    job = ClusterJob(cluster, tmp_path, engine, name="whole", steps=600).start()
    job.trains()
    note["first step"] = took(began)
    job.ends()
    assert job.incidents() == []
    job.delete()


def test_a_killed_worker_is_restarted_in_place(
    cluster: RealCluster, engine: str, tmp_path: Path, note: dict[str, float]
) -> None:
    job = ClusterJob(cluster, tmp_path, engine, name="worker", deadly=True, steps=LONG).start()
    job.trains(attempt=2)
    pods = {pod.uid for pod in cluster.pods(job.name)}
    (incident,) = job.incidents()
    note["worker killed"] = incident["lost_s"]
    assert incident["cause"] == "worker-killed"
    assert incident["steps_lost"] <= 1
    assert {n["node"].partition(".")[0] for n in job.status()["nodes"]} <= pods
    cluster.holdfast("stop", job.name)
    job.ends("stopped")


def test_a_deleted_pod_is_replaced_by_the_spare(
    cluster: RealCluster, engine: str, tmp_path: Path, note: dict[str, float]
) -> None:
    job = ClusterJob(cluster, tmp_path, engine, name="deleted", steps=LONG).start()
    job.trains(spares=1)
    cluster.delete_pod(job.member(1))
    job.trains(attempt=2)
    note["pod deleted"] = job.incidents()[0]["lost_s"]
    job.trains(attempt=2, spares=1)  # the engine or the controller has made another
    cluster.holdfast("stop", job.name)
    job.ends("stopped")


def test_an_evicted_pod_is_replaced_by_the_spare(
    cluster: RealCluster, engine: str, tmp_path: Path, note: dict[str, float]
) -> None:
    job = ClusterJob(cluster, tmp_path, engine, name="evicted", steps=LONG).start()
    job.trains(spares=1)
    pod = job.member(0)
    until(lambda: cluster.evict_pod(pod), "the eviction to be allowed")
    job.trains(attempt=2)
    note["pod evicted"] = job.incidents()[0]["lost_s"]
    cluster.holdfast("stop", job.name)
    job.ends("stopped")


def test_a_drained_machine_is_left(
    cluster: RealCluster, engine: str, tmp_path: Path, note: dict[str, float]
) -> None:
    if len(cluster.machines()) < 2:
        pytest.skip("needs two machines that take pods")
    job = ClusterJob(cluster, tmp_path, engine, name="drained", steps=LONG).start()
    job.trains(spares=1)
    machine = job.member(1).spec.node_name
    try:
        cluster.drain(machine, job.name)
        job.trains(attempt=2)
        note["machine drained"] = sum(i["lost_s"] for i in job.incidents())
        assert machine not in {pod.spec.node_name for pod in cluster.pods(job.name) if pod.running}
    finally:
        cluster.undrain(machine)
    cluster.holdfast("stop", job.name)
    job.ends("stopped")


def test_a_dead_machine_costs_a_node_and_not_the_job(
    cluster: RealCluster, engine: str, tmp_path: Path, note: dict[str, float]
) -> None:
    if len(cluster.machines()) < 3:
        pytest.skip("needs three machines that take pods: one of them dies")
    spread = {"spread": [{"key": "kubernetes.io/hostname", "required": True}]}
    job = ClusterJob(cluster, tmp_path, engine, name="dead", steps=LONG, scheduling=spread).start()
    job.trains(spares=1)
    pod = job.member(1)
    if cluster.leader(job.name).spec.node_name == pod.spec.node_name:
        pod = job.member(0)
    try:
        cluster.freeze(pod.spec.node_name, pod)
    except ApiError as error:
        pytest.skip(f"the cluster allows no privileged pod to stop a kubelet: {error}")
    job.trains(attempt=2)
    note["machine died"] = job.incidents()[0]["lost_s"]
    cluster.holdfast("stop", job.name)


def test_a_killed_controller_disturbs_nobody_and_the_next_goes_on(
    cluster: RealCluster, engine: str, tmp_path: Path, note: dict[str, float]
) -> None:
    job = ClusterJob(cluster, tmp_path, engine, name="controller", steps=LONG).start()
    before = job.trains(spares=1)
    cluster.delete_pod(cluster.leader(job.name))
    after = job.until(
        lambda s: (s["step"] or 0) > (before["step"] or 0) + 20 and s["controller"] == "alive",
        "the next controller to see training go on",
    )
    assert after["attempt"] == before["attempt"], "training never noticed"
    assert job.incidents() == []
    cluster.delete_pod(job.member(1))
    job.trains(attempt=before["attempt"] + 1)
    note["pod deleted under the next controller"] = job.incidents()[0]["lost_s"]
    cluster.holdfast("stop", job.name)
    job.ends("stopped")


def has_saved(status: dict[str, Any]) -> bool:
    """A tier that could only not be written to is listed, too."""
    return any(tier["step"] is not None for tier in status["checkpoints"])


def test_pods_repeat_a_step_also_on_a_spare_and_in_groups_and_training_goes_on(
    cluster: RealCluster, engine: str, tmp_path: Path, note: dict[str, float]
) -> None:
    storage = os.environ.get(STORAGE_CLASS)
    if not storage:
        pytest.skip(f"{STORAGE_CLASS} names no storage class for checkpoints that all pods read")
    shared = {"pvc": "checkpoints", "storage_class": storage, "every_s": 1, "keep": 1000}
    tiers = {"shared": shared}
    job = ClusterJob(
        cluster, tmp_path, engine, name="replay", steps=LONG, checkpoints=tiers
    ).start()
    saved = job.until(has_saved, "a checkpoint that all pods can read")
    status = job.trains(spares=1, after=(saved["step"] or 0) + 1)
    spare = next(n["name"] for n in status["nodes"] if n["state"] == "spare")
    step = str(status["step"])
    began = time.monotonic()
    there = cluster.told("replay", job.name, "--step", step, "--on", spare)
    note["step repeated"] = took(began)
    assert there["verdict"] == "genuine" and f"on {spare} as well" in there["summary"], there
    job.trains(attempt=2)
    began = time.monotonic()
    groups = cluster.told("replay", job.name, "--step", step, "--isolate")
    note["groups"] = took(began)
    assert groups["nodes"] == [] and "no group failed" in groups["summary"], groups
    job.trains(attempt=3)
    assert {(i["cause"], i["steps_lost"]) for i in job.incidents()} == {("repeated", 0)}
    cluster.holdfast("stop", job.name)
    job.ends("stopped")


def test_a_stopped_job_leaves_nothing_running(
    cluster: RealCluster, engine: str, tmp_path: Path, note: dict[str, float]
) -> None:
    job = ClusterJob(cluster, tmp_path, engine, name="stopped", steps=LONG).start()
    job.trains()
    began = time.monotonic()
    cluster.holdfast("stop", job.name)
    job.ends("stopped")
    note["stop"] = took(began)
    job.delete()
