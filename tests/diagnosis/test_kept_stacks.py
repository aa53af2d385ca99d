"""Of a hang the stacks are kept that say what the rank that is blamed waited for."""

import msgspec

from holdfast.diagnosis.kept_stacks import BYTES_MAX, GROUPS_MAX, kept_stacks
from holdfast.events import HangJudged, Judgement, Ranks, in_rows
from holdfast.stacks import StackGroup, ThreadStack

HANG = HangJudged(
    attempt=1, judgement=Judgement.HANG, summary="", confidence=0.9, ago_s=3.0, ranks=((3, 3),)
)


def thread(*frames: str, pid: int = 1, name: str = "MainThread", gil: bool = False) -> ThreadStack:
    return ThreadStack(name=name, pid=pid, frames=frames, holds_gil=gil)


def group(
    *ranks: int, below: tuple[ThreadStack, ...] = (), at: str = "wait (t.py:9)"
) -> StackGroup:
    threads = thread("main (t.py:1)", at), thread("run (p.py:2)", name="pin", gil=True)
    return StackGroup(ranks=in_rows(ranks), threads=threads, below=below)


def kept(ranks: Ranks, *groups: StackGroup) -> dict[int, tuple[str, ...]]:
    return kept_stacks(msgspec.structs.replace(HANG, ranks=ranks), groups)


def test_all_threads_of_the_rank_that_is_blamed_and_of_its_processes_are_kept() -> None:
    forked = ("main (t.py:1)", "Popen._launch (multiprocessing/popen_fork.py:71)")
    loaders = tuple(thread(*forked, "loop (l.py:1)", "read (s.py:3)", pid=pid) for pid in (7, 8))
    other = thread("loop (l.py:1)", "decode (d.py:4)", pid=9)
    odd = (thread(pid=10), thread("feed (q.py:5)", pid=9, name=""))
    found = kept(((3, 3),), group(0, 1, 2), group(3, below=(*loaders, other, *odd, odd[1])))
    assert found == {
        3: (
            "MainThread of process 1: wait (t.py:9) < main (t.py:1)",
            "pin of process 1 (holds the GIL): run (p.py:2)",
            "MainThread of processes 7, 8: read (s.py:3) < loop (l.py:1)",
            "MainThread of process 9: decode (d.py:4) < loop (l.py:1)",
            "a thread of process 9: feed (q.py:5)",
        )
    }


def test_ranks_that_stand_alike_are_told_by_one_and_where_nobody_is_blamed_by_the_fewest() -> None:
    assert list(kept(((4, 7),), group(0, 1, 2), group(3, 4, 5, 6, 7))) == [3]
    assert list(kept((), group(5), group(0, 1, 2))) == [5]
    assert kept(((0, 9),)) == {}


def test_whoever_works_leaves_no_stacks() -> None:
    slow = msgspec.structs.replace(HANG, judgement=Judgement.SLOW)
    assert kept_stacks(slow, [group(3)]) == {}


def test_however_deep_and_many_they_are_little_is_kept() -> None:
    deep = tuple(thread(*[f"frame_{n} (deep.py:{n})"] * 64, pid=n) for n in range(20))
    found = kept(((0, 9),), *(group(rank, below=deep) for rank in range(10)))
    assert 1 <= len(found) <= GROUPS_MAX
    assert sum(len(line) for lines in found.values() for line in lines) <= BYTES_MAX
    assert found[0][0].startswith("MainThread of process 1: "), "the worker itself comes first"
