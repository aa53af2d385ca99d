"""Known problems, by what they look like in a log: data, and how they are found in one."""

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.diagnosis.signatures.collectives import COLLECTIVES
from holdfast.diagnosis.signatures.devices import DEVICES
from holdfast.diagnosis.signatures.host import HOST
from holdfast.diagnosis.signatures.libraries import LIBRARIES
from holdfast.diagnosis.signatures.python import PYTHON
from holdfast.diagnosis.signatures.signature import Blame, Signature

__all__ = ["SIGNATURES", "Blame", "Signature", "Spotted", "spotted"]

GROUPS = {
    "Collectives and rendezvous": COLLECTIVES,
    "GPUs": DEVICES,
    "Frameworks, trainers and services": LIBRARIES,
    "Python and PyTorch": PYTHON,
    "Memory, files and network": HOST,
}
SIGNATURES = {one.slug: one for group in GROUPS.values() for one in group}
"""By slug. Of those that fit one line the first counts: special ones stand before general ones."""


class Spotted(NamedTuple):
    """A known problem in a log."""

    signature: Signature
    line: int  # where it was seen first, from 1
    text: str  # that line
    lines: int  # that look like it


def spotted(lines: Iterable[str]) -> list[Spotted]:
    """Known problems in the lines of a log, the likeliest cause first: what is only a consequence
    comes last, before it what is general, and what was printed earlier before what came later."""
    found: dict[str, Spotted] = {}
    for number, line in enumerate(lines, 1):
        one = _first(line)
        if one is None:
            continue
        seen = found.get(one.slug) or Spotted(one, number, line.strip(), 0)
        found[one.slug] = seen._replace(lines=seen.lines + 1)
    return sorted(found.values(), key=_rank)


def _first(line: str) -> Signature | None:
    return next((one for one in SIGNATURES.values() if one.pattern.search(line)), None)


def _rank(one: Spotted) -> tuple[bool, bool, int]:
    return one.signature.blame is Blame.CONSEQUENCE, one.signature.general, one.line
