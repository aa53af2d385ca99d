"""What a replica is made of, and how often replicas meet: `recovery.mode: replicas`.

A replica is a group of nodes that holds a whole model. The others go on without one that lacks a
node. Either gradients are averaged over all replicas in each step, or each replica trains by itself
for some steps, and then an outer step brings them together.
"""

from typing import Annotated

from pydantic import Field

from holdfast.spec.parallel import Parallel
from holdfast.spec.section import Numeric, Section, Whole


class ReplicaGroups(Section):
    """What a replica is, and how often replicas meet. For `mode: replicas`."""

    nodes_each: Whole = Field(default=1, ge=1, le=10_000)
    """Nodes of a replica. If one of them is lost, its replica takes no part until it is whole
    again. `nodes.count`, `elasticity.min_nodes` and `max_nodes` are multiples of it. With
    `parallel`, the ranks of a replica hold whole copies of the model."""
    sync_every: Whole = Field(default=0, ge=0, le=1_000_000)
    """Steps that each replica takes on its own before an outer step merges all of them (DiLoCo),
    for replicas that are connected by slow links. Snapshots are taken after outer steps only. For
    scripts that call `run.parallelize()`. `0`: gradients are averaged over all replicas in each
    step."""
    outer_lr: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False), Numeric] = 0.7
    """Learning rate of the outer step, with `sync_every`."""
    outer_momentum: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), Numeric] = 0.9
    """Nesterov momentum of the outer step, with `sync_every`."""

    def misfit(
        self,
        counts: dict[str, int | None],
        workers: int | None,
        parallel: Parallel | None,
        check_every: int,
    ) -> str:
        """What of a job does not go with this; empty where all does.

        `counts` are numbers of nodes by their keys, `workers` those of a node, if that is known.
        """
        each, every = self.nodes_each, self.sync_every
        for key, count in counts.items():
            if count is not None and count % each:
                below = count - count % each
                fits = " or ".join(str(n) for n in (below, below + each) if n)
                return (
                    f"{key} is {count}, not a multiple of recovery.replicas.nodes_each; use {fits}"
                )
        if every and check_every % every:
            return (
                f"recovery.check_replicas_every is {check_every}, but replicas are equal only "
                f"after outer steps: use a multiple of recovery.replicas.sync_every ({every})"
            )
        return "" if parallel is None else self._misfit_of(parallel, workers)

    def _misfit_of(self, parallel: Parallel, workers: int | None) -> str:
        each, every = self.nodes_each, self.sync_every
        if every and parallel.gradient_compression != "none":
            return "parallel.gradient_compression is incompatible with recovery.replicas.sync_every"
        if every == 0 and each == 1:
            return ""
        if parallel.pp != 1:
            return (
                "parallel.pp: the stages of a pipeline are the outermost dimension, so that no "
                "group of neighbouring nodes holds a whole model; use parallel.pp: 1"
            )
        whole = parallel.layout.replica_ranks
        if whole == 0 or parallel.dp_shard < 0:
            return "parallel.dp_replicate has to be -1: the number of replicas changes"
        if workers is None:
            return ""
        ranks = each * workers
        if ranks % whole or (every and whole not in (1, ranks)):
            return (
                f"parallel: a copy of the model takes {whole} ranks, but a replica has {ranks} "
                "(recovery.replicas.nodes_each x workers_per_node)"
            )
        return ""
