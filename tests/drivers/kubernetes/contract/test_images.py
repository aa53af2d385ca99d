"""Another image while a job trains: tried first, then pod after pod, from memory to memory."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.drivers.kubernetes.cluster import PODS
from holdfast.spec.cluster import Engine
from holdfast.status import JobStatus
from tests.drivers.kubernetes.contract.site import Site, running
from tests.more import long

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]
IMAGES = ("img:1", "img:2")
UNHURRIED = ("--pause", "0.3")  # it is the pods that take time, not the steps


def images(site: Site) -> list[str]:
    """Of the pods that train or could."""
    pods = [*site.pods("node"), *site.pods("spare")]
    return [pod["spec"]["containers"][0]["image"] for pod in pods]


async def all_have(site: Site, image: str, nodes: int) -> JobStatus:
    """Wait until each node of the job has this image, and the job trains."""
    return await site.until(
        lambda s: images(site) == [image] * nodes and s.phase == "running"
        and len(s.nodes) == nodes and all(n.state in ("member", "spare") for n in s.nodes),
        f"{nodes} nodes with {image}",
    )  # fmt: skip


def who_trains(status: JobStatus) -> tuple[object, ...]:
    """Without what the kernel of this machine tells, of other tests too: a group out of memory."""
    return status.attempt, tuple((n.name, n.state, n.rank, n.node, n.pids) for n in status.nodes)


def pods_for_trials(site: Site) -> list[str]:
    """What is left of them."""
    return [
        e.object["metadata"]["name"]
        for e in site.it.store.since(site.it.store.oldest)
        if e.kind == PODS
        and "-image-" in (name := e.object["metadata"]["name"])
        and site.it.store.find(PODS, "default", name)
    ]


def test_pods_are_replaced_one_by_one_and_no_step_is_lost(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        before = await site.trains(spares=1)
        refused = await site.update("none", image="img:none")
        assert refused.stage == "refused" and "ImagePullBackOff" in (refused.why or "")
        same = await site.trains(spares=1)
        assert who_trains(same) == who_trains(before), await site.incidents()
        used = await site.update("new", image="img:2")
        assert (used.stage, used.image) == ("used", "img:2"), used.why
        after = await all_have(site, "img:2", 3)
        assert (after.version, after.restarts_count) == (3, 0), f"{after}\n{site.it.story()}"
        assert not {n.node for n in before.nodes} & {n.node for n in after.nodes}
        told = [(one.cause, one.steps_lost) for one in await site.incidents()]
        assert told == [("node-left", 0)] * 2, "each member handed over from memory to memory"
        await site.until(lambda _: not pods_for_trials(site), "no pod of a trial")
        await site.stop()
        await site.ends("stopped")

    asyncio.run(_played("pods", tmp_path, story, args=UNHURRIED))


@long
def test_without_spares_a_pod_leaves_before_its_successor_comes_and_half_of_it_can_be_taken_back(
    tmp_path: Path,
) -> None:
    async def story(site: Site) -> None:
        await site.trains()
        await site.update("new", image="img:2")
        await site.until(lambda _: "img:2" in images(site), "a pod with img:2")
        await site.update("back", back=True)
        status = await all_have(site, "img:1", 2)
        assert (status.version, status.restarts_count) == (1, 0)
        await site.stop()
        await site.ends("stopped")

    asyncio.run(_played("pods", tmp_path, story, light=True, nodes={"count": 2}))


@long
def test_an_image_that_can_be_pulled_no_more_is_taken_back_while_the_job_waits(
    tmp_path: Path,
) -> None:
    async def story(site: Site) -> None:
        await site.trains()
        await site.update("new", image="img:2")
        assert site.it.images is not None
        del site.it.images["img:2"]  # once it was tried
        await site.until(lambda s: s.updates[-1].id == "stalled-2", "the wish")
        status = await all_have(site, "img:1", 2)
        assert (status.version, status.outcome) == (1, None)
        assert [one.stage for one in status.updates] == ["reverted", "used"]
        await site.stop()
        await site.ends("stopped")

    wait = {"check": "off", "node_wait_s": 20.0}
    asyncio.run(_played("pods", tmp_path, story, light=True, nodes={"count": 2}, recovery=wait))


@long
def test_an_engine_that_makes_the_pods_itself_refuses(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.trains()
        refused = await site.update("new", image="img:2")
        assert refused.stage == "refused"
        assert "the pod template of a Job cannot be changed" in (refused.why or "")
        assert (await site.trains()).version == 1
        await site.stop()
        await site.ends("stopped")

    asyncio.run(_played("job", tmp_path, story, light=True))


async def _played(engine: Engine, folder: Path, story: Any, **spec: Any) -> None:
    async with running(engine, folder, images=IMAGES, **spec) as site:
        await story(site)
