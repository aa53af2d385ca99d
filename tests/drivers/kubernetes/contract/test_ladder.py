"""Steps that look for a machine which nobody blames, in a cluster: check, replay, isolate.

Real controller, agents and workers in pods that are processes. One node is sick, by the id of its
pod; nothing but what comes again and again speaks against it.
"""

import asyncio
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.drivers.kubernetes.cluster import NODES, STORAGE_CLASSES
from holdfast.status import Incident
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.contract.site import Site, running
from tests.end_to_end.local.jobs import SCRIPTS
from tests.more import long

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

    async def harm_steps(self) -> Body:
        """Likewise, of the script that does steps: it names nodes by all but the end of the id."""
        pod = await self.site.member(1)
        self.say(pod["metadata"]["uid"].rpartition("-")[0])
        return pod

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
        found = await site.incidents()
        assert [(one.cause, rungs(one)) for one in found] == [
            ("worker-aborted", ["restart"]),
            ("hardware-fault", ["check", "replace"]),
        ], found
        assert "its machine failed its checks: disk " in found[1].summary
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
        async with running("pods", tmp_path, light=True, restricted=False, **keys) as site:
            await story(site)

    asyncio.run(play())


def sick_steps(folder: Path, how: str) -> dict[str, Any]:
    """Keys of a job whose training is harmed by one node."""
    (folder / "code").mkdir()
    shutil.copy(SCRIPTS / "sick.py", folder / "code")
    args = ("--out", str(folder), "--sick", str(folder / "sick"), "--how", how, "--steps", "5000")
    return {"script": "sick.py", "args": args}


@long
def test_the_node_on_which_alone_the_script_fails_is_left_on_suspicion(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        patients = Patients(site, tmp_path)
        await spare_waits(site)
        sick = await patients.harm_steps()
        await site.until(lambda s: s.phase == "running" and s.attempt >= 5, "the fifth attempt")
        found = await site.incidents()
        name = sick["metadata"]["name"]
        assert {(one.cause, one.node) for one in found} == {("worker-exception", name)}
        assert [rungs(one) for one in found] == [["restart"]] * 3 + [["isolate"]]
        assert (
            f"only on {name}, while 2 other nodes did the same work" in found[3].choices[0].reason
        )
        await patients.gone(sick)
        await is_free(site, sick)
        await site.stop()
        await site.ends("stopped")

    async def play() -> None:
        keys = {**sick_steps(tmp_path, "error"), "nodes": {"count": 3, "spares": 1}}
        async with running("pods", tmp_path, machines=5, **keys) as site:
            await story(site)

    asyncio.run(play())


@long
def test_the_third_corruption_that_names_nobody_has_a_step_repeated_which_finds_the_node(
    tmp_path: Path,
) -> None:
    async def story(site: Site) -> None:
        patients = Patients(site, tmp_path)
        await spare_waits(site)
        sick = await patients.harm_steps()
        await site.until(lambda s: s.phase == "running" and s.attempt >= 4, "the fourth attempt")
        found = await site.incidents()
        name = sick["metadata"]["name"]
        assert [one.cause for one in found] == ["corruption", "corruption", "hardware-fault"]
        assert [rungs(one)[-1] for one in found] == ["restart", "restart", "replace"]
        assert "replay" in rungs(found[2])
        told = f"{name} fails in every group of 1 it was tried in"
        assert found[2].node == name and told in found[2].summary
        assert any(one.action == "Fence" and told in one.reason for one in found[2].actions)
        await patients.gone(sick)
        await site.stop()
        await site.ends("stopped")

    async def play() -> None:
        keys = {
            **sick_steps(tmp_path, "flip"),
            "checkpoints": {
                "shared": {"pvc": "ckpt", "storage_class": "fast", "every_s": 1, "keep": 1000}
            },
            "recovery": {"check_replicas_every": 4},
        }
        async with running("pods", tmp_path, **keys) as site:
            site.it.store.create(STORAGE_CLASSES, "", {"metadata": {"name": "fast"}})
            await story(site)

    asyncio.run(play())


async def spare_waits(site: Site) -> None:
    """All nodes wait in their first step, and one for them."""
    await site.until(
        lambda s: s.attempt == 1 and any(n.state == "spare" for n in s.nodes), "a spare waits"
    )


async def is_free(site: Site, pod: Body) -> None:
    """Nothing but suspicion speaks against its machine: neither the cluster nor new pods of this
    job keep off it."""
    machine = pod["spec"]["nodeName"]
    assert (await site.api.get(NODES, machine))["spec"] == {}
    assert all(machine not in repr(p["spec"].get("affinity", {})) for p in site.pods())
