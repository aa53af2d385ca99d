"""Manifests from YAML text, as strictly as `kubectl apply` reads it.

A key that is given twice is refused, where YAML would let the second win silently. Lists
(`kind: List`) become their items, empty documents are left out.
"""

from collections.abc import Iterator
from typing import Any

import yaml

from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.errors import Error

_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is built


class _Loader(_Fast):  # type: ignore[misc]
    """The safe loader, which also refuses keys given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            seen.add(str(key.value))
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def manifests(text: str, where: str) -> list[Body]:
    """The objects of a YAML stream; `where` names it in the message.

    Raises `Error` with slug `manifest-unreadable`.
    """
    try:
        documents = list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise unreadable(where, f"it is not YAML: {exc.problem}{place}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise unreadable(where, f"it is not YAML: {exc}") from None
    found = [body for document in documents for body in _objects(document, where)]
    if not found:
        raise unreadable(where, "it holds no objects")
    return found


def _objects(document: object, where: str) -> Iterator[Body]:
    match document:
        case None:
            return
        case {"kind": "List", "items": list(items)}:
            for item in items:
                yield from _objects(item, where)
        case dict():
            yield document
        case _:
            raise unreadable(where, "a document of it is not a mapping of `key: value` lines")


def unreadable(where: str, why: str) -> Error:
    """The error for a file that cannot be looked at."""
    return Error(
        "manifest-unreadable",
        f"cannot read manifests from {where}",
        why=why,
        help="kubectl apply --dry-run=server -f FILE",
    )
