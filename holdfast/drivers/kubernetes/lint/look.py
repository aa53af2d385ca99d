"""Looking into data that anybody may have written: no question here ever raises.

A manifest may hold a list where a mapping belongs, or nothing at all. What is not there or not of
the right kind reads as empty, so that each check says only what it is about.
"""

from fractions import Fraction

from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.spec.quantities import amount


def value(body: object, *keys: str) -> object:
    """What stands below these keys, None where one is missing."""
    for key in keys:
        body = body.get(key) if isinstance(body, dict) else None
    return body


def part(body: object, *keys: str) -> Body:
    """The mapping below these keys, else an empty one."""
    found = value(body, *keys)
    return found if isinstance(found, dict) else {}


def parts(body: object, *keys: str) -> list[Body]:
    """The mappings in the list below these keys."""
    found = value(body, *keys)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def words(body: object, *keys: str) -> list[str]:
    """The plain texts and numbers in the list below these keys."""
    found = value(body, *keys)
    plain = [i for i in found if isinstance(i, (str, int))] if isinstance(found, list) else []
    return [str(item) for item in plain]


def text(body: object, *keys: str) -> str:
    """The text below these keys, else an empty one."""
    found = value(body, *keys)
    return found if isinstance(found, str) else ""


def number(body: object, *keys: str) -> int | None:
    """The whole number below these keys."""
    found = value(body, *keys)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def count(body: object, *keys: str) -> int:
    """The whole number below these keys, 1 where Kubernetes would take 1."""
    found = number(body, *keys)
    return 1 if found is None else found


def quantity(found: object) -> Fraction | None:
    """A Kubernetes quantity as a number, None for what is none."""
    if isinstance(found, bool) or not isinstance(found, (str, int, float)):
        return None
    try:
        return amount(str(found))
    except (ValueError, KeyError, ZeroDivisionError):
        return None


def labels(body: object) -> dict[str, str]:
    """Labels of an object or a template."""
    return {k: v for k, v in part(body, "metadata", "labels").items() if isinstance(v, str)}


def annotations(body: object) -> Body:
    """Annotations of an object or a template."""
    return part(body, "metadata", "annotations")


def name(body: object) -> str:
    """Name of an object."""
    return text(body, "metadata", "name")


def selects(selector: object, found: dict[str, str]) -> bool:
    """Whether a label selector (matchLabels and matchExpressions) takes these labels."""
    wanted = part(selector, "matchLabels")
    return all(found.get(k) == v for k, v in wanted.items()) and all(
        _fits(rule, found) for rule in parts(selector, "matchExpressions")
    )


def _fits(rule: Body, found: dict[str, str]) -> bool:
    key, values = text(rule, "key"), words(rule, "values")
    match rule.get("operator"):
        case "In":
            return found.get(key) in values
        case "NotIn":
            return found.get(key) not in values
        case "Exists":
            return key in found
        case "DoesNotExist":
            return key not in found
        case _:
            return True
