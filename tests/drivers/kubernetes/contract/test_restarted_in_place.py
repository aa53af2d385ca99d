"""An agent that dies in a pod which goes on: its kubelet starts its container again."""

import os
import signal
from pathlib import Path

import pytest

from tests.drivers.kubernetes.contract.site import Site
from tests.drivers.kubernetes.contract.test_contract import played
from tests.more import long

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


@long
def test_a_container_that_its_kubelet_starts_again_is_a_lost_node_with_its_cause(
    tmp_path: Path,
) -> None:
    """Its next agent may listen where it did: nobody would believe that it is gone until it had
    been silent for long."""

    async def story(site: Site) -> None:
        await site.trains(spares=1)
        pods = {pod["metadata"]["uid"] for pod in site.pods("node")}
        os.kill(site.it.pid(await site.member(1)), signal.SIGKILL)
        status = await site.trains(attempt=2, spares=1)
        (incident,) = await site.incidents()
        told = "its container exited with status 137 and was started again"
        assert incident.cause == "node-lost" and told in incident.summary
        assert {pod["metadata"]["uid"] for pod in site.pods("node")} == pods, "none was replaced"
        assert sum(node.node.endswith(".2") for node in status.nodes) == 1
        await site.stop()
        await site.ends("stopped")

    played("mpijob", tmp_path, story)
