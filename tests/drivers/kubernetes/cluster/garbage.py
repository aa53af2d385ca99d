"""Collects what nobody owns any more, and finishes deletions in the foreground."""

from holdfast.drivers.kubernetes.cluster import NAMESPACES, Kind
from tests.drivers.kubernetes.cluster.refusal import Body, RefusalError
from tests.drivers.kubernetes.cluster.store import FOREGROUND, Store
from tests.drivers.kubernetes.cluster.webhooks import Webhooks

AGAIN_S = 0.1


def collect(store: Store, webhooks: Webhooks) -> float | None:
    """Delete objects all of whose owners are gone, and what blocks an owner that wants to go; how
    long until what a webhook refused is tried again."""
    everything = store.everything()
    there = {body["metadata"]["uid"]: body for _, body in everything}
    for kind, body in everything:
        owners = body["metadata"].get("ownerReferences", [])
        if owners and _unowned(owners, there) and "deletionTimestamp" not in body["metadata"]:
            blocks = any(_foreground(there.get(owner["uid"])) for owner in owners)
            _delete(store, kind, body, waits=blocks and bool(_dependents(body, everything)))
    _empty(store, everything)
    refused = False
    for kind, body in everything:
        if FOREGROUND in body["metadata"].get("finalizers", []):
            try:
                webhooks.check(kind, body["metadata"].get("namespace", ""), body)
            except RefusalError:
                refused = True
            else:
                _finish(store, kind, body, everything)
    return AGAIN_S if refused else None


def _empty(store: Store, everything: list[tuple[Kind, Body]]) -> None:
    """Namespaces that are being deleted go with the last object in them."""
    for home in store.all(NAMESPACES):
        name = _name(home)
        if "deletionTimestamp" not in home["metadata"]:
            continue
        inside = [(k, b) for k, b in everything if b["metadata"].get("namespace") == name]
        for kind, body in inside:
            if "deletionTimestamp" not in body["metadata"]:
                _delete(store, kind, body, waits=False)
        if not inside:
            store.change(NAMESPACES, "", name, lambda new: new["metadata"].pop("finalizers"))


def _unowned(owners: list[Body], there: dict[str, Body]) -> bool:
    """Owners that are being deleted in the foreground are as good as gone."""
    alive = (there.get(owner["uid"]) for owner in owners)
    return all(owner is None or _foreground(owner) for owner in alive)


def _foreground(owner: Body | None) -> bool:
    return owner is not None and FOREGROUND in owner["metadata"].get("finalizers", [])


def _dependents(body: Body, everything: list[tuple[Kind, Body]]) -> list[tuple[Kind, Body]]:
    """What holds up the end of an object that is deleted in the foreground."""
    uid = body["metadata"]["uid"]
    return [
        (kind, other)
        for kind, other in everything
        for owner in other["metadata"].get("ownerReferences", [])
        if owner["uid"] == uid and owner.get("blockOwnerDeletion")
    ]


def _finish(store: Store, kind: Kind, body: Body, everything: list[tuple[Kind, Body]]) -> None:
    blocking = [
        other
        for kind_, other in _dependents(body, everything)
        if store.find(kind_, other["metadata"].get("namespace", ""), _name(other))
    ]
    if not blocking:

        def edit(new: Body) -> None:
            meta = new["metadata"]
            meta["finalizers"] = [f for f in meta["finalizers"] if f != FOREGROUND]

        store.change(kind, body["metadata"].get("namespace", ""), _name(body), edit)


def _name(body: Body) -> str:
    return str(body["metadata"]["name"])


def _delete(store: Store, kind: Kind, body: Body, *, waits: bool) -> None:
    """In the foreground too where the owner waits and others wait for this one."""
    meta, policy = body["metadata"], "Foreground" if waits else "Background"
    if store.find(kind, meta.get("namespace", ""), meta["name"]) is not None:
        store.delete(kind, meta.get("namespace", ""), meta["name"], uid=meta["uid"], policy=policy)
