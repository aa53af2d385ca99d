"""What agents see of workers that make no progress: where each stands, and what it does."""

from holdfast.events import in_rows
from holdfast.simulation.ground_truth import Run
from holdfast.stacks import Activity, StackGroup, ThreadStack, joined

TRAIN = "<module> (train.py:41)"
WAITS = (TRAIN, "all_reduce (torch/distributed/distributed_c10d.py:2806)")
SLEEPS = (TRAIN, "read_batch (data.py:7)")


def stacks(run: Run) -> tuple[StackGroup, ...]:
    """Of the workers of a node that live."""
    return joined(_look(run, rank) for rank in run.alive)


def _look(run: Run, rank: int) -> StackGroup:
    group = run.group
    if group.broken_at is None:  # what came first has moved on, and begins, or trains
        return _stands(rank, (TRAIN,), Activity.MOVES)
    return _stands(rank, SLEEPS if rank == group.hung else WAITS, Activity.STILL)


def _stands(rank: int, frames: tuple[str, ...], did: Activity) -> StackGroup:
    thread = ThreadStack(name="MainThread", pid=rank + 100, frames=frames)
    return StackGroup(ranks=in_rows([rank]), threads=(thread,), state="sleeping", activity=did)
