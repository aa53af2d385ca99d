"""Label and field selectors as the API takes them."""

import re
from collections.abc import Callable
from typing import Any

from tests.drivers.kubernetes.cluster.refusal import Body, RefusalError

SETS = re.compile(r"^([^\s!=]+)\s+(in|notin)\s*\(([^)]*)\)$")
COMMA = re.compile(r",(?![^()]*\))")
Test = Callable[[Body], bool]


def chosen(labels: str, fields: str) -> Test:
    """Whether an object fits both selectors."""
    tests = [_label(term.strip()) for term in COMMA.split(labels) if term.strip()]
    tests += [_field(term.strip()) for term in fields.split(",") if term.strip()]
    return lambda body: all(test(body) for test in tests)


def fits(selector: Body, labels: Body) -> bool:
    """Whether labels fit a LabelSelector of an object's spec."""
    wanted = selector.get("matchLabels") or {}
    terms = selector.get("matchExpressions") or []
    return all(labels.get(k) == v for k, v in wanted.items()) and all(
        expression(labels, term) for term in terms
    )


def expression(labels: Body, term: Body) -> bool:
    """One requirement of `matchExpressions`."""
    value, values = labels.get(term["key"]), term.get("values") or []
    match term["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case other:
            raise ValueError(f"operator {other}")


def _label(term: str) -> Test:
    found = SETS.match(term)
    if found:
        values = {v.strip() for v in found[3].split(",")}
        wanted = found[2] == "in"
        return lambda body: (_labels(body).get(found[1]) in values) == wanted
    for sign in ("!=", "==", "="):
        if sign in term:
            key, _, value = (part.strip() for part in term.partition(sign))
            return lambda body: (_labels(body).get(key) == value) == (sign != "!=")
    if term.startswith("!"):
        return lambda body: term[1:] not in _labels(body)
    if " " in term:
        raise RefusalError(400, f"unable to parse requirement: {term}")
    return lambda body: term in _labels(body)


def _labels(body: Body) -> Body:
    found: Body = body["metadata"].get("labels") or {}
    return found


def _field(term: str) -> Test:
    sign = "!=" if "!=" in term else "="
    path, _, value = term.replace("==", "=").partition(sign)
    return lambda body: (str(_at(body, path)) == value) == (sign == "=")


def _at(body: Body, path: str) -> Any:
    here: Any = body
    for step in path.split("."):
        here = here.get(step, "") if isinstance(here, dict) else ""
    return here
