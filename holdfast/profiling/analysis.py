"""From the events of a rank to the parts of its step, the share that overlaps, and what took most.

Each moment of the profiled steps is given to one part, so that the parts sum to the step. With a
GPU it is what the GPU does that counts: compute before communication, because what runs beside
compute holds nobody up, then copies, then those for a snapshot, then the wait for a batch, and what
is left is idle. Without a GPU the wait for a batch comes first: what operators do in it (collating,
augmenting) is done for the batch. An operator counts without what it calls, so its time is told
once.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.profiles import SNAPSHOT, RankProfile, StepParts, TopKernel
from holdfast.profiling.intervals import Spans, length, shared, united, without
from holdfast.profiling.trace import (
    Thread,
    Trace,
    TraceEvent,
    has_kernels,
    is_loader,
    is_within,
    part_on_gpu,
    part_on_host,
    snapshot_spans,
)

TOP = 12
NAME_CHARS = 160
SECOND_US = 1e6
GPU_FIRST = ("compute", "communication", "copies", "snapshots", "data")
DATA_FIRST = ("data", "compute", "communication", "copies", "snapshots")


class OwnStretch(NamedTuple):
    """A stretch of time that one event has for itself."""

    part: str
    name: str
    spans: Spans


class ProfiledSteps(NamedTuple):
    """The profiled steps, by the clock of the wall: when the one before them and each of them
    ended, and the waits for batches in them (begin, length). Nanoseconds since the epoch."""

    first: int
    ends_ns: Sequence[int]
    waits_ns: Sequence[tuple[int, int]] = ()

    @property
    def whole(self) -> int:
        """How many."""
        return len(self.ends_ns) - 1


def profile_of(trace: Trace, steps: ProfiledSteps) -> RankProfile:
    """Where the steps went; rank, node and file are the caller's. Raises `ValueError` if there is
    no whole step."""
    if steps.whole < 1 or steps.ends_ns[-1] <= steps.ends_ns[0]:
        raise ValueError("no whole step was profiled")
    window = [(trace.at(steps.ends_ns[0]), trace.at(steps.ends_ns[-1]))]
    on_gpu = has_kernels(trace)
    stretches = list(_on_gpu(trace) if on_gpu else _on_host(trace))
    found = {part: _of(part, stretches, window) for part in GPU_FIRST}
    waits = [(trace.at(begin), trace.at(begin + took)) for begin, took in steps.waits_ns]
    waits += [event.span for event in trace.trace_events if is_loader(event)]
    found["data"] = shared(united(waits), window)
    beside = shared(found["communication"], found["compute"])
    talked_us = length(found["communication"])
    return RankProfile(
        rank=0,
        first_step=steps.first,
        steps=steps.whole,
        parts=_parts(found, window, GPU_FIRST if on_gpu else DATA_FIRST, steps.whole),
        communication_s=talked_us / SECOND_US / steps.whole,
        overlap=length(beside) / talked_us if talked_us else None,
        device="cuda" if on_gpu else "cpu",
        top=_top(stretches, window),
        events=len(trace.trace_events),
    )


def _parts(found: dict[str, Spans], window: Spans, order: Sequence[str], count: int) -> StepParts:
    """Each moment goes to the first that has it, seconds of a step."""
    left, seconds = window, {}
    for part in order:
        rest = without(left, found[part])
        seconds[part] = (length(left) - length(rest)) / SECOND_US / count
        left = rest
    return StepParts(**seconds, idle=length(left) / SECOND_US / count)


def _of(part: str, stretches: Iterable[OwnStretch], window: Spans) -> Spans:
    spans = (span for one in stretches if one.part == part for span in one.spans)
    return shared(united(spans), window)


def _on_gpu(trace: Trace) -> Iterable[OwnStretch]:
    ours = _queued_for_snapshots(trace)
    for event in trace.trace_events:
        if part := part_on_gpu(event):
            if part != "communication" and event.args.correlation in ours:
                part = "snapshots"
            yield OwnStretch(part, event.name, [event.span])


def _queued_for_snapshots(trace: Trace) -> set[object]:
    """Correlations of what a GPU does because a thread has queued it for a snapshot."""
    spans = snapshot_spans(trace)
    return {
        event.args.correlation
        for event in trace.trace_events
        if event.args.correlation and is_within(event, spans.get(event.thread, []))
    }


def _on_host(trace: Trace) -> Iterable[OwnStretch]:
    """What operators do for a snapshot is the snapshot's, with all else that is done in it."""
    snapshots = snapshot_spans(trace)
    for thread_spans in snapshots.values():
        yield OwnStretch("snapshots", SNAPSHOT, thread_spans)
    threads: dict[Thread, list[TraceEvent]] = {}
    for event in trace.trace_events:
        if part_on_host(event) and not is_within(event, snapshots.get(event.thread, [])):
            threads.setdefault(event.thread, []).append(event)
    for events in threads.values():
        for event, spans in own_spans(events):
            yield OwnStretch(part_on_host(event), event.name, spans)


def own_spans(events: Iterable[TraceEvent]) -> list[tuple[TraceEvent, Spans]]:
    """Of the events of one thread, each with the stretches in which none that it called ran.

    Linear but for the sorting; an event that outlives the one that called it, as clocks of a
    microsecond allow, keeps the rest for itself.
    """
    ordered = sorted(events, key=lambda event: (event.ts, -event.dur))
    found: list[tuple[TraceEvent, Spans]] = []
    under_way: list[tuple[TraceEvent, Spans]] = []  # the innermost last
    now = 0.0

    def let_pass(until: float) -> None:
        nonlocal now
        while under_way:
            event, spans = under_way[-1]
            end = min(event.span[1], until)
            if end > now:
                spans.append((now, end))
                now = end
            if event.span[1] > until:
                return
            under_way.pop()

    for event in ordered:
        let_pass(event.ts)
        now = max(now, event.ts)
        entry: tuple[TraceEvent, Spans] = (event, [])
        found.append(entry)
        under_way.append(entry)
    let_pass(float("inf"))
    return found


def _top(stretches: Iterable[OwnStretch], window: Spans) -> tuple[TopKernel, ...]:
    """Of what ran longest in the window, all steps together."""
    (begin, end), known = window[0], dict[tuple[str, str], list[float]]()
    for one in stretches:
        inside = sum(max(0.0, min(b, end) - max(a, begin)) for a, b in one.spans)
        if inside > 0:
            sums = known.setdefault((one.name, one.part), [0, 0.0])
            sums[0] += 1
            sums[1] += inside
    ranked = sorted(known.items(), key=lambda item: (-item[1][1], item[0]))[:TOP]
    return tuple(
        TopKernel(name=name[:NAME_CHARS], part=part, count=int(n), total_s=us / SECOND_US)
        for (name, part), (n, us) in ranked
    )


def step_spans(steps: ProfiledSteps) -> list[tuple[int, tuple[int, int]]]:
    """Each step by its number, with begin and end in nanoseconds of the wall."""
    pairs = itertools.pairwise(steps.ends_ns)
    return [(steps.first + at, pair) for at, pair in enumerate(pairs)]
