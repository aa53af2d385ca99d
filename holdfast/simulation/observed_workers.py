"""What agents see of workers: where each stands, what it does, when it enters collectives."""

from holdfast.collectives import RankTimes
from holdfast.events import in_rows
from holdfast.simulation.runs import NodeWorkers
from holdfast.simulation.slowness import KEPT, meetings, told_of
from holdfast.stacks import Activity, StackGroup, ThreadStack, joined

TRAIN = "<module> (train.py:41)"
WAITS = (TRAIN, "all_reduce (torch/distributed/distributed_c10d.py:2806)")
SLEEPS = (TRAIN, "read_batch (data.py:7)")


def stacks(run: NodeWorkers, now: float) -> tuple[StackGroup, ...]:
    """Of the workers of a node that live."""
    return joined(_look(run, rank, now) for rank in run.alive)


def entry_times(
    run: NodeWorkers | None, number: int, now: float, step_s: float, recent: int
) -> tuple[RankTimes, ...]:
    """When the workers of this node entered their newest collectives, at most so many; of sound
    ranks a step takes `step_s`. Some are told twice, as nodes are not asked in one moment: what one
    has entered since, another one has told already."""
    if run is None:
        return ()
    group, slow = run.group, run.host.slow
    if group.tempo is None or group.broken_at is not None:
        return ()
    first = group.inherited_step + 1
    before, last = run.told_until
    joins = meetings(group.tempo, first, before, now, step_s, min(recent, KEPT))
    if not joins:
        return ()
    newest = joins[-1].sequence - 1  # and this again: what follows is compared with it
    if newest > last:
        run.told_until = last, newest
    told = []
    for rank in run.alive:
        mine = slow if slow is not None and slow.takes(rank - run.ranks[0]) else None
        log = told_of(rank, group.world_size, mine, number, joins)
        starved_s = mine.starved_s(now) if mine is not None else 0.0
        told.append(RankTimes(rank=rank, groups=(log,), starved_s=starved_s))
    return tuple(told)


def _look(run: NodeWorkers, rank: int, now: float) -> StackGroup:
    group = run.group
    if group.broken_at is None and now < group.stall.until:
        return _stands(rank, WAITS, Activity.STILL)
    if group.broken_at is None:  # what came first has moved on, and begins, or trains
        return _stands(rank, (TRAIN,), Activity.MOVES)
    return _stands(rank, SLEEPS if rank == group.hung else WAITS, Activity.STILL)


def _stands(rank: int, frames: tuple[str, ...], did: Activity) -> StackGroup:
    thread = ThreadStack(name="MainThread", pid=rank + 100, frames=frames)
    return StackGroup(ranks=in_rows([rank]), threads=(thread,), state="sleeping", activity=did)
