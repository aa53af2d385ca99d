"""The stock way in the same worlds: a job that fails is queued again and reads a remote checkpoint.

A model of torchrun under a batch scheduler, not of a measurement: a crash ends all processes
after a while, a hang ends with the timeout of a collective, then the scheduler starts the whole job
anew, which costs what ByteRobust measured for a requeue. The faults are those that Holdfast meets
under the same seed. What is not known is decided in its favour: nodes are never short, a broken
node is never scheduled again, faults while the job is queued do not matter, the interval of
checkpoints is the best there is.
"""

import math

from holdfast.goodput import Bucket
from holdfast.simulation.failures import Fault, Scope, faults
from holdfast.simulation.plan import CopySchedule, Plan
from holdfast.simulation.result import CauseTally, Result
from holdfast.simulation.training import Training

NONE = CopySchedule(steps=1 << 60, block_s=0.0, safe_s=0.0)
HEALED = (Scope.SPARE,)  # there are no spares


class Queued:
    """One job's life as its own ledger: time is booked once, from the cursor on."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.cursor = 0.0
        self.done = self.saved = 0  # steps: ever completed, in the newest checkpoint
        self.buckets: dict[str, float] = {}
        self.training: Training

    def book(self, bucket: Bucket, until: float) -> float:
        """Book the time from the cursor until then, or until the horizon; returns how much."""
        until = min(until, self.plan.horizon_s)
        seconds = max(0.0, until - self.cursor)
        self.buckets[bucket] = self.buckets.get(bucket, 0.0) + seconds
        self.cursor = max(self.cursor, until)
        return seconds

    def start(self) -> None:
        """Queue, start, read the newest checkpoint."""
        stock, times = self.plan.scenario.stock, self.plan.scenario.times
        self.book(Bucket.SCHEDULE, self.cursor + self.plan.requeue_s)
        self.book(Bucket.RESTORE_REMOTE, self.cursor + stock.restore_s)
        self.training = Training(
            begin=self.cursor,
            after=self.saved,
            step_s=self.plan.scenario.step_s,
            first_s=times.first_step_s,
            often=NONE,
            seldom=self.plan.stock,
        )

    def halt(self, at: float) -> float:
        """Book what training came to by then; returns the seconds that are to be done again."""
        at = min(at, self.plan.horizon_s)
        training = self.training
        reached = training.reached(at)
        before = self.cursor
        redone = max(0, min(self.done, reached.step) - training.after)
        caught_up = training.end_of(redone) if redone else training.begin + training.first_s
        self.book(Bucket.FIRST_STEP, min(at, training.begin + training.first_s))
        self.book(Bucket.REPLAY, min(at, caught_up))
        stalls = reached.save_s * (1 - redone / max(1, reached.step - training.after))
        last_end = at - reached.step_ago_s if reached.step > training.after else self.cursor
        self.book(Bucket.CHECKPOINT_STALL, min(last_end, self.cursor + stalls))
        self.book(Bucket.PRODUCTIVE, last_end)
        self.book(Bucket.REPLAY, at)
        self.done = max(self.done, reached.step)
        tier = self.plan.stock
        self.saved = training.newest(tier, tier.lag_s, at) or self.saved
        return self.cursor - before


def run(plan: Plan, seed: int) -> Result:
    """The stock way through the world of this seed, in the shape of the other results."""
    job = Queued(plan)
    struck: dict[str, list[float]] = {}
    job.start()
    for fault in faults(plan, seed):
        if fault.at >= plan.horizon_s:
            break
        if fault.scope in HEALED or fault.at < job.cursor:
            continue
        job.halt(fault.at)
        begin = job.cursor
        job.book(Bucket.DETECT, fault.at + _detection_s(plan, fault))
        job.start()
        bill = struck.setdefault(fault.name, [0.0, 0.0])
        bill[0] += 1
        bill[1] += job.cursor - begin + (job.done - job.saved) * plan.scenario.step_s
    job.halt(math.inf)
    productive = job.buckets.get(Bucket.PRODUCTIVE, 0.0)
    count = sum(int(bill[0]) for bill in struck.values())
    return Result(
        seed=seed,
        ettr=productive / plan.horizon_s,
        buckets={str(name): s for name, s in job.buckets.items() if s},
        causes={name: CauseTally(n, n, lost) for name, (n, lost) in struck.items()},
        incidents=count,
        restores={"remote": count},
    )


def _detection_s(plan: Plan, fault: Fault) -> float:
    stock = plan.scenario.stock
    return stock.hang_timeout_s if fault.shows == "hang" else stock.detection_s
