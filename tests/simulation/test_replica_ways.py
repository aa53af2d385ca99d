"""Replicas in a world of facts: what a fault costs the replica that has it, and what the others."""

import msgspec
import pytest

from holdfast.actions import Entry, StartAttempt
from holdfast.controller import Controller
from holdfast.controller.invariants import check
from holdfast.errors import Error
from holdfast.goodput import Bucket, ledger
from holdfast.simulation import capacity, scenario
from holdfast.simulation.plan import Plan, work_out
from holdfast.simulation.result import Result

CALM = (
    "nodes=64",
    "days=1",
    "checkpoint.interval_s=10",
    "failures.rate_per_1000_node_days=0",
    "cluster.rack_losses_per_1000_days=0",
    "cluster.switch_losses_per_1000_days=0",
)
REPLICAS = "replicas.nodes_each=16"
NO_SPARES = (*CALM, "spares=0")


def plan(*settings: str) -> Plan:
    return work_out(*scenario.load("llama3-16k", settings))


def drill(nodes: int, *settings: str) -> tuple[Result, list[Entry]]:
    """So many nodes of 64 are lost after ten hours, and nothing else happens."""
    lines = bytearray()
    world = plan(*settings, f"losses=[{{at_h: 10, nodes: {nodes}}}]")
    result = capacity.run(world, 1, lines.extend)
    return result, [msgspec.json.decode(one, type=Entry) for one in bytes(lines).splitlines()]


def sizes(entries: list[Entry]) -> list[int]:
    return [a.node_count for e in entries for a in e.actions if isinstance(a, StartAttempt)]


def bill(entries: list[Entry], incident: int) -> dict[str, float]:
    return ledger(0.0, entries, 86_400.0).bill(incident)


def test_a_lost_node_costs_its_replica_the_time_until_it_is_back_and_the_others_two_gaps() -> None:
    result, entries = drill(1, *NO_SPARES, REPLICAS)
    assert sizes(entries) == [64, 48, 64]
    rendezvous_s = 5.0 + 20.0 * 0.064
    lost, back = bill(entries, 1), bill(entries, 2)
    assert lost["detect"] == 60.0 and "schedule" not in lost and "start" not in lost
    assert lost["teardown"] == pytest.approx(5.0, abs=0.01), "half a step, until all have parked"
    assert lost["rendezvous"] == back["rendezvous"] == pytest.approx(rendezvous_s, abs=0.01)
    assert lost["restore_memory"] == pytest.approx(2.0, abs=0.01)
    assert lost["first_step"] == pytest.approx(10.0, abs=0.1), "a step as any other"
    assert back["teardown"] <= 10.05 and "replay" not in back, "a step to its end, which is kept"
    assert back["restore_memory"] + back.get("restore_peer", 0.0) == pytest.approx(10.0, abs=0.01)
    assert back["first_step"] == pytest.approx(20.0, abs=0.1), "of processes that are new"
    away_s = 60.0 + 240.0 + 60.0  # a new node
    assert result.buckets["degraded"] == pytest.approx(away_s / 4, rel=0.15)


def test_the_whole_job_waits_for_that_node() -> None:
    _, entries = drill(1, *NO_SPARES)
    assert sizes(entries) == [64, 64]
    assert bill(entries, 1)["schedule"] == pytest.approx(355.0, abs=0.01), "beside the stop"


def test_where_a_spare_waits_no_replica_is_missed() -> None:
    result, entries = drill(1, *CALM, "spares=1", REPLICAS)
    assert sizes(entries) == [64, 64]
    assert "degraded" not in result.buckets
    assert result.restores == {"memory": 1, "peer": 1}


def test_processes_that_are_not_kept_start_anew() -> None:
    _, entries = drill(1, *NO_SPARES, REPLICAS, "replicas.kept=false")
    for number in (1, 2):
        assert bill(entries, number)["start"] == pytest.approx(25.0, abs=0.01)
        assert 5.0 <= round(bill(entries, number)["teardown"], 2) <= 15.05
        assert bill(entries, number)["first_step"] == pytest.approx(20.0, abs=0.1)


def test_memory_has_the_state_as_long_as_each_part_of_it_is_somewhere() -> None:
    rack, _ = drill(5, *NO_SPARES)
    assert rack.restores == {"memory": 1, "remote": 1}, "nodes and the peers that have their copies"
    most, entries = drill(17, *NO_SPARES, REPLICAS, "cluster.free_nodes=20")
    assert most.restores.keys() == {"memory", "peer"} and min(sizes(entries)) == 32
    too_many, entries = drill(49, *NO_SPARES, REPLICAS, "cluster.free_nodes=60")
    assert "remote" in too_many.restores and min(sizes(entries)) >= 32


def test_what_lacks_a_replica_is_worth_less_and_the_time_adds_up() -> None:
    result, entries = drill(1, *NO_SPARES, REPLICAS)
    whole = ledger(0.0, entries, 86_400.0).seconds()
    assert sum(result.buckets.values()) == pytest.approx(86_400.0, abs=1e-6)
    both_s = result.buckets[Bucket.PRODUCTIVE] + result.buckets[Bucket.DEGRADED]
    assert both_s == pytest.approx(whole["productive"])
    assert result.ettr == result.buckets[Bucket.PRODUCTIVE] / 86_400.0


@pytest.mark.parametrize("spares", ["0", "auto"])
def test_a_fresh_controller_decides_the_same_from_the_journal_and_breaks_no_rule(
    spares: str,
) -> None:
    rate = "failures.rate_per_1000_node_days=120"
    world = plan("nodes=64", "days=10", rate, f"spares={spares}", REPLICAS)
    lines = bytearray()
    result = capacity.run(world, 1, lines.extend)
    assert result.incidents > 50 and result.outcome is None
    assert sum(result.buckets.values()) == pytest.approx(world.horizon_s, abs=1e-6)
    controller = Controller(world.limits())
    for line in bytes(lines).splitlines():
        entry = msgspec.json.decode(line, type=Entry)
        assert controller.handle(entry.event, entry.at) == list(entry.actions)
        check(controller.state)


def test_nodes_that_are_no_whole_replicas_are_refused() -> None:
    with pytest.raises(Error) as raised:
        plan("nodes=40", REPLICAS)
    assert "40 nodes are not whole replicas of 16" in raised.value.why
