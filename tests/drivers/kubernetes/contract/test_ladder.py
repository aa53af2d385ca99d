"""A step that looks for a machine which nobody blames, in a cluster: check.

Real controller, agents and workers in pods that are processes. One node is sick, by the id of its
pod; nothing but what comes again and again speaks against it.
"""

import asyncio
import resource
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.status import Incident
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.contract.site import Site, running

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

ABORTS = """
import os, pathlib, sys, time
sick = pathlib.Path(sys.argv[1])
print("trains", flush=True)
while not sick.exists():
    time.sleep(0.02)
whose = sick.read_text().split()[0]
if os.environ["HOLDFAST_NODE"].startswith(whose):
    os.abort()
time.sleep(1e6)
"""
CHECKED_BYTES = 8 << 20  # so much is written to a disk that is checked


def rungs(incident: Incident) -> list[str]:
    """Steps of the ladder that were taken for it."""
    return [choice.step for choice in incident.choices]


class Patients:
    """Says which node is sick, and how."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.file = site, folder / "sick"

    async def harm(self, how: str) -> Body:
        """From now on the pod of rank 1 is sick."""
        pod = await self.site.member(1)
        self.say(f"{pod['metadata']['uid']} {how}")
        return pod

    def say(self, text: str) -> None:
        self.file.with_suffix(".new").write_text(text)
        self.file.with_suffix(".new").rename(self.file)

    async def gone(self, pod: Body) -> None:
        """Its node is no part of the job any more, nor is its pod there."""
        uid = pod["metadata"]["uid"]
        await self.site.it.until(
            lambda: uid not in {p["metadata"]["uid"] for p in self.site.pods()}
        )
        status = await self.site.status()
        assert status is not None and uid not in {node.node for node in status.nodes}


def test_where_attempts_make_no_progress_a_machine_that_fails_its_checks_is_replaced(
    tmp_path: Path,
) -> None:
    """Workers of one node abort at once, which says nothing of why. Its disk takes no file."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "aborts.py").write_text(ABORTS)

    async def story(site: Site) -> None:
        patients = Patients(site, tmp_path)
        await site.trains(spares=1)
        sick = await site.member(1)
        agent = psutil.Process(site.it.pid(sick))
        agent.rlimit(psutil.RLIMIT_FSIZE, (CHECKED_BYTES // 2, resource.RLIM_INFINITY))
        await patients.harm("abort")
        await _until_checked(site)
        patients.say("nobody well")
        await site.until(lambda s: s.phase == "running" and s.attempt >= 3, "the third attempt")
        first, second = await site.incidents()
        assert (first.cause, rungs(first)) == ("worker-aborted", ["restart"])
        assert (second.cause, rungs(second)) == ("hardware-fault", ["check", "replace"]), second
        assert "its machine failed its checks: disk " in second.summary
        await patients.gone(sick)
        await site.stop()
        await site.ends("stopped")

    async def _until_checked(site: Site) -> None:
        await site.until(lambda s: s.incidents_count >= 2, "two attempts to abort")
        while not any("check" in rungs(one) for one in await site.incidents()):
            await asyncio.sleep(0.2)

    async def play() -> None:
        keys: dict[str, Any] = {
            "command": [sys.executable, "aborts.py", str(tmp_path / "sick")],
            "checkpoints": {"local": {"host_path": "/mnt/disk", "every_s": 3600}},
            "recovery": {"check": "quick"},
        }
        async with running("pods", tmp_path, light=True, **keys) as site:
            await story(site)

    asyncio.run(play())
