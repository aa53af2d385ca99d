"""Whose numbers were the first that were not finite, from what every rank has noticed.

Gradients are averaged over all ranks, so one rank's NaN is everybody's a step later, and a loss or
gradient norm that is averaged before it is logged is everybody's at once. One rank is to blame only
if it was alone with the earliest step, with a loss, while others log one of their own.
"""

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.events import Broken, Quantity, in_rows
from holdfast.messages import WorkerReport

LISTED_MAX = 8  # rows of ranks that a sentence names


class FirstBroken(NamedTuple):
    """Where it began."""

    step: int
    rank: int | None  # None: several at once, or nobody can know
    summary: str


def first_broken(pages: Mapping[int, WorkerReport]) -> FirstBroken | None:
    """The earliest step that was not finite on any rank; None where all were."""
    found = {rank: page.broke for rank, page in pages.items() if page.broke is not None}
    if not found:
        return None
    step = min(broke.step for broke in found.values())
    ranks = sorted(rank for rank, broke in found.items() if broke.step == step)
    first = found[ranks[0]]
    others_tell = any(page.loss is not None for rank, page in pages.items() if rank != ranks[0])
    alone = len(ranks) == 1 and first.what is Quantity.LOSS
    if alone and (others_tell or len(pages) == 1):
        return FirstBroken(step, ranks[0], f"The loss of rank {ranks[0]} was {_at(first, step)}.")
    where = f" ({_listed(ranks)})" if len(pages) > 1 else ""
    return FirstBroken(step, None, f"The {first.what.words} was {_at(first, step)}{where}.")


def _at(broke: Broken, step: int) -> str:
    return f"{broke.value} at step {step}"


def _listed(ranks: list[int]) -> str:
    rows = [str(a) if a == b else f"{a}-{b}" for a, b in in_rows(ranks)]
    more = f" and {len(rows) - LISTED_MAX} more ranges" if len(rows) > LISTED_MAX else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(rows[:LISTED_MAX])}{more}"
