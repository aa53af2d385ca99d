"""The stacks that an incident keeps of a hang: of all threads of whoever is blamed, and of the
processes below it, whose data loader may be what it waited for.

What all others did is told by a line for each place (`hang.py`).
"""

from collections.abc import Sequence

from holdfast.events import HangJudged, Judgement, each_of
from holdfast.stacks import StackGroup, ThreadStack

GROUPS_MAX = 2
BYTES_MAX = 12 * 1024  # of all of them
LINE_CHARS = 2000
FORKS = "multiprocessing/popen_"


def kept_stacks(judged: HangJudged, groups: Sequence[StackGroup]) -> dict[int, tuple[str, ...]]:
    """Lines by rank: of one in each group with a rank that is blamed or, where nobody is, in the
    smallest. It is the lowest of its group, of which all threads are known; empty if nobody hangs.
    """
    if judged.judgement is not Judgement.HANG:
        return {}
    blamed = set(each_of(judged.ranks))
    chosen = [one for one in groups if not blamed.isdisjoint(each_of(one.ranks))] or groups[:1]
    left, found = BYTES_MAX, dict[int, tuple[str, ...]]()
    for group in chosen[:GROUPS_MAX]:
        lines = []
        for line in _lines((*group.threads, *group.below)):
            left -= len(line.encode())
            lines += [line] if left >= 0 else []
        if lines:
            found[next(each_of(group.ranks))] = tuple(lines)
    return found


def _lines(threads: Sequence[ThreadStack]) -> list[str]:
    """One for each place, the innermost frame first: processes of a data loader stand alike."""
    places: dict[tuple[str, tuple[str, ...], bool], dict[int, None]] = {}
    for one in threads:
        place = one.name or "a thread", _own(one.frames), one.holds_gil
        places.setdefault(place, {})[one.pid] = None
    told = []
    for (name, frames, holds_gil), pids in places.items():
        who = f"{name} of process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}"
        who += " (holds the GIL)" if holds_gil else ""
        told += [f"{who}: {' < '.join(reversed(frames))}"[:LINE_CHARS]] if frames else []
    return told


def _own(frames: tuple[str, ...]) -> tuple[str, ...]:
    """Without where its parent stood when it forked."""
    forks = [n for n, frame in enumerate(frames, 1) if f" ({FORKS}" in frame]
    return frames[max(forks, default=0) :]
