"""Collects what nobody owns any more, and finishes deletions in the foreground."""

from holdfast.drivers.kubernetes.cluster import Kind
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.cluster.store import FOREGROUND, Store


def collect(store: Store) -> None:
    """Delete objects all of whose owners are gone, and what blocks an owner that wants to go."""
    everything = store.everything()
    there = {body["metadata"]["uid"]: body for _, body in everything}
    for kind, body in everything:
        owners = body["metadata"].get("ownerReferences", [])
        if owners and _unowned(owners, there) and "deletionTimestamp" not in body["metadata"]:
            _delete(store, kind, body)
    for kind, body in everything:
        if FOREGROUND in body["metadata"].get("finalizers", []):
            _finish(store, kind, body, everything)


def _unowned(owners: list[Body], there: dict[str, Body]) -> bool:
    """Owners that are being deleted in the foreground are as good as gone."""
    alive = (there.get(owner["uid"]) for owner in owners)
    return all(
        owner is None or FOREGROUND in owner["metadata"].get("finalizers", []) for owner in alive
    )


def _finish(store: Store, kind: Kind, body: Body, everything: list[tuple[Kind, Body]]) -> None:
    uid = body["metadata"]["uid"]
    blocking = [
        other
        for other_kind, other in everything
        if any(
            o["uid"] == uid and o.get("blockOwnerDeletion")
            for o in other["metadata"].get("ownerReferences", [])
        )
        and store.find(other_kind, other["metadata"].get("namespace", ""), _name(other))
    ]
    if not blocking:

        def edit(new: Body) -> None:
            meta = new["metadata"]
            meta["finalizers"] = [f for f in meta["finalizers"] if f != FOREGROUND]

        store.change(kind, body["metadata"].get("namespace", ""), _name(body), edit)


def _name(body: Body) -> str:
    return str(body["metadata"]["name"])


def _delete(store: Store, kind: Kind, body: Body) -> None:
    meta = body["metadata"]
    if store.find(kind, meta.get("namespace", ""), meta["name"]) is not None:
        store.delete(kind, meta.get("namespace", ""), meta["name"], uid=meta["uid"])
