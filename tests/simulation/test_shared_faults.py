"""Checks that fail on every machine alike, and a folder that all nodes share and that refuses."""

from typing import Any

import msgspec
import pytest

from holdfast.actions import Fence
from holdfast.events import NodesChecked, NodeUnfit
from holdfast.messages import CheckMachine, MachineChecked
from holdfast.simulation import shared_faults
from holdfast.simulation.environment import Environment, SlowPort
from holdfast.simulation.referees import Efficiency
from holdfast.simulation.shared_faults import WRONG, FairChecks
from holdfast.simulation.world import World
from tests.simulation.test_group_faults import events
from tests.simulation.test_referees import entry, hardship, in_trouble
from tests.simulation.test_world import lived, quiet


def checked(seed: int, **rates: float) -> World:
    """Spares die now and then, so that there are others to be checked."""
    hard = quiet(seed=seed, total_steps=0, rates={"spare_deaths": 50.0, **rates})
    limits = msgspec.structs.replace(hard.limits, spare_count=2, checks="spares")
    return lived(msgspec.structs.replace(hard, limits=limits))


def failures(world: World) -> int:
    return sum(bool(why) for e in events(world, "NodesChecked") for why in e["found"].values())


@pytest.mark.parametrize("seed", range(3))
def test_where_every_machine_fails_its_checks_none_is_left_for_that(seed: int) -> None:
    world = checked(seed, shared_faults=60.0)
    assert failures(world) > 3, "spares stay, and are checked again"


@pytest.mark.parametrize("seed", range(3))
def test_a_shared_folder_that_refuses_costs_no_node_and_stops_nothing(seed: int) -> None:
    world = checked(seed, refusals=60.0)
    refused = [e for e in events(world, "HealthChanged") if e["condition"] == "folder-denied"]
    assert refused and not failures(world)
    assert world.referees.attempts == 1


def test_the_disk_of_one_machine_costs_that_one() -> None:
    world = checked(1, disk_faults=400.0)
    assert failures(world), "and the referee has nothing against it"


@pytest.mark.parametrize("kind", [NodesChecked, NodeUnfit])
def test_the_referee_lets_a_machine_be_taken_for_bad_only_where_others_have_just_recovered(
    kind: Any,
) -> None:
    def given_up(referee: Efficiency, node: str) -> str:
        told = {"found": {node: WRONG}} if kind is NodesChecked else {"node": node, "why": WRONG}
        fence = Fence(node=node, reason="", blamed=True)
        return referee.journaled(entry(kind(**told), fence), in_trouble)

    referee = Efficiency(hardship())
    assert "n0 is given up for what is wrong on every machine" in given_up(referee, "n0")
    referee.checks.unclear = True
    assert not given_up(referee, "n1")
    referee.checks.unclear = False
    assert "n2 is given up" in given_up(referee, "n2")


def test_who_has_not_failed_is_no_suspect() -> None:
    referee = FairChecks()
    referee.unclear = True
    assert not referee.may_be_left("n0")
    referee.heard(NodesChecked(found={"n0": "", "n1": WRONG}))
    assert not referee.may_be_left("n0") and referee.may_be_left("n1")


class Checked:
    """A node that is asked."""

    node, fault, drags = "n1", "sick", 2.0


def test_a_simulated_node_measures_links_like_a_real_one() -> None:
    env = Environment(hardship())

    def said(**order: str) -> MachineChecked:
        return shared_faults.checked(CheckMachine(number=7, **order), Checked(), env)

    def rate() -> float:
        link = said(peer="n2").link
        assert link is not None
        return link.back_bytes_per_s

    assert said() == MachineChecked(number=7, why="sick", address="n1")
    assert said(only="matmul").address == "", "it trains meanwhile"
    assert rate() == shared_faults.LINK_BYTES_PER_S / 2
    env.ports["n2"] = SlowPort(4.0, 0.0)
    assert rate() == shared_faults.LINK_BYTES_PER_S / 4, "a port is slow at both ends"
