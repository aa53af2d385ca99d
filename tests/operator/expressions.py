"""The few words of the API server's expression language (CEL) that our rules use, as Python.

Only what `holdfast.operator.rules` says is understood; anything else fails to compile, loudly.
"""

import re
from collections.abc import Mapping
from typing import Any


class Node:
    """A value as an expression sees it: keys are attributes."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        self._value = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._value:
            raise KeyError(name)
        return wrapped(self._value[name])

    def size(self) -> int:
        return len(self._value)


class Items(list[Any]):
    """A list."""

    def size(self) -> int:
        return len(self)

    def true_ones(self) -> "Items":
        return Items(item for item in self if item)


class Text(str):
    """A string."""

    __slots__ = ()

    def contains(self, part: str) -> bool:
        return part in self


def wrapped(value: Any) -> Any:
    match value:
        case dict():
            return Node(value)
        case list():
            return Items(value)
        case str():
            return Text(value)
        case other:
            return other


def holds(rule: str, value: Mapping[str, Any]) -> bool:
    """Whether the rule is true of the value, whose defaults are filled in."""
    python = rule.replace(".filter(given, given)", ".true_ones()")
    python = re.sub(r"has\((self[\w.]*)\)", r"has(lambda: \1)", python)
    python = re.sub(r"\[([^\]']*)\]\.true", r"Items([\1]).true", python)
    python = re.sub(r"!(?!=)", " not ", python).replace("&&", " and ").replace("||", " or ")
    names = {"self": Node(value), "has": _has, "size": len, "Items": Items}
    return bool(eval(f"({python.strip()})", {"__builtins__": {}, **names}))


def _has(path: Any) -> bool:
    try:
        path()
    except KeyError:
        return False
    return True
