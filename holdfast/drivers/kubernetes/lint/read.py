"""Manifests from YAML text, as strictly as `kubectl apply` reads it.

A key that is given twice is refused, where YAML would let the second win silently. Lists
(`kind: List`) become their items, empty documents are left out.
"""

from collections.abc import Iterator
from typing import Any

import yaml

from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.errors import Error, shown
from holdfast.spec import reading

VALUES_MAX = 2_000_000
_OLD = yaml.SafeLoader("")  # YAML 1.1, as kubectl reads it: `0400` is octal, `yes` is true
_TEXT = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("timestamp", "value", "merge"))


def manifests(text: str, where: str) -> list[Body]:
    """The objects of a YAML stream; `where` names it in the message.

    Raises `Error` with slug `manifest-unreadable`.
    """
    try:
        documents = [_sound(read) for read in reading.documents(text, _plain, VALUES_MAX)]
    except reading.UnreadableError as exc:
        raise unreadable(where, f"it is not YAML: {exc}") from None
    found = [body for document in documents for body in _objects(document, where)]
    if not found:
        raise unreadable(where, "it contains no objects")
    return found


def _sound(read: reading.Read) -> Any:
    for place, what in read.problems:
        at = f" (line {read.lines[place]})" if place in read.lines else ""
        raise reading.UnreadableError(f"the key {shown(place[-1])}{at}: {what}")
    return read.data


def _plain(text: str) -> Any:
    """What an unquoted word is to kubectl, which knows no numbers in base 60 and no dates."""
    tag = _OLD.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    if tag in _TEXT or ":" in text:
        return text
    try:
        return yaml.SafeLoader.yaml_constructors[tag](_OLD, yaml.ScalarNode(tag, text))
    except ValueError as exc:  # a number of thousands of digits
        raise reading.UnsureError(str(exc)) from None


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
