"""A job as a scenario: its own failure rate, causes, costs of snapshots and times of restarts.

What the journal has measured is taken from its ledger and incidents. What it cannot know, because
it has not happened yet, is assumed, and each assumption is told with the answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.dashboard.job_record import JobLook
from holdfast.goodput import Bucket
from holdfast.goodput.formulas import DAY_S, mttf_s, poisson_interval
from holdfast.reporting.shapes import MeasuredInputs
from holdfast.simulation.scenario import (
    Cause,
    Checkpoint,
    ClusterLayout,
    Failures,
    Mix,
    Policy,
    Remote,
    Scenario,
    Times,
)
from holdfast.status import Incident

NEVER_S = 31_536_000.0  # the longest time that a scenario has
STAND_IN_S = 60.0  # for what a new node takes, where none was ever waited for
NOTICED = (Bucket.DETECT, Bucket.HANG)
STARTED = (Bucket.START, Bucket.RENDEZVOUS)
RESTORED = (Bucket.RESTORE_PEER, Bucket.RESTORE_MEMORY)
DURABLE = (Bucket.RESTORE_DISK, Bucket.RESTORE_REMOTE)
RESTART = (*NOTICED, Bucket.TEARDOWN, *STARTED, *RESTORED, *DURABLE, Bucket.FIRST_STEP)
TOOK_OVER = ("AssignRank", "AskNodes", "Fence")  # what is done where a node was lost
FREE_NODES = 200  # that the engine can give, beside those of the job


class JobModel(NamedTuple):
    """A job that can be simulated."""

    inputs: MeasuredInputs
    scenario: Scenario
    mix: Mix
    keeps_copies: bool  # of memory on other nodes


def modelled(look: JobLook) -> JobModel | str:
    """The model of a job; or why there is none."""
    ledger, status = look.ledger, look.status
    productive_s = ledger.buckets[Bucket.PRODUCTIVE] / 1000
    if not ledger.observed or not status.step or productive_s <= 0:
        return "no steps were reported, so what an interruption loses is not known"
    if not look.incidents:
        most = poisson_interval(0)[1] / ledger.wall_s
        return (
            "there was no incident, so nothing is known of what one costs; that means fewer than "
            f"{most * DAY_S:.2g} a day (95 % confidence)"
        )
    assumed: list[str] = []
    step_s = productive_s / status.step
    restarts = _bills(look, assumed)
    known = _every_known(look)
    every = known or _every_inferred(look, assumed)
    stall_s = ledger.buckets[Bucket.CHECKPOINT_STALL] / 1000
    nodes = min(100_000, max(1, status.size or look.job.nodes.count))
    new_node_s = _new_node_s(look, assumed)
    save_s = min(NEVER_S, stall_s / status.step * every)
    low, high = poisson_interval(len(look.incidents))
    exposed = nodes * ledger.wall_s
    rate = len(look.incidents) / exposed
    inputs = MeasuredInputs(
        incidents_count=len(look.incidents),
        nodes=nodes,
        spares=min(10_000, look.job.nodes.spare_count),
        rate_per_1000_node_days=rate * 1000 * DAY_S,
        rate_low=low / exposed * 1000 * DAY_S,
        rate_high=high / exposed * 1000 * DAY_S,
        mttf_s=mttf_s(nodes, rate),
        step_s=step_s,
        snapshot_every_steps=every,
        snapshot_every_known=known is not None,
        snapshot_s=save_s,
        restart_s=_mean(restarts, RESTART),
        new_node_s=new_node_s,
        elastic=look.job.elasticity is not None,
        assumed=(*assumed, "failures come as in the past, one by one and by chance"),
    )
    mix = Mix(
        source="the journal of this job",
        assumed="",
        rate_per_1000_node_days=0.0,  # set for each world: it is what is uncertain
        causes=_causes(look.incidents),
    )
    keeps = look.job.snapshots.copies > 0 and nodes > 1
    return JobModel(inputs, _scenario(look, inputs, restarts), mix, keeps)


Bills = Sequence[Mapping[str, float]]


def _bills(look: JobLook, assumed: list[str]) -> Bills:
    """Of the incidents that are over; without any, what the first start took."""
    over = [one.bill for one in look.incidents if one.ended_at is not None and one.bill]
    if over:
        return over
    assumed.append("a restart takes as long as the first start, for none was completed")
    first: dict[str, float] = {}
    for one in look.ledger.intervals:
        if one.attempt <= 1 and one.bucket in RESTART:
            first[one.bucket] = first.get(one.bucket, 0.0) + (one.end_ms - one.start_ms) / 1000
    return [first]


def _mean(bills: Bills, buckets: Iterable[Bucket]) -> float:
    return sum(bill.get(bucket, 0.0) for bill in bills for bucket in buckets) / len(bills)


def _mean_of_those(bills: Bills, buckets: Iterable[Bucket]) -> float | None:
    """Over the incidents in which there was any of it."""
    spent = [sum(bill.get(bucket, 0.0) for bucket in buckets) for bill in bills]
    known = [seconds for seconds in spent if seconds > 0]
    return sum(known) / len(known) if known else None


def _every_known(look: JobLook) -> int | None:
    """Steps between two snapshots: as asked for, or as a worker says."""
    asked = look.job.snapshots.every_steps
    return asked if isinstance(asked, int) else look.status.snapshot_every or None


def _every_inferred(look: JobLook, assumed: list[str]) -> int:
    """Where it was chosen while training, and nobody says any more what it was."""
    lost = [one.steps_lost for one in look.incidents if one.ended_at is not None]
    every = max(1, round(2 * sum(lost) / len(lost)) - 1) if lost else 1
    often = f"every {every} steps" if every > 1 else "after every step"
    assumed.append(f"a snapshot {often}, inferred from the steps that incidents lost")
    return every


def _new_node_s(look: JobLook, assumed: list[str]) -> float:
    """How long the engine takes to give a node: as at the beginning, or as an incident waited."""
    waits = [
        one.bill[Bucket.SCHEDULE]
        for one in look.incidents
        if _lost_a_node(one) and one.bill.get(Bucket.SCHEDULE)
    ]
    first = look.ledger.intervals[0] if look.ledger.intervals else None
    if first is not None and first.bucket is Bucket.SCHEDULE:
        waits.append((first.end_ms - first.start_ms) / 1000)
    if waits:
        return min(NEVER_S, max(waits))
    assumed.append(f"a new node comes after {STAND_IN_S:g} s")
    return STAND_IN_S


def _lost_a_node(one: Incident) -> bool:
    return any(action.action in TOOK_OVER for action in one.actions)


def _causes(incidents: Sequence[Incident]) -> dict[str, Cause]:
    """Each cause as often as it was, seen as late; whether it takes a node is part of its name."""
    seen: dict[tuple[str, bool], list[Incident]] = {}
    for one in incidents:
        seen.setdefault((one.cause, _lost_a_node(one)), []).append(one)
    return {
        f"{cause}, node replaced" if lost else cause: Cause(
            weight=float(len(ones)),
            shows="node" if lost else "worker",
            detection_s=min(NEVER_S, _mean([one.bill for one in ones], NOTICED)),
        )
        for (cause, lost), ones in seen.items()
    }


def _scenario(look: JobLook, inputs: MeasuredInputs, bills: Bills) -> Scenario:
    memory_s = _mean_of_those(bills, RESTORED) or 0.0
    tier = min(
        (one for one in look.status.checkpoints if one.step is not None and one.every_s),
        key=lambda one: one.every_s or NEVER_S,
        default=None,
    )
    saved_s = tier.seconds if tier is not None else 0.0
    return Scenario(
        name=look.status.job,
        nodes=inputs.nodes,
        spares=inputs.spares,
        step_s=min(NEVER_S, inputs.step_s),
        cluster=ClusterLayout(
            gpus_per_node=min(1024, max(1, look.workers_per_node)),
            rack_losses_per_1000_days=0.0,  # what happened is in the rate already
            switch_losses_per_1000_days=0.0,
            free_nodes=inputs.nodes + FREE_NODES,
        ),
        failures=Failures(rate_per_1000_node_days=0.0),
        times=Times(
            teardown_s=_mean(bills, (Bucket.TEARDOWN,)),
            start_s=_mean(bills, (Bucket.START,)),
            rendezvous_s=_mean(bills, (Bucket.RENDEZVOUS,)),
            rendezvous_s_per_1000_nodes=0.0,
            first_step_s=max(0.0, _mean(bills, (Bucket.FIRST_STEP,)) - inputs.step_s),
            schedule_s=inputs.new_node_s,
            image_s=0.0,
            warm_s=0.0,
        ),
        checkpoint=Checkpoint(
            interval_s=min(NEVER_S, inputs.snapshot_every_steps * inputs.step_s),
            save_s=inputs.snapshot_s,
            copy_s=inputs.step_s,
            restore_s=memory_s,
            restore_peer_s=memory_s,
        ),
        remote=Remote(
            interval_s=tier.every_s if tier is not None and tier.every_s else NEVER_S,
            upload_s=saved_s,
            restore_s=_mean_of_those(bills, DURABLE) or saved_s,
        ),
        policy=Policy(max_restarts=1_000_000),
    )
