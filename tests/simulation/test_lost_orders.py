"""A rack takes the controller and all copies of its newest lines, and others have obeyed them."""

import msgspec

from holdfast.controller.state import IncidentRecord
from holdfast.simulation.hardship import Hardship
from holdfast.simulation.world import World
from tests.more import sample
from tests.simulation.test_world import lived, quiet

SEEDS = sample([0, 1], range(2, 8))


def world_of(seed: int) -> Hardship:
    rates = {"rack_losses": 300.0, "worker_kills": 800.0}
    hard = quiet(seed=seed, rates=rates, total_steps=0, cluster=True, rack_size=8)
    limits = msgspec.structs.replace(hard.limits, node_count=8, spare_count=2, max_restarts=100_000)
    return msgspec.structs.replace(hard, limits=limits)


def lost_orders(world: World) -> list[IncidentRecord]:
    """Incidents that began so, whatever is known of them later."""
    found = world.book.whole().state.incidents
    return [one for one in found if "were lost with a controller" in one.actions[0].reason]


def test_each_incident_has_a_bill_of_its_number_where_orders_were_lost() -> None:
    """The referee of the books compares them at the end of each world."""
    found = [lost_orders(lived(world_of(seed))) for seed in SEEDS]
    assert any(found)
