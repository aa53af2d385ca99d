"""Semantic checks of manifests, ours or anybody's: the traps that no schema knows.

`lint(bodies)` looks at plain data and returns what it found; `CHECKS` is the table of all checks.
An error will be refused by the cluster or break training; a warning will cost time some day.
"""

from collections.abc import Iterator, Sequence

from holdfast.drivers.kubernetes.lint import (  # noqa: F401 - each fills the table
    admission,
    beside,
    gangs,
    jobs,
    jobset,
    kubeflow,
    managed,
    mpi,
    pods,
    resources,
    trainer,
    volcano,
)
from holdfast.drivers.kubernetes.lint.check import CHECKS, Finding, LintCheck
from holdfast.drivers.kubernetes.lint.look import name, text
from holdfast.drivers.kubernetes.lint.spots import File, Spot, Version, joined
from holdfast.drivers.kubernetes.manifests.request import Body

__all__ = ["CHECKS", "Finding", "LintCheck", "lint"]


def lint(bodies: Sequence[Body], version: Version | None = None) -> list[Finding]:
    """What the checks find in these objects, which are looked at as the whole of a job.

    `version` is that of Kubernetes, where a check depends on it.
    """
    by_place: dict[str, list[LintCheck]] = {}
    for check in CHECKS.values():
        for place in check.at:
            by_place.setdefault(place, []).append(check)
    return [
        finding
        for spot in File(bodies, version).spots
        for check in (*by_place.get(spot.kind, ()), *_anywhere(spot, by_place))
        for finding in _found(check, spot)
    ]


def _anywhere(spot: Spot, by_place: dict[str, list[LintCheck]]) -> list[LintCheck]:
    """Checks of every object, whatever its kind."""
    return by_place.get("*", []) if spot.kind not in ("job", "pod") else []


def _found(check: LintCheck, spot: Spot) -> Iterator[Finding]:
    for path, what in check.look(spot):
        yield Finding(
            check.slug,
            check.level,
            text(spot.root, "kind") or "object",
            name(spot.root) or text(spot.root, "metadata", "generateName") or "(no name)",
            joined(spot.path, path),
            what,
            check.why,
            check.help,
        )
