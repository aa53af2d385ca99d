"""Ports that are slow: training is, and nobody is a straggler; links that are measured tell."""

import json
from typing import Any

import msgspec
import pytest

from holdfast.actions import Fence, StartAttempt
from holdfast.events import Diagnosed, NodesChecked, Progress, Progressed, Store
from holdfast.simulation.hardship import PORT_SEEDS, PORTS, RATES, draw
from holdfast.simulation.referees import Efficiency
from holdfast.simulation.slow_ports import FairNetworks
from holdfast.simulation.world import World
from tests.simulation.test_group_faults import events
from tests.simulation.test_referees import entry, hardship, in_trouble
from tests.simulation.test_world import lived, quiet


def slowed(seed: int, *, nodes: int = 6, spares: int = 0, **rates: float) -> World:
    hard = quiet(seed=seed, total_steps=0, rates={"slow_ports": 40.0, **rates})
    kinds: dict[str, Any] = {"node_count": nodes, "spare_count": spares, "checks": "spares"}
    limits = msgspec.structs.replace(hard.limits, max_restarts=1000, stragglers="tell", **kinds)
    return lived(msgspec.structs.replace(hard, limits=limits, delay_s=0.001))


def named(world: World) -> list[str]:
    found = [one["found"].items() for one in events(world, "NodesChecked")]
    return [node for told in found for node, why in told if why.startswith("network: ")]


def test_training_is_slower_and_stops_for_nothing_and_names_no_rank() -> None:
    sound = lived(quiet(total_steps=0)).truth.spent.furthest
    world = slowed(1)
    assert world.referees.attempts == 1 and world.truth.spent.furthest < 0.9 * sound
    assert world.referees.blame.judged, "it was asked when ranks enter their collectives"
    assert not events(world, "StragglersFound") and not events(world, "NodesChecked")


def left(world: World) -> list[dict[str, Any]]:
    """The entries in which somebody was given up when links were measured."""
    entries = [json.loads(line) for line in world.book.texts()[1:]]
    checks = (one for one in entries if one["event"]["type"] == "NodesChecked")
    return [one for one in checks if any(a["type"] == "Fence" for a in one["actions"])]


def test_it_is_named_when_an_attempt_ends_whose_steps_had_become_slower_and_stays() -> None:
    worlds = [slowed(seed, spares=2, worker_kills=40.0) for seed in range(2)]
    assert any(map(named, worlds)) and not any(map(left, worlds))
    told = [i.network for w in worlds if w.control for i in w.control.state.incidents if i.network]
    assert "links between machines: median" in told[0][0], "it is evidence of the incident"


@pytest.mark.parametrize("spares", [0, 2])
def test_where_attempts_fail_as_well_its_node_is_named_and_left_if_another_is_there_or_comes(
    spares: int,
) -> None:
    worlds = [slowed(n, spares=spares, crash_loops=300.0, worker_kills=200.0) for n in range(3)]
    assert any(map(named, worlds)), "links were measured, and no referee has anything against it"
    gone = [entry for world in worlds for entry in left(world)]
    if spares:
        assert gone
    else:
        assert all("nodes are expected in " in json.dumps(one["choices"]) for one in gone)


def test_worlds_that_were_there_before_this_fault_are_what_they_were() -> None:
    assert "slow_ports" in PORTS and "slow_ports" not in RATES
    assert not any("slow_ports" in draw(seed).rates for seed in range(200))
    assert all(PORTS.keys() <= draw(seed).rates.keys() for seed in PORT_SEEDS[:20])


# ── the referee ──


def checked(**found: str) -> NodesChecked:
    return NodesChecked(found=found, attempt=1)


def test_only_a_node_whose_network_is_slow_is_named_for_that() -> None:
    referee = FairNetworks()
    referee.began("n1")
    sends = "network: n1 sends only 10 MB/s to n0"
    assert not referee.judged(entry(checked(n1=sends, n2="", n3="memory: 1 of 64 blocks")))
    assert "the network of n2 is called slow; slow are ['n1']" in referee.judged(
        entry(checked(n1=sends, n2="network: n2 sends only 10 MB/s to n1"))
    )
    referee.began("n1")
    referee.over("n1")
    assert not referee.judged(entry(checked(n1=sends))), "its links lose packets, too"
    referee.over("n1")
    assert referee.judged(entry(checked(n1=sends)))


def test_it_may_be_left_once_two_attempts_have_made_no_progress() -> None:
    referee, sends = FairNetworks(), "network: n1 sends only 10 MB/s to n0"
    start = StartAttempt(
        attempt=1, node_count=2, workers_per_node=1, store=Store("h", 1, True), redo_until=0,
        restarts=0, reason="",
    )  # fmt: skip
    leaves = entry(checked(n1=sends), Fence(node="n1", reason="", blamed=True), start)
    referee.began("n1")
    progress = Progressed(attempt=1, progress=Progress(step=7))
    for event in (progress, checked(), progress, checked()):
        assert not referee.judged(entry(event, start))
    referee.judged(entry(Progressed(attempt=1, progress=Progress(step=8)), start))
    assert "n1 is left for a slow network after 1 tries" in referee.judged(leaves)
    assert not referee.judged(leaves)


def test_a_node_that_is_slow_may_be_left_only_where_its_links_were_measured() -> None:
    def left(event: Any) -> str:
        referee = Efficiency(hardship())
        referee.blame.networks.began("n1")
        return referee.journaled(entry(event, Fence(node="n1", reason="", blamed=True)), in_trouble)

    assert not left(checked(n1="network: n1 sends only 10 MB/s to n0"))
    later = Diagnosed(attempt=2, cause="peer-lost", summary="", confidence=0.6)
    assert "n1 is replaced" in left(later)
