"""Pods repeat a step of their running job: asked as `holdfast replay --on kubernetes` asks."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.digests import StepsToRepeat
from holdfast.drivers.kubernetes.cluster import STORAGE_CLASSES
from holdfast.drivers.kubernetes.published_stacks import ask_for_replay
from holdfast.messages import ReplayReply
from tests.drivers.kubernetes.contract.site import Site, running
from tests.more import long
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

BAD_STEP = 25  # from 0, so it is the last of the first 26 steps


async def asked(site: Site, id_: str, **wish: Any) -> ReplayReply:
    """What the controller answers."""
    what = StepsToRepeat(id=id_, by="a test", **wish)
    reply = await ask_for_replay(site.api, "run", what, PATIENCE_S)
    assert reply is not None, site.it.story()
    return reply


@long
def test_pods_repeat_a_step_also_on_a_spare_and_the_one_that_is_bad_is_left(tmp_path: Path) -> None:
    bad = tmp_path / "bad-nodes"
    bad.write_text("")

    async def story(site: Site) -> None:
        status = await site.trains(spares=1, after=BAD_STEP + 5)
        spare = next(one.name for one in status.nodes if one.state == "spare")
        there = await asked(site, "one", step=BAD_STEP, isolate=False, others=(spare,))
        assert there.verdict == "genuine" and f"on {spare} as well" in there.summary, there
        status = await site.trains(attempt=2, spares=1)
        node = next(one for one in status.nodes if one.rank == 1)
        bad.write_text(node.node)
        found = await asked(site, "two", step=BAD_STEP + 1)
        assert (found.nodes, found.sure) == ((node.name,), True), found
        await site.trains(attempt=3)
        after = await site.status()
        assert after is not None and node.node not in {one.node for one in after.nodes}
        first, *_ = await site.incidents()
        assert (first.cause, first.steps_lost) == ("repeated", 0), first
        await site.stop()
        await site.ends("stopped")

    async def play() -> None:
        keys: dict[str, Any] = {
            "checkpoints": {
                "shared": {"pvc": "ckpt", "storage_class": "fast", "every_s": 1, "keep": 1000}
            },
            "args": (
                "--pause", "0.05", "--bad-nodes", str(bad), "--bad-step", str(BAD_STEP),
                "--bad-nodes-die",
            ),
        }  # fmt: skip
        async with running("pods", tmp_path, **keys) as site:
            site.it.store.create(STORAGE_CLASSES, "", {"metadata": {"name": "fast"}})
            await story(site)

    asyncio.run(play())
