"""A managed RayJob, with real controller, agents and entrypoint: what KubeRay sees of it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.drivers.kubernetes.cluster import JOBS
from tests.drivers.kubernetes.contract.site import LONG, Site, running
from tests.more import long

SHORT = 20  # steps
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def played(folder: Path, story: Callable[[Site], Awaitable[None]], steps: int = LONG) -> None:
    """Submit a job of two nodes without steps, and let the story happen to it."""

    async def play() -> None:
        nodes = {"count": 2}
        async with running("rayjob", folder, light=True, nodes=nodes, steps=steps) as site:
            await story(site)

    asyncio.run(play())


async def state(site: Site, wanted: str) -> None:
    """Wait until KubeRay says so."""
    where: dict[str, str] = {}
    while where.get("jobDeploymentStatus") != wanted:
        where = (await site.main_object()).get("status", {})
        await asyncio.sleep(0.05)


def head(site: Site) -> list[str]:
    """UIDs of the heads that run."""
    pods = site.pods("launcher")
    return [p["metadata"]["uid"] for p in pods if p["status"].get("phase") == "Running"]


def test_a_short_job_trains_to_its_end_and_kuberay_takes_the_cluster_down(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.ends("succeeded")
        assert await site.incidents() == [], site.it.story()
        await state(site, "Complete")
        assert (await site.main_object())["status"]["jobStatus"] == "SUCCEEDED"
        await site.it.until(lambda: not site.pods("node") and not site.pods("launcher"))
        assert len(site.ever()) == 2, "no worker was made anew at the end"

    played(tmp_path, story, SHORT)


@long
def test_a_lost_head_costs_nothing_and_a_lost_worker_comes_back(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        before = await site.trains()
        await state(site, "Running")
        [old] = site.pods("launcher")
        await site.delete(old)
        await site.it.until(lambda: head(site) and old["metadata"]["uid"] not in head(site))
        await site.it.until(lambda: site.it.store.find(JOBS, "default", "run"))
        status = await site.status()
        assert status is not None and status.attempt == before.attempt, "training went on"
        await site.delete(await site.member(1))
        site.pods_bound = 3
        await site.trains(attempt=before.attempt + 1)
        await site.stop()
        await site.ends("stopped")

    played(tmp_path, story)


@long
def test_a_stopped_job_is_suspended_or_has_failed_and_nothing_comes_back(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.trains()
        await site.stop()
        await site.ends("stopped")
        assert (await site.main_object())["spec"]["suspend"] is True
        await site.it.until(lambda: not site.pods("node") and not site.pods("launcher"))
        await site.it.until(lambda: not site.pods("controller"))

    played(tmp_path, story)
