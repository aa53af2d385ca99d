"""Another image for a job of a simulated cluster, by what replaces pods in a real one."""

import msgspec
import pytest

from holdfast.events import UpdateRequested
from holdfast.simulation.world import World
from tests.more import sample
from tests.simulation.test_world import quiet


def updated(*images: str, spares: int = 1) -> World:
    """A world in which somebody asks for these images, one after the other."""
    hard = quiet(cluster=True, total_steps=6000, telemetry_s=5.0, rates={"image_updates": 1e-9})
    limits = msgspec.structs.replace(hard.limits, spare_count=spares, node_wait_s=120.0)
    world = World(msgspec.structs.replace(hard, limits=limits))

    def ask(image: str) -> None:
        assert world.control is not None
        world.control.put(UpdateRequested(by="x", id=image, image=image))

    for number, image in enumerate(images, 1):
        world.env.after(1500.0 * number, ask, image)
    world.run()
    return world


def images(world: World) -> list[str]:
    """Of the nodes that were there at the end."""
    assert world.control is not None
    return [world.images.of(node) for node in world.control.state.nodes]


@pytest.mark.parametrize("spares", sample([1], [0]))
def test_all_nodes_get_the_new_image_one_by_one(spares: int) -> None:
    world = updated("image:1", spares=spares)
    assert set(images(world)) == {"image:1"}
    assert world.referees.outcome == "succeeded" and len(world.agents) == 2 * (2 + spares)


@pytest.mark.parametrize("spares", sample([1], [0]))
def test_an_image_in_which_no_node_becomes_ready_costs_one_node_and_is_taken_back(
    spares: int,
) -> None:
    world = updated("image:1", "dud:2", spares=spares)
    assert set(images(world)) == {"image:1"}
    assert world.referees.outcome == "succeeded"
    assert b"as no pod was ready for long" in bytes(world.book.lines)
    assert len(world.agents) <= 3 * (2 + spares) + 2, "no other one has given way to it"
