"""Events of objects, for `kubectl describe`: what was done to an object, said where people look.

The name of an event is a digest of what it says and when that became true, so that saying it twice
makes one event. Nothing depends on them: one that cannot be posted is left out.
"""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.drivers.kubernetes.cluster import EVENTS, ApiError, Cluster, Kind, timestamp
from holdfast.drivers.kubernetes.manifests.request import Body

MESSAGE_MAX = 1000  # Kubernetes takes 1,024 characters
CONTROLLER, OPERATOR = "holdfast-controller", "holdfast-operator"  # who says it


class Said(NamedTuple):
    """One event."""

    warning: bool
    reason: str
    message: str


async def post(
    cluster: Cluster, kind: Kind, body: Body, events: Iterable[Said], *, by: str, now: float
) -> None:
    """Post what is said of an object, as far as the cluster takes it."""
    for event in events:
        try:
            await cluster.create(_event(kind, body, event, by, now))
        except ApiError:
            continue


def _event(kind: Kind, body: Body, event: Said, by: str, now: float) -> Body:
    meta = body["metadata"]
    text = f"{meta['uid']} {event} {meta['resourceVersion']}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    at = timestamp(now)
    return {
        "apiVersion": EVENTS.api,
        "kind": EVENTS.kind,
        "metadata": {"name": f"{meta['name']}.{digest}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": kind.api,
            "kind": kind.kind,
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
        },
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "message": event.message[:MESSAGE_MAX],
        "source": {"component": by},
        "reportingComponent": by,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
