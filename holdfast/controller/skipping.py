"""Batches that have led to bad numbers, or to the same failure, and are left out from then on.

A batch is known by its number: how many the loader had given before it, those left out included.
Bad numbers are given a second try with the same batches, because a machine may have made them. If
they come again, training goes back as ever, and all batches from there up to that of the bad step
are left out, at most as many in the whole job as `recovery.skip_batches`, the last ones first.
From where that is becomes known when the next attempt has restored something; then it is settled.
"""

from collections.abc import Iterable

from holdfast import counts
from holdfast.controller import incidents
from holdfast.controller.state import Skip, State

Spans = tuple[tuple[int, int], ...]  # numbers: the first, and the first after them


def left(state: State) -> int:
    """How many more batches may be left out."""
    known = state.instrumented
    return max(0, state.limits.skip_batches - count(state)) if known else 0


def count(state: State) -> int:
    """Batches that the job has left out."""
    return sum(end - first for first, end in _joined(s for s in state.skips if s.settled))


def plan(state: State, bad_step: int) -> None:
    """The next attempt leaves out what has led to this step of the attempt that has ended. Where
    that has not told what it went on from, it is tried once more with what was to be left out."""
    allowed = left(state)
    if not allowed or state.restored is None:
        return
    end = _given(state, bad_step)
    state.skips = [skip for skip in state.skips if skip.settled]
    state.skips.append(Skip(max(0, end - allowed), end))
    told = f"batches up to number {end - 1}, that of step {bad_step}, are skipped"
    more = counts.count(allowed, "more is", "more are")
    incidents.note(state, "SkipBatches", f"{told}; {more} allowed")


def restored(state: State, step: int, skipped: int) -> None:
    """The attempt goes on after this step of a training that had left out so many batches."""
    state.skipped = skipped
    given = step + skipped
    for number, skip in enumerate(state.skips):
        if skip.settled or given >= skip.end:
            continue
        first = max(skip.first, given)
        state.skips[number] = Skip(first, skip.end, settled=True)
        used = f"{count(state)} of {state.limits.skip_batches} allowed"
        told = f"batches {first} to {skip.end - 1} (from 0) are skipped: {used}"
        incidents.note(state, "SkipBatches", told)
        state.note(step, 0, told)
        if left(state):  # the batches of the steps to come are others: they get a second try, too
            state.last_bad_step = None


def spans(state: State) -> Spans:
    """What the next attempt leaves out, in order."""
    return _joined(state.skips)


def _joined(skips: Iterable[Skip]) -> Spans:
    """In order, each batch once."""
    joined: list[tuple[int, int]] = []
    for first, end in sorted((skip.first, skip.end) for skip in skips):
        if joined and first <= joined[-1][1]:
            first, end = joined[-1][0], max(end, joined.pop()[1])
        joined.append((first, end))
    return tuple(joined)


def _given(state: State, step: int) -> int:
    """How many batches the loader had given when this attempt had done so many steps."""
    before = (state.restored or 0) + state.skipped  # when it began
    given = step + state.skipped
    for first, end in spans(state):
        if end > before and first < given:
            given += end - max(first, before)
    return given
