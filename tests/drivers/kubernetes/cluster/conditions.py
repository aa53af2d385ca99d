"""Conditions in the status of an object."""

from datetime import UTC, datetime

from tests.drivers.kubernetes.cluster.refusal import Body


def is_true(body: Body, type_: str) -> bool:
    """Whether an object has this condition."""
    found = body.get("status", {}).get("conditions") or []
    return any(c["type"] == type_ and c["status"] == "True" for c in found)


def set_condition(body: Body, type_: str, status: str, reason: str = "", message: str = "") -> None:
    """Write a condition; the others stay. Its time is that of its last change of status."""
    conditions = body.setdefault("status", {}).setdefault("conditions", [])
    said = {"type": type_, "status": status, "reason": reason or type_, "message": message}
    said["lastTransitionTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for index, old in enumerate(conditions):
        if old["type"] == type_:
            if old["status"] == status and "lastTransitionTime" in old:
                said["lastTransitionTime"] = old["lastTransitionTime"]
            conditions[index] = said
            return
    conditions.append(said)
