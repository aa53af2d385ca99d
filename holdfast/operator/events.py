"""What has changed between two statuses of a TrainingJob, as events for `kubectl describe`."""

from collections.abc import Iterator

from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.object_events import Said
from holdfast.drivers.kubernetes.queued import QUOTE
from holdfast.status import waiting

BAD = ("Rejected", "Blocked", "Recovering", "Failed", "GaveUp")


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
