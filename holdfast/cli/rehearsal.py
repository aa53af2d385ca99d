"""`--dry-run`: the manifests as they would be sent, or what the API server would make of them."""

import difflib
from typing import TYPE_CHECKING, Any

from holdfast.cli.cluster import Session
from holdfast.cli.output import json_result, result, talk, verbatim
from holdfast.cli.render import refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.drivers.kubernetes.manifests.request import Body, Request
    from holdfast.drivers.kubernetes.submit import RehearsedObject
    from holdfast.errors import Error

OF_THE_SERVER = ("managedFields", "resourceVersion", "uid", "generation", "creationTimestamp")


def print_manifests(request: "Request", as_json: bool) -> None:
    """What would be applied, in order."""
    from holdfast.drivers.kubernetes.manifests.render import as_text
    from holdfast.drivers.kubernetes.submit import wanted

    bodies = wanted(request)
    if as_json:
        json_result(bodies)
    else:
        verbatim(as_text(bodies), end="")


def on_server(session: Session, request: "Request", as_json: bool) -> None:
    """What would change, object by object. Raises `Error` for what would be refused."""
    from holdfast.drivers.kubernetes.submit import rehearse

    trials = session.do(rehearse(session.cluster, request), f"job {request.name}")
    told = [_told(trial, trials) for trial in trials]
    if as_json:
        json_result(told)
    else:
        for one in told:
            result(f"{one['change']:<8} {one['kind']} {one['name']}{_note(one)}")
            if one["diff"]:
                result(one["diff"].rstrip("\n"))
    found = refusals(trials, session.cluster.namespace, session.words)
    if found:
        talk(f"{len(found)} of {len(trials)} objects would be rejected")
    refuse(found)


def _note(one: dict[str, Any]) -> str:
    return f"   ({one['note']})" if one["note"] else ""


def _told(trial: "RehearsedObject", trials: "Sequence[RehearsedObject]") -> dict[str, Any]:
    change, note = _change(trial), None
    if trial.error is not None:
        later = _waits_for_others(trial, trials)
        change = "later" if later else "refused"
        note = "can be checked only when the preceding objects exist" if later else str(trial.error)
    before, after = trial.before, trial.after
    diff = _diff(before, after) if before is not None and after is not None else ""
    name = trial.body["metadata"]["name"]
    return {"kind": trial.body["kind"], "name": name, "change": change, "note": note, "diff": diff}


def _change(trial: "RehearsedObject") -> str:
    if trial.before is None:
        return "new"
    same = trial.after is not None and _plain(trial.before) == _plain(trial.after)
    return "same" if same else "changed"


def _waits_for_others(trial: "RehearsedObject", trials: "Sequence[RehearsedObject]") -> bool:
    """Whether it is refused only because a new object, which it names, was not really made."""
    from holdfast.drivers.kubernetes.cluster import NotFoundError

    error = trial.error
    if error is None or not (isinstance(error, NotFoundError) or error.status in (400, 403, 422)):
        return False
    low = error.message.lower()
    new = [t.body for t in trials if t.before is None and t is not trial and t.error is None]
    return "not found" in low and any(
        body["kind"].lower() in low and body["metadata"]["name"] in low for body in new
    )


def _diff(before: "Body", after: "Body") -> str:
    old, new = (_lines(_plain(body)) for body in (before, after))
    return "".join(difflib.unified_diff(old, new, "in the cluster", "submitted", n=2))


def _lines(body: "Body") -> list[str]:
    from holdfast.drivers.kubernetes.manifests.text import Notes, document

    return document(_sorted(body), Notes({})).splitlines(keepends=True)


def _sorted(value: Any) -> Any:
    """The server has an order of its own."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _plain(body: "Body") -> "Body":
    """What people wrote."""
    meta = {k: v for k, v in body["metadata"].items() if k not in OF_THE_SERVER}
    return {**{k: v for k, v in body.items() if k != "status"}, "metadata": meta}


def refusals(trials: "Sequence[RehearsedObject]", namespace: str, words: str) -> "list[Error]":
    """What the server would refuse for good."""
    from holdfast.drivers.kubernetes.submit_refusals import about, refused

    return [
        refused(trial.error, about(trial.body, namespace, words))
        for trial in trials
        if trial.error is not None and not _waits_for_others(trial, trials)
    ]
