"""The objects of the cluster with their versions, and the log of changes that watches read.

Objects in here are never changed in place: a write replaces the whole, so whoever holds one holds
what it was at its `resourceVersion`. Deletion is that of Kubernetes: finalizers, foreground, and
for pods the time that the kubelet needs.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from holdfast.drivers.kubernetes.cluster import Kind
from tests.drivers.kubernetes.cluster.refusal import Body, RefusalError, copied, missing

KEPT = 20_000  # changes
FOREGROUND = "foregroundDeletion"
Key = tuple[Kind, str, str]


class Event(NamedTuple):
    """One change: the object after it, and before it if there was one."""

    version: int
    type: str
    kind: Kind
    object: Body
    before: Body | None


def written(seconds: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Store:
    """Every object there is. `clock` gives seconds since the epoch, as the server believes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.version = 1
        self.oldest = 1  # watches from before this version cannot be served
        self._objects: dict[Key, Body] = {}
        self._log: deque[Event] = deque()
        self._tick = asyncio.Event()

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def get(self, kind: Kind, namespace: str, name: str) -> Body:
        """One object. Raises `RefusalError`."""
        found = self.find(kind, namespace, name)
        if found is None:
            raise missing(kind.plural, name)
        return found

    def find(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """One object, if it is there."""
        return self._objects.get((kind, namespace if kind.namespaced else "", name))

    def all(self, kind: Kind, namespace: str = "") -> list[Body]:
        """All objects of a kind, in a namespace or everywhere, by name."""
        found = [
            (key, body)
            for key, body in self._objects.items()
            if key[0] == kind and namespace in ("", key[1])
        ]
        return [body for _, body in sorted(found, key=lambda pair: pair[0][1:])]

    def everything(self) -> list[tuple[Kind, Body]]:
        """All objects of all kinds."""
        return [(kind, body) for (kind, _, _), body in self._objects.items()]

    def since(self, version: int) -> Iterator[Event]:
        """Changes after a version. Raises `RefusalError` (410) if they are forgotten."""
        if version < self.oldest:
            raise RefusalError(410, f"too old resource version: {version} ({self.version})")
        return (event for event in list(self._log) if event.version > version)

    async def changed(self, version: int) -> None:
        """Wait until there is something newer than this version."""
        while self.version <= version:
            await self._tick.wait()

    def forget(self) -> None:
        """Drop the log, as etcd's compaction does: every older watch has to start anew."""
        self._log.clear()
        self.oldest = self.version

    # ── writing ───────────────────────────────────────────────────────────────────────────────

    def create(self, kind: Kind, namespace: str, body: Body, *, dry: bool = False) -> Body:
        """Make an object with a new UID. Raises `RefusalError` if there is one of that name."""
        made = copied(body)
        meta = made.setdefault("metadata", {})
        if not meta.get("name"):
            meta["name"] = f"{meta['generateName']}{uuid.uuid4().hex[:5]}"
        if self.find(kind, namespace, meta["name"]) is not None:
            message = f'{kind.plural} "{meta["name"]}" already exists'
            raise RefusalError(409, message, reason="AlreadyExists")
        if kind.namespaced:
            meta["namespace"] = namespace
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": written(self.clock())}
        meta["generation"] = 1
        made |= {"apiVersion": kind.api, "kind": kind.kind}
        return made if dry else self._write(kind, made, None)

    def replace(self, kind: Kind, new: Body, *, dry: bool = False) -> Body:
        """Put a changed copy in the place of the object. One whose last finalizer goes is removed.

        Raises `RefusalError` if `new` was made from an older version.
        """
        meta = new["metadata"]
        old = self.get(kind, meta.get("namespace", ""), meta["name"])
        _same(kind, old, meta)
        made = {**new, "metadata": {**meta, **_fixed(old)}}
        if made.get("spec") != old.get("spec"):
            made["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        if made == old or dry:
            return made
        if _over(made):
            self._write(kind, made, old)
            return self._remove(kind, made)
        return self._write(kind, made, old)

    def change(
        self, kind: Kind, namespace: str, name: str, edit: Callable[[Body], object]
    ) -> Body | None:
        """Edit an object as a controller would; None if it is gone. No change is no write."""
        found = self.find(kind, namespace, name)
        if found is None:
            return None
        new = copied(found)
        edit(new)
        return found if new == found else self.replace(kind, new)

    def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str | None = None,
        version: str | None = None, grace_s: int | None = None, policy: str = "Background",
        dry: bool = False,
    ) -> Body:  # fmt: skip
        """Delete, or begin to. Raises `RefusalError`, 409 if it has another UID or version."""
        old = self.get(kind, namespace, name)
        actual = old["metadata"]["uid"]
        if uid is not None and uid != actual:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}"
            raise RefusalError(
                409, f'Operation cannot be fulfilled on {kind.plural} "{name}": {why}'
            )
        now = old["metadata"]["resourceVersion"]
        if version not in (None, now):
            why = (
                f"the ResourceVersion in the precondition ({version}) does not match the "
                f"ResourceVersion in record ({now}). The object might have been modified"
            )
            raise RefusalError(
                409, f'Operation cannot be fulfilled on {kind.plural} "{name}": {why}'
            )
        if dry:
            return old
        grace = _grace_s(old, grace_s) if kind.kind == "Pod" else 0
        new = self._leaving(copied(old), grace, policy)
        if policy == "Orphan":
            self._orphan(actual)
        if _over(new):
            return self._remove(kind, new)
        return old if new == old else self._write(kind, new, old)

    def _leaving(self, new: Body, grace: int, policy: str) -> Body:
        meta = new["metadata"]
        earlier = meta.get("deletionGracePeriodSeconds")
        if earlier is None or grace < earlier:
            meta["deletionTimestamp"] = written(self.clock() + grace)
            meta["deletionGracePeriodSeconds"] = grace
        if policy == "Foreground" and FOREGROUND not in meta.get("finalizers", []):
            meta["finalizers"] = [*meta.get("finalizers", []), FOREGROUND]
        return new

    def _orphan(self, uid: str) -> None:
        for kind, body in self.everything():
            owners = body["metadata"].get("ownerReferences", [])
            kept = [owner for owner in owners if owner["uid"] != uid]
            if kept != owners:
                new = {**body, "metadata": {**body["metadata"], "ownerReferences": kept}}
                self.replace(kind, new)

    def _write(self, kind: Kind, new: Body, old: Body | None) -> Body:
        self._bump(new)
        meta = new["metadata"]
        self._objects[kind, meta.get("namespace", ""), meta["name"]] = new
        self._tell("ADDED" if old is None else "MODIFIED", kind, new, old)
        return new

    def _remove(self, kind: Kind, last: Body) -> Body:
        gone = {**last, "metadata": {**last["metadata"]}}
        self._bump(gone)
        meta = gone["metadata"]
        before = self._objects.pop((kind, meta.get("namespace", ""), meta["name"]))
        self._tell("DELETED", kind, gone, before)
        return gone

    def _bump(self, body: Body) -> None:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)

    def _tell(self, type_: str, kind: Kind, new: Body, old: Body | None) -> None:
        self._log.append(Event(self.version, type_, kind, new, old))
        if len(self._log) > KEPT:
            self.oldest = self._log.popleft().version
        self._tick.set()
        self._tick = asyncio.Event()


def _same(kind: Kind, old: Body, meta: Body) -> None:
    """The copy must be of this very object, and of its newest version if it names one."""
    actual = old["metadata"]
    named, uid = meta.get("resourceVersion"), meta.get("uid")
    where = f'Operation cannot be fulfilled on {kind.plural} "{meta["name"]}"'
    if uid not in (None, "", actual["uid"]):
        raise RefusalError(409, f"{where}: Precondition failed: UID in precondition: {uid}")
    if named not in (None, "", actual["resourceVersion"]):
        why = "the object has been modified; please apply your changes to the latest version"
        raise RefusalError(409, f"{where}: {why} and try again")


def _fixed(old: Body) -> Body:
    """What no writer can change."""
    keys = ("uid", "creationTimestamp", "resourceVersion", "generation", "deletionTimestamp")
    meta = old["metadata"]
    return {key: meta[key] for key in (*keys, "deletionGracePeriodSeconds") if key in meta}


def _over(body: Body) -> bool:
    """Nothing holds a deleted object any more."""
    meta = body["metadata"]
    waiting = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
    return "deletionTimestamp" in meta and not waiting


def _grace_s(pod: Body, asked: int | None) -> int:
    """A pod that never was on a machine, or has ended, needs no time."""
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    if ended or not pod["spec"].get("nodeName"):
        return 0
    return int(pod["spec"].get("terminationGracePeriodSeconds", 30)) if asked is None else asked


def owned_by(owner: Body, kind: Kind) -> dict[str, Any]:
    """The reference of a controller to what it has made."""
    meta = owner["metadata"]
    named = {"apiVersion": kind.api, "kind": kind.kind, "name": meta["name"], "uid": meta["uid"]}
    return {**named, "controller": True, "blockOwnerDeletion": True}
