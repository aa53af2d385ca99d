"""Who stood still, when all that is heard of the others is that they timed out waiting.

Collectives time out on the ranks that wait; the one they waited for says nothing and is ended with
the rest. What it leaves is its progress page: it has completed fewer steps than the others, or was
still loading data or saving when they were in the step. A barrier of gloo names it outright. Where
all of that says nothing, it is the one that did not report a failure, if only few did not.
"""

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from holdfast.diagnosis.symptoms import missed_by
from holdfast.events import WorkerError
from holdfast.messages import WorkerReport

DOING = {  # in the order in which a worker comes by, from one step to the next
    "starting": "it was starting",
    "rendezvous": "it was joining the process group",
    "setup": "it was setting up",
    "restore": "it was restoring its state",
    "snapshot": "it was taking a snapshot",
    "data": "it was loading data",
    "step": "it was in the training step",
    "section": "it was in a section of the script",
}
ORDER = {phase: place for place, phase in enumerate(DOING)}


class Still(NamedTuple):
    """The ranks that stood still, lowest first, and what their pages say; empty for nothing."""

    ranks: tuple[int, ...]
    step: int | None
    doing: str


def stood_still(
    errors: Sequence[WorkerError], gone: Set[int], pages: Mapping[int, WorkerReport]
) -> Still | None:
    """The ranks that the others waited for, or None if nothing tells.

    `errors` are what ranks said that waited, `gone` all that failed by themselves; `pages` is the
    newest look at each rank. Only a minority can stand still, or one of two: when most ranks look
    like it, looks prove nothing.
    """
    silent = pages.keys() - gone
    named = {rank for error in errors for rank in missed_by(error)}
    for ranks in (named, behind(pages), silent):
        if ranks and (ranks is named or 2 * len(ranks) <= len(pages)):
            first = pages.get(min(ranks))
            step = first.progress.step if first is not None else None
            doing = DOING.get(first.phase, "") if first is not None and step is not None else ""
            return Still(tuple(sorted(ranks)), step, doing)
    return None


def behind(pages: Mapping[int, WorkerReport]) -> set[int]:
    """The ranks that have come least far; empty if all are at one place."""
    places = {
        rank: (page.progress.step, ORDER.get(page.phase, len(ORDER)))
        for rank, page in pages.items()
        if page.progress.step is not None and not page.progress.finished
    }
    least = min(places.values(), default=None)
    last = {rank for rank, place in places.items() if place == least}
    return last if len(last) < len(places) else set()
