"""Events of a TrainingJob, for `kubectl describe`: what has changed between two statuses.

The name of an event is a digest of what it says and when that became true, so that saying it twice
makes one event. Nothing depends on them: one that cannot be posted is left out.
"""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.drivers.kubernetes.cluster import ApiError, Cluster
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.queued import QUOTE
from holdfast.operator.conditions import stamp
from holdfast.operator.definition import TRAINING_JOBS
from holdfast.status import waiting

BAD = ("Rejected", "Blocked", "Recovering", "Failed", "GaveUp")


class Said(NamedTuple):
    """One event."""

    warning: bool
    reason: str
    message: str


def said(old: Body, new: Body) -> Iterator[Said]:
    """What there is to say of a change."""
    phase = new["phase"]
    if phase != old.get("phase"):
        yield Said(phase in BAD, phase, _story(new))
    more = new.get("restarts", 0) - old.get("restarts", 0)
    if more > 0:
        what = "restart" if more == 1 else "restarts"
        yield Said(False, "Restarted", f"{more} {what}, {new['restarts']} in all")
    waits, before = new.get("waitingFor"), old.get("waitingFor") or ""
    if waits and _but_numbers(waits) != _but_numbers(before):
        yield Said(False, "Waiting", waiting(waits))


def _but_numbers(waits: str) -> tuple[str, bool]:
    """Kueue counts on in its words while others come and go."""
    what, quote, _ = waits.partition(QUOTE)
    return what, bool(quote)


def _story(status: Body) -> str:
    condition: Body = next(
        (
            c
            for c in status["conditions"]
            if c["message"] and c["type"] in ("Accepted", "Suspended")
        ),
        {},
    )
    told = condition.get("message") or status.get("why") or f"phase is {status['phase']}"
    return str(told)


async def post(cluster: Cluster, body: Body, events: Iterator[Said], now: float) -> None:
    """Post what was said, as far as the cluster takes it."""
    for event in events:
        try:
            await cluster.create(_event(body, event, now))
        except ApiError:
            continue


def _event(body: Body, event: Said, now: float) -> Body:
    meta = body["metadata"]
    text = f"{meta['uid']} {event} {meta['resourceVersion']}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{digest}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": TRAINING_JOBS.api,
            "kind": TRAINING_JOBS.kind,
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
        },
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "message": event.message[:1000],
        "source": {"component": "holdfast-operator"},
        "reportingComponent": "holdfast-operator",
        "firstTimestamp": stamp(now),
        "lastTimestamp": stamp(now),
        "count": 1,
    }
