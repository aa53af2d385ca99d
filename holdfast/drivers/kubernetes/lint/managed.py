"""Traps of pods that run Holdfast's agents, and of the controller beside them.

Only pods whose command is `holdfast agent` are looked at.
"""

from collections.abc import Iterator

from holdfast.drivers.kubernetes.lint.check import Hit, check
from holdfast.drivers.kubernetes.lint.look import count, number, part, parts, text
from holdfast.drivers.kubernetes.lint.spots import (
    REPLICA_SPECS,
    Spot,
    containers,
    env,
    managed,
    runs,
)

BACKOFF_MIN = 1_000_000
RANKS = frozenset(("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "TF_CONFIG"))
RANKS |= {"LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def _agents(spot: Spot) -> bool:
    return managed(part(spot.body, "template"))


@check(
    "managed-restart-policy",
    "error",
    "pod",
    why="an agent exits only when its pod should be removed; a container restarted by the "
    "kubelet in the same pod would register as the node that was just replaced",
    help="set restartPolicy: Never",
)
def _managed_restart_policy(spot: Spot) -> Iterator[Hit]:
    found = text(spot.body, "spec", "restartPolicy")
    elsewhere = spot.engine in (*REPLICA_SPECS, "Volcano Job", "RayJob", "RayCluster")
    if managed(spot.body) and not elsewhere and found != "Never":
        yield "spec.restartPolicy", f"is {found or 'missing'}"


@check(
    "managed-rank-set",
    "error",
    "pod",
    why="the controller assigns ranks, and reassigns them after every fault: a rank in the pod's "
    "environment would conflict",
    help="remove these variables from env",
)
def _managed_rank_set(spot: Spot) -> Iterator[Hit]:
    for container in containers(spot.body) if managed(spot.body) else ():
        names = env(container)
        found = sorted(n for n in names if n in RANKS or n.startswith(("PET_", "OMPI_")))
        if found:
            yield f"spec.containers[{text(container, 'name')}].env", f"sets {', '.join(found)}"


@check(
    "managed-backoff-limit",
    "error",
    "job",
    why="every replaced pod counts against backoffLimit: a long job reaches any small limit and "
    "fails",
    help="set backoffLimit: 2147483647; Holdfast has limits of its own",
)
def _managed_backoff_limit(spot: Spot) -> Iterator[Hit]:
    several = count(spot.body, "completions") > 1
    least = number(spot.body, "backoffLimitPerIndex") or number(spot.body, "backoffLimit") or 0
    if _agents(spot) and several and least < BACKOFF_MIN:
        yield "backoffLimit", f"is {spot.body.get('backoffLimit', '6, by default')}"


@check(
    "managed-replacement-policy",
    "error",
    "job",
    why="a pod on a failed machine stays Terminating as long as the machine is down; without "
    "TerminatingOrFailed it is not replaced until then",
    help="set podReplacementPolicy: TerminatingOrFailed and no podFailurePolicy",
)
def _managed_replacement_policy(spot: Spot) -> Iterator[Hit]:
    strict = "podFailurePolicy" in spot.body  # a choice; job-frozen-by-dead-machine warns of it
    found = text(spot.body, "podReplacementPolicy")
    if _agents(spot) and not strict and found == "Failed":
        yield "podReplacementPolicy", "is Failed"


@check(
    "managed-no-end-rule",
    "warning",
    "job",
    why="spares do not finish: a Job without a rule waits for them after the training has ended",
    help="set successPolicy: {rules: [{succeededCount: N}]} with the number of nodes that train",
)
def _managed_no_end_rule(spot: Spot) -> Iterator[Hit]:
    several = count(spot.body, "completions") > 1
    rules = parts(spot.body, "successPolicy", "rules")
    if _agents(spot) and several and not any("succeededCount" in rule for rule in rules):
        yield "successPolicy", "is missing"


@check(
    "managed-rolling-update",
    "error",
    "Deployment",
    why="a rolling update waits until the new controller is ready, which requires the lease that "
    "the old one holds",
    help="set strategy: {type: Recreate}",
)
def _managed_rolling_update(spot: Spot) -> Iterator[Hit]:
    controls = runs(part(spot.body, "spec", "template"), "controller")
    if controls and text(spot.body, "spec", "strategy", "type") != "Recreate":
        yield "spec.strategy", "is not Recreate"


@check(
    "managed-liveness",
    "warning",
    "pod",
    why="a liveness probe on the training kills the agent with its snapshots in memory; hangs of "
    "the training are detected by the controller",
    help="probe only the agent's own port, or nothing",
)
def _managed_liveness(spot: Spot) -> Iterator[Hit]:
    for container in containers(spot.body) if managed(spot.body) else ():
        if "exec" in part(container, "livenessProbe"):
            yield f"spec.containers[{text(container, 'name')}].livenessProbe", "runs a command"
