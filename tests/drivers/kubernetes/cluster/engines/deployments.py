"""Deployments and their ReplicaSets: as many pods as asked for, replaced as soon as one goes."""

from holdfast.drivers.kubernetes.cluster import DEPLOYMENTS, PODS
from tests.drivers.kubernetes.cluster.admission import digest
from tests.drivers.kubernetes.cluster.conditions import is_true, set_condition
from tests.drivers.kubernetes.cluster.kinds import REPLICA_SETS
from tests.drivers.kubernetes.cluster.making import (
    active,
    children,
    delete,
    going,
    make,
    make_pod,
    suffix,
)
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.cluster.store import Store

HASH = "pod-template-hash"


def step(store: Store) -> None:
    """Act on all Deployments and ReplicaSets."""
    for deployment in store.all(DEPLOYMENTS):
        if not going(deployment):
            _deployment(store, deployment)
    for replica_set in store.all(REPLICA_SETS):
        if not going(replica_set):
            _replica_set(store, replica_set)


def _deployment(store: Store, deployment: Body) -> None:
    """One ReplicaSet for the template of now; those of earlier ones are scaled down first."""
    meta, spec = deployment["metadata"], deployment["spec"]
    name = f"{meta['name']}-{digest(spec['template'])}"
    found = children(store, deployment, REPLICA_SETS)
    old = [s for s in found if s["metadata"]["name"] != name]
    for replica_set in old:
        _scale(store, replica_set, 0)
    recreate = spec.get("strategy", {}).get("type") == "Recreate"
    if recreate and any(children(store, s) for s in old):
        return
    if not any(s["metadata"]["name"] == name for s in found):
        _new_set(store, deployment, name)
    for replica_set in found:
        if replica_set["metadata"]["name"] == name:
            _scale(store, replica_set, spec["replicas"])
    pods = [pod for s in found for pod in children(store, s)]
    _told(store, deployment, pods)


def _new_set(store: Store, deployment: Body, name: str) -> None:
    spec = deployment["spec"]
    hashed = {HASH: name.rpartition("-")[2]}
    template = spec["template"]
    labels = {**template["metadata"]["labels"], **hashed}
    made = {**template, "metadata": {**template["metadata"], "labels": labels}}
    selector = {"matchLabels": {**spec["selector"]["matchLabels"], **hashed}}
    wanted = {"replicas": spec["replicas"], "selector": selector, "template": made}
    make(
        store, REPLICA_SETS, deployment, DEPLOYMENTS, name, metadata={"labels": labels}, spec=wanted
    )


def _scale(store: Store, replica_set: Body, replicas: int) -> None:
    meta = replica_set["metadata"]

    def edit(body: Body) -> None:
        body["spec"]["replicas"] = replicas

    store.change(REPLICA_SETS, meta["namespace"], meta["name"], edit)


def _told(store: Store, deployment: Body, pods: list[Body]) -> None:
    meta = deployment["metadata"]
    ready = sum(is_true(pod, "Ready") for pod in pods)

    def edit(body: Body) -> None:
        counts = {"replicas": len(pods), "readyReplicas": ready, "availableReplicas": ready}
        body["status"] = {
            **body.get("status", {}),
            **counts,
            "observedGeneration": meta["generation"],
        }
        enough = ready >= body["spec"]["replicas"]
        set_condition(body, "Available", str(enough))

    store.change(DEPLOYMENTS, meta["namespace"], meta["name"], edit)


def _replica_set(store: Store, replica_set: Body) -> None:
    meta, spec = replica_set["metadata"], replica_set["spec"]
    pods = children(store, replica_set)
    alive = [pod for pod in pods if active(pod)]
    for _ in range(spec["replicas"] - len(alive)):
        name = f"{meta['name']}-{suffix()}"
        make_pod(store, replica_set, REPLICA_SETS, spec["template"], name)
    for pod in alive[spec["replicas"] :]:
        delete(store, PODS, pod)
    ended = [pod for pod in pods if not active(pod) and not going(pod)]
    for pod in ended if spec["replicas"] == 0 else []:
        delete(store, PODS, pod)
