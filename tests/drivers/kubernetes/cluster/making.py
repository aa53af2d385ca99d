"""Pods that a controller makes of a template."""

import random

from holdfast.drivers.kubernetes.cluster import PODS, Kind
from tests.drivers.kubernetes.cluster import admission
from tests.drivers.kubernetes.cluster.refusal import Body, copied
from tests.drivers.kubernetes.cluster.store import Store, owned_by

LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def suffix() -> str:
    """Five characters that make a name new."""
    return "".join(random.choices(LETTERS, k=5))


def make_pod(
    store: Store, owner: Body, kind: Kind, template: Body, name: str, **meta: Body
) -> Body:
    """A pod of this template that belongs to `owner`; `meta` is merged into its metadata.

    Raises `RefusalError`, as when a quota is used up.
    """
    made = copied(template)
    found = {**made.get("metadata", {}), "name": name}
    for key, value in meta.items():
        found[key] = {**found.get(key, {}), **value}
    namespace = owner["metadata"]["namespace"]
    found["ownerReferences"] = [owned_by(owner, kind)]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": found, "spec": made["spec"]}
    return store.create(PODS, namespace, admission.admit(store, PODS, namespace, body))


def make(store: Store, kind: Kind, owner: Body, owner_kind: Kind, name: str, **body: Body) -> Body:
    """Another object that belongs to `owner`."""
    namespace = owner["metadata"]["namespace"]
    meta = {"name": name, **body.pop("metadata", {})}
    meta["ownerReferences"] = [owned_by(owner, owner_kind)]
    found = {"apiVersion": kind.api, "kind": kind.kind, "metadata": meta, **body}
    return store.create(kind, namespace, admission.admit(store, kind, namespace, found))


def children(store: Store, owner: Body, kind: Kind = PODS) -> list[Body]:
    """Objects that belong to `owner`."""
    uid, namespace = owner["metadata"]["uid"], owner["metadata"]["namespace"]
    return [
        body
        for body in store.all(kind, namespace)
        if any(o["uid"] == uid for o in body["metadata"].get("ownerReferences", []))
    ]


def delete(store: Store, kind: Kind, body: Body) -> None:
    """Delete one, unless that has begun."""
    meta = body["metadata"]
    if "deletionTimestamp" not in meta:
        store.delete(kind, meta["namespace"], meta["name"], uid=meta["uid"])


def going(body: Body) -> bool:
    """Whether it is being deleted."""
    return "deletionTimestamp" in body["metadata"]


def phase(pod: Body) -> str:
    """A pod's phase."""
    return str(pod.get("status", {}).get("phase", "Pending"))


def active(pod: Body) -> bool:
    """Whether a pod counts as there: not ended, not going."""
    return not going(pod) and phase(pod) not in ("Succeeded", "Failed")


def unhold(store: Store, pod: Body, finalizer: str) -> None:
    """Let go of a pod."""
    meta = pod["metadata"]

    def edit(body: Body) -> None:
        kept = [f for f in body["metadata"].get("finalizers", []) if f != finalizer]
        body["metadata"]["finalizers"] = kept

    store.change(PODS, meta["namespace"], meta["name"], edit)


def exit_code(pod: Body, container: str = "") -> int | None:
    """The exit status of a container that has ended; of the first if none is named."""
    for told in pod.get("status", {}).get("containerStatuses", []):
        if container in ("", told["name"]):
            ended = told["state"].get("terminated")
            return None if ended is None else int(ended["exitCode"])
    return None
