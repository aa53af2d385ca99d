"""A scenario worked out: every `auto` replaced by its number, times summed for this many nodes.

Worlds read only this, so what was chosen for the user can be printed beside the result.
"""

import math
from dataclasses import dataclass

from holdfast.controller import Limits
from holdfast.controller.policies.interval import interval_s
from holdfast.goodput.formulas import DAY_S, mttf_s, per_1000_node_days
from holdfast.simulation.scenario import Mix, Scenario
from holdfast.spec.spares import failed_share, spares_for

NEVER_S = 1e15
FREE_SHARE, FREE_LEAST = 0.02, 8


@dataclass(frozen=True)
class CopySchedule:
    """Copies of one kind: every `steps` steps, each blocking and then taking time to be safe."""

    steps: int
    block_s: float
    safe_s: float  # from the end of blocking until it survives what the tier is for

    @property
    def lag_s(self) -> float:
        """From the end of its step until it is safe."""
        return self.block_s + self.safe_s


@dataclass(frozen=True)
class Plan:
    """What a world is built from. Rates are per second."""

    scenario: Scenario
    mix: Mix
    spares: int
    free_nodes: int
    fault_rate: float  # of one node
    horizon_s: float
    memory: CopySchedule
    remote: CopySchedule
    stock: CopySchedule
    peer_distance: int
    rendezvous_s: float
    requeue_s: float

    @property
    def machines(self) -> int:
        """All nodes there are."""
        return self.scenario.nodes + self.spares + self.free_nodes

    @property
    def mttf_s(self) -> float:
        """Mean seconds between faults of single nodes of the job."""
        return mttf(self.scenario.nodes, self.fault_rate)

    def limits(self) -> Limits:
        """What the controller is told."""
        policy, replicas = self.scenario.policy, self.scenario.replicas
        each = replicas.nodes_each
        return Limits(
            node_count=self.scenario.nodes,
            min_nodes=each
            and each * max(1, math.ceil(replicas.least * self.scenario.nodes / each)),
            in_process=bool(each) and replicas.kept,
            replicas=bool(each),
            nodes_each=each or 1,
            spare_count=self.spares,
            max_restarts=policy.max_restarts,
            window_s=policy.window_s,
            node_wait_s=policy.node_wait_s,
            replace_after=policy.replace_after,
        )


def mttf(nodes: int, rate: float) -> float:
    """Mean seconds between faults; very long where nothing fails."""
    return mttf_s(nodes, rate) if rate > 0 else NEVER_S


def work_out(scenario: Scenario, mix: Mix) -> Plan:
    """Choose what the scenario leaves open."""
    nodes, remote = scenario.nodes, scenario.remote
    given = scenario.failures.rate_per_1000_node_days
    rate = per_1000_node_days(mix.rate_per_1000_node_days if given is None else given)
    memory, stock = scenario.checkpoint, scenario.stock
    thousands = nodes / 1000
    times = scenario.times
    often = memory.interval_s
    if often == "auto":  # where next to nothing fails, at least as often as the remote ones
        often = min(remote.interval_s, interval_s(memory.save_s, mttf(nodes, rate)))
    return Plan(
        scenario=scenario,
        mix=mix,
        spares=_spares(scenario, mix, rate),
        free_nodes=_free_nodes(scenario),
        fault_rate=rate,
        horizon_s=scenario.days * DAY_S,
        memory=CopySchedule(_steps(often, memory.save_s, scenario, rate), memory.save_s,
                            memory.copy_s),
        remote=CopySchedule(_steps(remote.interval_s, remote.save_s, scenario, rate), remote.save_s,
                            remote.upload_s),
        stock=CopySchedule(_steps(stock.interval_s, stock.save_s, scenario, rate), stock.save_s,
                           0.0),
        peer_distance=_peer_distance(scenario),
        rendezvous_s=times.rendezvous_s + times.rendezvous_s_per_1000_nodes * thousands,
        requeue_s=stock.requeue_s + stock.requeue_s_per_1000_nodes * thousands,
    )  # fmt: skip


def _steps(given: float | str, save_s: float, scenario: Scenario, rate: float) -> int:
    """Steps between two saves."""
    if isinstance(given, str):
        given = interval_s(save_s, mttf(scenario.nodes, rate), scenario.step_s)
    return max(1, round(given / scenario.step_s))


def _spares(scenario: Scenario, mix: Mix, rate: float) -> int:
    """Enough until the engine gives a node or, where it has none left, one is repaired."""
    if isinstance(scenario.spares, int):
        return scenario.spares
    weights = {name: cause.weight for name, cause in mix.causes.items()}
    evicted = sum(w for n, w in weights.items() if mix.causes[n].shows in ("node", "device"))
    lost = rate * evicted / sum(weights.values())
    times, nodes = scenario.times, scenario.nodes
    new_s = times.schedule_s + times.image_s + times.warm_s
    until_new = spares_for(nodes, failed_share(lost, new_s))
    until_repaired = spares_for(nodes, failed_share(lost, new_s + scenario.cluster.repair_s))
    return min(10_000, max(1, until_new, until_repaired - _free_nodes(scenario)))


def _free_nodes(scenario: Scenario) -> int:
    free = scenario.cluster.free_nodes
    return max(FREE_LEAST, round(FREE_SHARE * scenario.nodes)) if free is None else free


def _peer_distance(scenario: Scenario) -> int:
    """In another rack where there is another one."""
    wanted = scenario.checkpoint.peer_distance or scenario.cluster.nodes_per_rack
    return wanted if wanted < scenario.nodes else 1
