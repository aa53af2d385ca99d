"""Pods as the API would tell of them, for tests."""

from typing import Any

import msgspec

from holdfast.drivers.kubernetes.pods import Pod

RUNS: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def pod(
    name: str = "run-0",
    *,
    uid: str | None = None,
    role: str = "node",
    phase: str = "Running",
    state: dict[str, Any] | None = None,
    restarts: int = 0,
    machine: str = "m0",
    leaving: bool = False,
    labels: dict[str, str] | None = None,
    **status: Any,
) -> Pod:
    """A pod whose main container is in this state (by default it runs)."""
    metadata: dict[str, Any] = {
        "name": name,
        "uid": uid or f"uid-{name}",
        "labels": {"holdfast.dev/job": "run", "holdfast.dev/role": role, **(labels or {})},
    }
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    container = {"name": "main", "state": RUNS if state is None else state}
    statuses = [{**container, "restartCount": restarts}]
    body = {
        "metadata": metadata,
        "spec": {"nodeName": machine},
        "status": {"phase": phase, "containerStatuses": statuses, **status},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Pod)


def ended(name: str = "run-0", status: int = 143, **more: Any) -> Pod:
    """One whose container has ended."""
    return pod(
        name, phase="Succeeded" if status == 0 else "Failed",
        state={"terminated": {"exitCode": status, "reason": "Error"}}, **more,
    )  # fmt: skip


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    """A condition of a pod."""
    return {"type": kind, "status": status, "reason": reason, "message": message}
