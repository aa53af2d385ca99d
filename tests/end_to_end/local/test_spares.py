"""A spare counts once its workers have built all that they can without their ranks."""

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.local.jobs import program
from tests.more import sample

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

SLOW = """
import os, time
from pathlib import Path
folder = Path(__file__).parent
name = os.environ["HOLDFAST_NODE"].rpartition("-")[0]
while name == "node-3" and not (folder / "built").exists():
    time.sleep(0.02)
from holdfast.train import join
run = join()
while not (folder / "enough").exists():
    time.sleep(0.02)
"""
WARM: dict[str, Any] = {
    "warm": {"preload": ["tests.end_to_end.local.gate"]},  # that node is ready last
    "framework": "pytorch",
}


@pytest.mark.parametrize("lost", sample([False], [True]))
def test_a_spare_is_shown_as_preparing_until_then_and_taken_if_there_is_no_other(
    home: Path, lost: bool
) -> None:
    job = program(home, SLOW, nodes={"count": 3, "spares": 1}, **WARM).start()
    job.wait_until(lambda s: s.attempt == 1 and s.phase == "starting", "it trains without")
    (job.folder / "go").touch()
    spare = job.wait_until(
        lambda s: "preparing" in [n.state for n in s.nodes], "a spare is on its way"
    )
    (name,) = [node.name for node in spare.nodes if node.rank is None]
    if lost:
        job.kill_node(job.member(1))
        job.wait_until(lambda s: s.attempt == 2, "it is taken")
        took = [action.reason for action in job.incidents()[0].actions]
        assert f"{name} takes over node rank 1; its workers were not ready yet" in took
    (home.parent / "built").touch()
    if not lost:
        job.wait_until(lambda s: [n.state for n in s.nodes if n.name == name] == ["spare"], "warm")
    (home.parent / "enough").touch()
    job.wait_end()
