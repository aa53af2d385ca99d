"""Worlds in which one controller follows the other, and orders are young when that happens."""

import pytest

from holdfast.simulation.hardship import SUCCESSION_SEEDS, SUCCESSIONS, draw
from holdfast.simulation.swarm import run
from tests.more import sample


@pytest.mark.parametrize("seed", sample(SUCCESSION_SEEDS[:2], SUCCESSION_SEEDS[2:40]))
def test_no_referee_has_anything_against_them(seed: int) -> None:
    assert not run(seed, hours=2.0, nodes=6)[0].foul


def test_all_of_them_are_clusters_in_which_controllers_and_workers_die() -> None:
    worlds = [draw(seed) for seed in SUCCESSION_SEEDS[:20]]
    assert all(SUCCESSIONS.keys() <= world.rates.keys() and world.cluster for world in worlds)
