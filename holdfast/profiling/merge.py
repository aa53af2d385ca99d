"""Several ranks' traces as one, on one axis of time, for Perfetto and chrome://tracing.

Each trace has its own zero (`baseTimeNanoseconds`, by the wall's clock of its machine); all are
moved to that of the first rank. Clocks of machines differ, NTP keeps them within milliseconds, so
traces of other machines are moved once more: a collective ends on all its ranks at about the same
moment, because none can end before the last has come, and the median difference of those that two
ranks have in common is how far their clocks are apart. With a GPU these are its kernels only, as
the host runs ahead of them. Where the differences spread too much nothing is moved.

Processes, which may have the same number in several containers, are told apart by rank, and named
by it and its place in the layout. A process of its own shows where each step begins and ends.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.profiling.analysis import ProfiledSteps, step_spans
from holdfast.profiling.trace import Trace, ends_together, has_kernels

PIDS_PER_RANK = 1000
TRUSTED_US = 1000.0  # a difference below this is the network's, not the clocks'
DEVIATIONS = 4  # median ones, below which collectives are too unlike to tell of clocks
STEPS_ROW = PIDS_PER_RANK - 1

Key = tuple[int, str, int]  # step, name, how many of that name came before in the step


class RankTrace(NamedTuple):
    """What is known of a rank's trace besides its events."""

    rank: int
    label: str  # how its processes are named
    base_ns: int
    machine: str
    steps: ProfiledSteps
    ends_us: Mapping[Key, float]  # of collectives, on the trace's own axis


def collective_ends(trace: Trace, steps: ProfiledSteps) -> dict[Key, float]:
    """When each collective of these steps ended, on the trace's own axis."""
    found: dict[Key, float] = {}
    counts: dict[tuple[int, str], int] = {}
    spans = [(n, trace.at(a), trace.at(b)) for n, (a, b) in step_spans(steps)]
    at, on_gpu = 0, has_kernels(trace)
    for event in sorted(trace.trace_events, key=lambda one: one.ts):
        if not ends_together(event, on_gpu):
            continue
        while at < len(spans) and spans[at][2] <= event.ts:
            at += 1
        if at == len(spans):
            break
        if event.ts < spans[at][1]:
            continue
        step = spans[at][0]
        name = f"{event.name} {event.args.group_ranks}"  # of another group it is another one
        number = counts.get((step, name), 0)
        counts[step, name] = number + 1
        found[step, name, number] = event.span[1]
    return found


def ahead_us(traces: Sequence[RankTrace]) -> list[float]:
    """By how much each rank's clock is ahead of the first one's; 0 on the same machine, where they
    have nothing in shared, and where it is too little to be told from the network or the spread."""
    first = traces[0]
    found = []
    for other in traces:
        shared = first.ends_us.keys() & other.ends_us.keys()
        later_us = (other.base_ns - first.base_ns) / 1000
        apart = [other.ends_us[key] - first.ends_us[key] + later_us for key in shared]
        if other.machine == first.machine or not apart:
            found.append(0.0)
            continue
        ahead = statistics.median(apart)
        doubt = DEVIATIONS * statistics.median(abs(one - ahead) for one in apart)
        found.append(ahead if abs(ahead) >= max(TRUSTED_US, doubt) else 0.0)
    return found


def moved(
    about: RankTrace, events: Iterable[dict[str, Any]], base_ns: int, ahead: float
) -> Iterator[dict[str, Any]]:
    """A rank's events on the axis that begins at `base_ns`; `ahead` is that of its clock."""
    later = (about.base_ns - base_ns) / 1000 - ahead
    pids: dict[Any, int] = {}
    for event in events:
        pid = event.get("pid", 0)
        if pid not in pids:
            pids[pid] = about.rank * PIDS_PER_RANK + len(pids) % STEPS_ROW
            yield _named(pids[pid], f"{about.label} · {pid}")
        if event.get("ph") == "M" and event.get("name", "").startswith("process_"):
            continue  # of names and order there is one for each process
        changed = {**event, "pid": pids[pid]}
        if "ts" in event:
            changed["ts"] = event["ts"] + later
        if isinstance(event.get("id"), int):
            changed["id"] = f"{about.rank}.{event['id']}"
        yield changed
    yield from _steps(about, base_ns, ahead)


def _steps(about: RankTrace, base_ns: int, ahead: float) -> Iterator[dict[str, Any]]:
    pid = about.rank * PIDS_PER_RANK + STEPS_ROW
    yield _named(pid, f"{about.label} · steps")
    for number, (begin, end) in step_spans(about.steps):
        yield {
            "ph": "X",
            "cat": "step",
            "name": f"step {number}",
            "pid": pid,
            "tid": 0,
            "ts": (begin - base_ns) / 1000 - ahead,
            "dur": (end - begin) / 1000,
        }


def _named(pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
