"""A machine that is bad only in a group is found by groups, and nobody else is given up for it."""

import json
from typing import Any

import msgspec
import pytest

from holdfast.actions import Fence
from holdfast.controller.policies.ladder import NAMELESS
from holdfast.events import Diagnosed, NodesChecked
from holdfast.simulation.group_faults import FairGroups
from holdfast.simulation.world import World
from tests.more import long, sample
from tests.simulation.test_referees import entry
from tests.simulation.test_world import lived, quiet


def with_a_bad_machine(seed: int, nodes: int, **changes: Any) -> World:
    hard = quiet(seed=seed, total_steps=0, rates={"bad_in_groups": 100.0})
    kinds = {"node_count": nodes, "spare_count": 2, "group_tests": True, **changes}
    limits = msgspec.structs.replace(hard.limits, max_restarts=100, **kinds)
    return lived(msgspec.structs.replace(hard, limits=limits))


def events(world: World, kind: str) -> list[Any]:
    lines = [json.loads(line)["event"] for line in world.book.texts()[1:]]
    return [one for one in lines if one["type"] == kind]


def group_tests_of(world: World) -> list[Any]:
    return [one for one in events(world, "NodesChecked") if one.get("told")]


def hangs_of(world: World) -> list[Any]:
    return [one for one in events(world, "HangJudged") if one["judgement"] == "hang"]


@pytest.mark.parametrize("nodes", sample([2, 4], [3, 9]))
def test_it_is_found_and_left_and_training_goes_on(nodes: int) -> None:
    hung = 0
    for seed in range(6):
        world = with_a_bad_machine(seed, nodes)
        bad = {agent.node for agent in world.agents.values() if agent.bad_in_groups}
        found = {node for told in group_tests_of(world) for node in told["found"]}
        assert found <= bad, seed
        if len(hangs_of(world)) >= NAMELESS:  # a spare may be bad, too
            hung += 1
            assert found, seed
        assert not any(agent.alive for agent in world.agents.values() if agent.node in found)
    assert hung


@long
def test_where_it_is_off_nothing_is_repeated() -> None:
    assert not group_tests_of(with_a_bad_machine(1, 4, group_tests=False))


def test_the_referee_objects_to_who_is_healthy() -> None:
    referee = FairGroups()
    referee.bad("n1")
    told = NodesChecked(found={"n1": "x"}, attempt=1, told="n1 fails")
    assert not referee.judged(entry(told, Fence(node="n1", reason="n1: ... n1 fails")))
    assert "n2 is bad" in referee.judged(entry(told, Fence(node="n2", reason="n1 fails")))
    wrong = msgspec.structs.replace(told, found={"n1": "x", "n0": "x"})
    assert "n0 is bad" in referee.judged(entry(wrong))
    verdict = Diagnosed(attempt=1, cause="hang", summary="", confidence=1.0)
    assert not referee.judged(entry(verdict, Fence(node="n2", reason="n1 fails")))
