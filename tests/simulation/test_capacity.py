"""A world of facts: the production controller, its journal and its ledger in it."""

import hashlib
import os
import subprocess
import sys

import msgspec
import pytest

from holdfast.actions import Entry
from holdfast.controller import Controller
from holdfast.controller.invariants import check
from holdfast.goodput import ledger
from holdfast.simulation import capacity, scenario
from holdfast.simulation.plan import Plan, work_out
from holdfast.simulation.result import Result
from tests.more import sample

JOURNAL = """
import hashlib
from holdfast.simulation import capacity, scenario
from holdfast.simulation.plan import work_out
lines = hashlib.sha256()
settings = ["nodes=64", "days=20", "failures.rate_per_1000_node_days=100"]
capacity.run(work_out(*scenario.load("spot-256", settings)), 7, lines.update)
print(lines.hexdigest())
"""


def plan(name: str, *settings: str) -> Plan:
    return work_out(*scenario.load(name, settings))


def small(*settings: str) -> Plan:
    """64 nodes that fail as often as 2,048 do."""
    rate = "failures.rate_per_1000_node_days=120"
    return plan("llama3-16k", "nodes=64", "days=10", rate, *settings)


def lived(world: Plan, seed: int = 1) -> tuple[Result, list[Entry]]:
    lines = bytearray()
    result = capacity.run(world, seed, lines.extend)
    decoder = msgspec.json.Decoder(Entry)
    return result, [decoder.decode(line) for line in bytes(lines).splitlines()]


def test_the_ledger_of_a_world_sums_to_its_horizon_and_its_journal_gives_it_again() -> None:
    world = small()
    result, entries = lived(world)
    assert result.incidents > 50
    assert sum(result.buckets.values()) == pytest.approx(world.horizon_s, abs=1e-6)
    assert entries[-1].seq == len(entries) == result.events
    again = ledger(0.0, entries, world.horizon_s)
    assert {n: s for n, s in again.seconds().items() if s} == result.buckets


def test_a_fresh_controller_decides_the_same_from_the_journal_and_breaks_no_rule() -> None:
    world = small()
    _, entries = lived(world)
    controller = Controller(world.limits())
    for entry in entries:
        assert controller.handle(entry.event, entry.at) == list(entry.actions)
        check(controller.state)


@pytest.mark.parametrize("hash_seed", sample(["4242"], ["0"]))
def test_a_journal_does_not_depend_on_how_python_hashes(hash_seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    run = subprocess.run(
        [sys.executable, "-c", JOURNAL], env=environment, capture_output=True, text=True, check=True
    )
    lines = hashlib.sha256()
    settings = ["nodes=64", "days=20", "failures.rate_per_1000_node_days=100"]
    capacity.run(plan("spot-256", *settings), 7, lines.update)
    assert run.stdout.strip() == lines.hexdigest()


def test_an_incident_costs_about_a_dozen_events_whatever_the_size() -> None:
    few = capacity.run(plan("rsc1-8k", "nodes=64", "days=300"), 1)
    many = capacity.run(plan("rsc1-8k", "nodes=4096", "days=5"), 1)
    for result, nodes in ((few, 64), (many, 4096)):
        assert result.incidents > 50
        assert (result.events - 2.1 * nodes) / result.incidents < 16


def test_a_job_without_faults_loses_its_start_and_its_snapshots_and_nothing_else() -> None:
    calm = plan(
        "rsc1-8k",
        "nodes=16",
        "days=1",
        "failures.rate_per_1000_node_days=0",
        "cluster.rack_losses_per_1000_days=0",
        "cluster.switch_losses_per_1000_days=0",
        "checkpoint.interval_s=10",
        "checkpoint.save_s=0.5",
    )
    result = capacity.run(calm, 1)
    assert result.incidents == 0
    share = result.buckets["checkpoint_stall"] / result.buckets["productive"]
    assert share == pytest.approx(0.05, rel=1e-3)
    assert result.buckets["schedule"] == pytest.approx(360.0, abs=0.01)
    assert result.buckets["start"] == pytest.approx(25.0, abs=0.01)


def test_losing_one_node_costs_a_snapshot_and_losing_a_node_with_its_peer_a_checkpoint() -> None:
    calm = [
        "failures.rate_per_1000_node_days=0",
        "cluster.rack_losses_per_1000_days=0",
        "cluster.switch_losses_per_1000_days=0",
        *("nodes=16", "days=2", "spares=8", "checkpoint.interval_s=10"),
    ]
    one = capacity.run(plan("rsc1-8k", *calm, "losses=[{at_h: 20, nodes: 1}]"), 1)
    rack = capacity.run(plan("rsc1-8k", *calm, "losses=[{at_h: 20, nodes: 4}]"), 1)
    pair = capacity.run(plan("rsc1-8k", *calm, "losses=[{at_h: 20, nodes: 5}]"), 1)
    assert one.restores == rack.restores == {"memory": 1, "peer": 1}
    assert pair.restores == {"memory": 1, "remote": 1}
    assert one.buckets["replay"] < 60 < 300 < pair.buckets["replay"] < 1800 + 300 + 60


def test_spares_shorten_the_wait_for_a_node() -> None:
    without = capacity.run(small("spares=0"), 3)
    with_some = capacity.run(small("spares=3"), 3)
    assert without.waits > 10 > with_some.waits
    assert with_some.ettr > without.ettr + 0.01


def test_a_broken_device_ends_a_job_that_may_not_replace_it() -> None:
    kept = capacity.run(small("policy.replace_after=0"), 1)
    replaced = capacity.run(small("policy.replace_after=2"), 1)
    assert kept.outcome == "gave_up"
    assert kept.buckets["after_the_end"] > 0
    assert sum(kept.buckets.values()) == pytest.approx(10 * 86_400.0)
    assert replaced.outcome is None


def test_ninety_days_of_a_hundred_thousand_gpus_stay_small() -> None:
    """The time this may take is measured by benchmarks/simulation.py."""
    result = capacity.run(plan("moon-100k", "days=9"), 1)
    assert result.incidents > 700
    assert result.events < 50_000
    assert result.journal_bytes < 20_000_000
