"""A check: one trap, as a pure function, with the words that explain it.

Checks stand in the table `CHECKS` by slug, in the order of the modules that hold them; the
decorator `check` puts them there. A function looks at one spot and yields a hit for each thing that
is wrong: where, below the spot, and what.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from holdfast.drivers.kubernetes.lint.spots import Spot

Level = Literal["error", "warning"]
Hit = tuple[str, str]
Look = Callable[[Spot], Iterator[Hit]]


@dataclass(frozen=True)
class LintCheck:
    """One trap. `at`: kinds of objects, or `job` and `pod` for these wherever they stand."""

    slug: str
    level: Level
    at: tuple[str, ...]
    why: str
    help: str
    look: Look


@dataclass(frozen=True)
class Finding:
    """What a check found in an object."""

    slug: str
    level: Level
    kind: str
    name: str
    path: str
    what: str
    why: str
    help: str


CHECKS: dict[str, LintCheck] = {}
"""Every check by its slug."""


def check(
    slug: str,
    level: Level,
    *at: str,
    why: str,
    help: str,  # noqa: A002
) -> Callable[[Look], Look]:
    """Put a function into the table."""

    def register(look: Look) -> Look:
        assert slug not in CHECKS, slug
        CHECKS[slug] = LintCheck(slug, level, at, why, help, look)
        return look

    return register
