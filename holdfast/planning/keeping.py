"""What keeps a training going: snapshots, checkpoints, spares, and the ETTR they lead to.

The rules are those that a job follows when it runs: the cadence of snapshots, the intervals of the
tiers, the number of spares. The ETTR is a closed formula, so it is a model result.
"""

import math
from typing import NamedTuple

from holdfast.checkpoint.schedule import interval_s
from holdfast.checkpoint.tiers import Tier
from holdfast.goodput.formulas import expected_ettr, mttf_s, per_1000_node_days
from holdfast.planning.hardware import PlannedCluster
from holdfast.planning.layout import Demand, PlannedLayout
from holdfast.planning.memory import sharded, stage_params
from holdfast.planning.model import ModelShape
from holdfast.spec.spares import failed_share, spares_for

SNAPSHOT_SHARE = 0.01  # `snapshots.max_overhead` of a job, by default
SLOTS = 2  # of each snapshot, its own and a buddy's: docs/guides/storage.md
NEVER_S = 1e15


class TierPlan(NamedTuple):
    """Checkpoints in one tier."""

    total_bytes: float
    """Of one checkpoint, all nodes together."""
    save_s: float
    every_s: float


class Keeping(NamedTuple):
    """Of one layout."""

    snapshot_bytes: float
    """Of one GPU's state."""
    host_bytes: float
    """Snapshots in the memory of one node: two of its own, two of a buddy's where no other replica
    has the same."""
    snapshot_s: float
    """To copy it into the memory of the node; counted as if training waited for it."""
    snapshot_every_steps: int
    tiers: dict[Tier, TierPlan]
    mttf_s: float
    """Mean time between failures of the job."""
    spares: int
    ettr: float | None
    """Closed formula; None where failures are too frequent for it: simulate."""


def keeping(
    model: ModelShape,
    layout: PlannedLayout,
    demand: Demand,
    cluster: PlannedCluster,
    step_s: float,
) -> Keeping:
    """Of a layout whose step takes so long."""
    nodes = nodes_of(layout, cluster)
    rate = per_1000_node_days(cluster.failures_per_1000_node_days)
    mttf = mttf_s(nodes, rate) if rate > 0 else NEVER_S
    own = snapshot_bytes(model, layout, demand)
    copy_s = own / cluster.host_bytes_per_s
    steps = max(1, math.ceil(copy_s / (SNAPSHOT_SHARE * step_s)))
    return Keeping(
        snapshot_bytes=own,
        host_bytes=host_bytes(model, layout, demand, cluster),
        snapshot_s=copy_s,
        snapshot_every_steps=steps,
        tiers=_tiers(model, demand, cluster, nodes, copy_s, mttf),
        mttf_s=mttf,
        spares=max(1, spares_for(nodes, failed_share(rate, cluster.replace_s))),
        ettr=expected_ettr(nodes, rate, cluster.lost_s, copy_s, steps * step_s),
    )


def nodes_of(layout: PlannedLayout, cluster: PlannedCluster) -> int:
    """Nodes that the layout takes."""
    return max(1, math.ceil(layout.world / cluster.gpus_per_node))


def checkpoint_bytes(model: ModelShape, demand: Demand) -> float:
    """Of the whole state: parameters as they are used, fp32 copy and Adam; 14 bytes each.

    Narayanan et al. (arXiv 2104.04473, section 5.10) saved 13.8 TB of 1,008 billion parameters.
    """
    return float(model.params * (demand.weight_bytes + demand.optimizer_bytes))


def snapshot_bytes(model: ModelShape, layout: PlannedLayout, demand: Demand) -> float:
    """Of the state of the GPU that has most: what it holds of parameters and optimizer."""
    held = max(stage_params(model, layout, last=last) for last in (False, True))
    spread = sharded(held, layout)
    return spread * (demand.weight_bytes + demand.optimizer_bytes)


def host_bytes(
    model: ModelShape, layout: PlannedLayout, demand: Demand, cluster: PlannedCluster
) -> float:
    """Memory of a node that snapshots take."""
    alone = layout.dp_replicate == 1 and layout.world > 1
    cells = SLOTS * 2 if alone else SLOTS
    workers = min(cluster.gpus_per_node, layout.world)
    return workers * cells * snapshot_bytes(model, layout, demand)


def _tiers(
    model: ModelShape,
    demand: Demand,
    cluster: PlannedCluster,
    nodes: int,
    stall_s: float,
    mttf: float,
) -> dict[Tier, TierPlan]:
    """What replicas hold alike is written once, a part by each node."""
    size = checkpoint_bytes(model, demand)
    speeds = {
        Tier.LOCAL: nodes * cluster.local_bytes_per_s,
        Tier.SHARED: cluster.shared_bytes_per_s,
        Tier.ARCHIVE: cluster.archive_bytes_per_s,
    }
    return {
        tier: TierPlan(size, size / speed, interval_s(tier, size / speed, stall_s, mttf))
        for tier, speed in speeds.items()
    }
