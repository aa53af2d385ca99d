"""Conditions in the status of an object."""

from tests.drivers.kubernetes.cluster.refusal import Body


def is_true(body: Body, type_: str) -> bool:
    """Whether an object has this condition."""
    found = body.get("status", {}).get("conditions") or []
    return any(c["type"] == type_ and c["status"] == "True" for c in found)


def set_condition(body: Body, type_: str, status: str, reason: str = "", message: str = "") -> None:
    """Write a condition; the others stay."""
    conditions = body.setdefault("status", {}).setdefault("conditions", [])
    said = {"type": type_, "status": status, "reason": reason, "message": message}
    said = {key: value for key, value in said.items() if value}
    for index, old in enumerate(conditions):
        if old["type"] == type_:
            conditions[index] = said
            return
    conditions.append(said)
