"""From the step log of a restart benchmark to what one kill cost; pure.

A line of the log says that one rank finished one step (see scripts/network.py). Attempts are told
apart by their number, so a survivor that finishes its step after the kill is not taken for a new
worker.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from table import Row, summary


class Step(NamedTuple):
    """One rank finished one step; `at` in seconds since the epoch, `number` counts from 1."""

    at: float
    attempt: int
    rank: int
    number: int
    pid: int


class Kill(NamedTuple):
    """What one kill cost. Without recovery there is neither a time nor a number of steps."""

    recovered: bool
    took_s: float | None = None  # kill → first step finished by a worker of a newer attempt
    steps_lost: int | None = None
    net_s: float | None = None  # `took_s` without the step itself, as long as one took before
    kept: int | None = None  # workers of the newer attempt that are processes of the one before
    caught_up_s: float | None = None  # kill → first step that no attempt had finished before
    phases: tuple[float, ...] = ()  # the parts of `took_s`, as long as `PHASES`


PHASES = ("imported", "built", "training")  # marks on the way to the first step


def phases_of(text: str, first: Step, killed_at: float) -> tuple[float, ...]:
    """From the kill to each mark of the rank that finished this step, and from the last one to the
    step; empty unless it has left all of them."""
    said = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    ours = [line for line in said if line[1:3] == [str(first.attempt), str(first.rank)]]
    at = {name: float(at) for at, _, _, name in ours}
    if not at.keys() >= {*PHASES}:
        return ()
    moments = (killed_at, *(at[name] for name in PHASES), first.at)
    return tuple(after - before for before, after in pairwise(moments))


def parse(text: str) -> list[Step]:
    """The steps of a log; a last line that is not yet whole is left out."""
    whole = text[: text.rfind("\n") + 1]
    return [_step(line) for line in whole.splitlines()]


def newest(steps: Sequence[Step]) -> list[Step]:
    """The steps of the newest attempt only."""
    last = max((step.attempt for step in steps), default=0)
    return [step for step in steps if step.attempt == last]


def ready(steps: Sequence[Step], wanted: int, ranks: int = 2) -> bool:
    """Whether each rank of the newest attempt has finished at least `wanted` steps."""
    counts = [0] * ranks
    for step in newest(steps):
        counts[step.rank] += 1
    return min(counts) >= wanted


def judge(steps: Sequence[Step], attempt: int, killed_at: float, marks: str = "") -> Kill:
    """What the kill of a worker of `attempt` cost, as far as the log knows, and the marks."""
    after = [step for step in steps if step.attempt > attempt and step.at > killed_at]
    if not after:
        return Kill(recovered=False)
    first = min(after, key=lambda step: step.at)
    before = [step for step in steps if step.attempt <= attempt]
    done = max(step.number for step in before)
    kept = {step.pid for step in after} & {step.pid for step in before}
    took_s = first.at - killed_at
    net_s = took_s - step_s(before, killed_at)
    new = min((step.at for step in after if step.number > done), default=None)
    caught_up_s = None if new is None else new - killed_at
    lost = done - (first.number - 1)
    phases = phases_of(marks, first, killed_at)
    return Kill(True, took_s, lost, net_s, len(kept), caught_up_s, phases)


def step_s(steps: Sequence[Step], until: float) -> float:
    """How long a step took before that, by the median of one rank's."""
    rank = steps[0].rank
    at = [step.at for step in steps if step.rank == rank and step.at < until]
    return median(after - before for before, after in pairwise(at)) if len(at) > 1 else 0.0


def row(kills: Iterable[Kill]) -> Row:
    """One contestant's line of the table."""
    kills = list(kills)
    took = [kill.took_s for kill in kills if kill.took_s is not None]
    net = [kill.net_s for kill in kills if kill.net_s is not None]
    new = [kill.caught_up_s for kill in kills if kill.caught_up_s is not None]
    lost = [kill.steps_lost for kill in kills if kill.steps_lost is not None]
    return {
        "n": len(kills),
        "recovered": sum(kill.recovered for kill in kills),
        **summary(took),
        "net_median": median(net) if net else None,
        "net_worst": max(net, default=None),
        "caught_up_median": median(new) if new else None,
        "kept": min((kill.kept for kill in kills if kill.kept is not None), default=None),
        "steps_lost_max": max(lost, default=None),
    }


def _step(line: str) -> Step:
    at, *numbers = line.split()
    attempt, rank, number, pid = map(int, numbers)
    return Step(float(at), attempt, rank, number, pid)
