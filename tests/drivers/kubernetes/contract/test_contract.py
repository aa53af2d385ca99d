"""What every engine owes a job, and what Holdfast makes of it: the same on all of them.

Each test submits a small training job to a cluster in this process, whose pods are real processes
with real agents and workers, lets something happen to it, and looks at what people would see.
"""

import asyncio
import hashlib
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.bundles import bundle
from holdfast.drivers.kubernetes.cluster import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
    NODES,
    PODS,
    SECRETS,
    STORAGE_CLASSES,
)
from holdfast.drivers.kubernetes.ending import suspension
from holdfast.drivers.kubernetes.engine_size import NUMBER
from holdfast.drivers.kubernetes.manifests.support.services import METRICS_PORT
from holdfast.drivers.kubernetes.remote_orders import ask_to_scale
from holdfast.drivers.kubernetes.roster import TRAINS
from holdfast.spec.cluster import Engine
from holdfast.status import JobStatus
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.drivers.kubernetes.cluster.webhooks import ELASTIC
from tests.drivers.kubernetes.contract.site import Site, running
from tests.more import MORE, long, sample
from tests.patience import PATIENCE_S

ALL: tuple[Engine, ...] = (
    "pods", "job", "jobset", "pytorchjob", "trainjob", "volcano", "mpijob", "tfjob", "jaxjob",
    "xgboostjob", "paddlejob",
)  # fmt: skip
SILENCE = {"heartbeat_timeout_s": 20.0}  # of jobs that lose a node by it
UNHURRIED = ("--pause", "0.3")  # while a lease ends nobody has to train hundreds of steps
FIRST_STEP = '"attempt":2,"milestone":"first_step"'
# Training itself is the same on all engines, so it takes torch on one of them only, and there where
# steps are looked at. What an engine does not see is tried on one, and on another when asked; what
# it does itself on some, so that each has its turn, and on the others when asked; of kinds with one
# operator pytorchjob stands for all. HOLDFAST_ALL_ENGINES=1 tries everything on all.
FULL: tuple[Engine, ...] = ALL if os.environ.get("HOLDFAST_ALL_ENGINES") else ("pods",)
REFILL = ("pods", "job", "jobset", "trainjob")  # others wait for the dead machine's pod to go
torch_engine = pytest.mark.parametrize("engine", FULL)


def engines(*always: Engine, when_asked: tuple[Engine, ...]) -> pytest.MarkDecorator:
    """Of a test of what an engine does itself."""
    return pytest.mark.parametrize("engine", ALL if FULL == ALL else sample(always, when_asked))


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def played(
    engine: Engine,
    folder: Path,
    story: Callable[[Site], Awaitable[None]],
    *,
    trains: bool = False,
    **spec: Any,
) -> None:
    """Submit a job and let the story happen to it; one that `trains` does so in steps."""
    light = FULL != ALL and not (trains and engine in FULL)

    async def play() -> None:
        async with running(engine, folder, light=light, **spec) as site:
            await story(site)

    asyncio.run(play())


@engines("trainjob", when_asked=("pods", "jobset", "mpijob", "volcano", "job", "pytorchjob"))
def test_a_job_trains_to_its_end_and_the_engine_knows(engine: Engine, tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        status = await site.ends("succeeded")
        assert status.incidents_count == 0
        phases = {pod["status"]["phase"] for pod in site.pods("node")}
        assert phases <= {"Succeeded"}, "some engines clean up"
        deployment = await site.api.get(DEPLOYMENTS, "run-controller")
        assert deployment["spec"]["replicas"] == 0
        if engine == "job":
            await site.it.until(lambda: _conditions(site, "Complete"))

    played(engine, tmp_path, story, trains=True, steps=20)


async def _keeps_quiet(site: Site) -> None:
    """The engine was told not to bring anything back."""
    if suspension(site.request) is not None:
        body = await site.main_object()
        assert body["spec"].get("runPolicy", body["spec"])["suspend"] is True


async def _stops_and_stays_away(site: Site) -> None:
    """Every worker exits in time, the controllers go, and the engine brings nothing back."""
    controller = await site.controller()
    await site.stop()
    await site.ends("stopped")
    await _keeps_quiet(site)
    await site.it.until(lambda: not site.it.pods(job="run", role="controller"))
    assert "did not exit in time" not in site.it.output(controller)


def _conditions(site: Site, kind: str) -> list[str]:
    from holdfast.drivers.kubernetes.cluster import JOBS

    body = site.it.store.find(JOBS, "default", "run") or {}
    found = body.get("status", {}).get("conditions", [])
    return [c["type"] for c in found if c["type"] == kind and c["status"] == "True"]


async def _scraped(pod: dict[str, Any], port: int) -> str:
    """What Prometheus would get of this pod."""
    reader, writer = await asyncio.open_connection(pod["status"]["podIP"], port)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.decode()


@torch_engine
def test_a_crashed_worker_is_restarted_in_its_pod(engine: Engine, tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.trains(attempt=2)
        pods = {pod["metadata"]["uid"] for role in ("node", "spare") for pod in site.pods(role)}
        status = await site.status()
        assert status is not None and {n.node for n in status.nodes} <= pods
        assert len(pods) == 3, "none was replaced"
        (incident,) = await site.incidents()
        assert (incident.cause, incident.rank) == ("worker-killed", 1)
        assert incident.steps_lost <= 1
        told = await _scraped(await site.controller(), METRICS_PORT)
        assert "holdfast_restarts_total 1.0\n" in told and "holdfast_spares 1.0\n" in told
        for pod in site.pods("node"):
            up = f'holdfast_node_up{{node="{pod["metadata"]["name"]}"}} 1.0'
            assert up in await _scraped(pod, 7070)
        await _updated_in_its_pods(site, pods)
        await site.stop()
        await site.ends("stopped")

    die = ("--die", "between-steps", "--die-step", "5", *UNHURRIED)
    played(engine, tmp_path, story, trains=True, args=die)


async def _updated_in_its_pods(site: Site, pods: set[str]) -> None:
    """Code that cannot be used stops nothing; other code and arguments train in the same pods, and
    in pods that come later, whatever controller there is then."""
    await site.trains(attempt=2, spares=1)
    code = site.folder / "code" / "small.py"
    code.write_text(code.read_text().replace("import torch\n", "import torch\nimport no_such\n"))
    refused = await site.update("bad", bundle(code.parent))
    assert refused.stage == "refused" and "No module named 'no_such'" in (refused.why or "")
    code.write_text(code.read_text().replace("import no_such\n", "print('second code')\n"))
    await site.update("good", bundle(code.parent), sets={"pause": "0.35"}, canary=True)
    status = await site.trains(attempt=3)
    assert (status.version, status.attempt) == (3, 3) and {n.node for n in status.nodes} == pods
    incident = (await site.incidents())[-1]
    assert (incident.cause, incident.steps_lost) == ("updated", 0)
    lazy = await site.update("lazy", bundle(code.parent), when="next-failure")
    assert lazy.stage == "waiting", "prepared, and no failure yet"
    before = await site.trains(attempt=3, spares=1)
    assert (before.version, before.attempt) == (3, 3)
    await site.delete(await site.member(1))
    after = await site.trains(attempt=4)
    assert (after.version, after.attempt) == (4, 4), await site.incidents()
    if not MORE:
        return
    controller = await site.controller()
    await site.delete(controller)
    await site.successor(controller)
    for rank, attempt in ((1, 5), (0, 6)):
        await site.trains(attempt=attempt - 1, spares=1)
        await site.delete(await site.member(rank))
        assert (await site.trains(attempt=attempt)).version == 4


@engines("job", when_asked=("pods", "jobset", "pytorchjob"))
def test_a_deleted_pod_is_replaced_and_after_a_stop_the_engine_brings_nothing_back(
    engine: Engine, tmp_path: Path
) -> None:
    async def story(site: Site) -> None:
        before = await site.trains(spares=1)
        gone = await site.member(1)
        await site.delete(gone)
        await site.trains(attempt=2)
        (incident,) = await site.incidents()
        assert incident.node == gone["metadata"]["name"]
        after = await site.trains(attempt=2, spares=1)
        nodes = {n.node for n in after.nodes}
        assert gone["metadata"]["uid"] not in nodes and len(nodes) == 3
        assert len(nodes & {n.node for n in before.nodes}) == 2
        await _stops_and_stays_away(site)

    played(engine, tmp_path, story)


async def _an_evicted_pod_says_goodbye(site: Site) -> None:
    before = await site.trains(spares=1)
    gone = await site.member(0)
    assert await site.evict(gone)
    after = await site.trains(attempt=before.attempt + 1)
    incident = (await site.incidents())[-1]
    assert (incident.cause, incident.node) == ("node-left", gone["metadata"]["name"]), incident
    assert "removed (planned)" in incident.summary
    assert after.restarts_count == 0, "nothing has failed"


async def _a_machine_that_is_announced_to_go_is_left_before_it_goes(site: Site) -> None:
    """As an autoscaler, a spot market or a person does it: by a taint, and the pod lives on."""
    before = await site.trains(spares=1)
    gone = await site.member(1)
    machine = gone["spec"]["nodeName"]
    taint = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
    await site.api.patch(NODES, machine, {"spec": {"taints": [taint]}})
    after = await site.trains(attempt=before.attempt + 1, spares=1)
    incident = (await site.incidents())[-1]
    assert (incident.cause, incident.node) == ("node-left", gone["metadata"]["name"])
    assert "hands over" in incident.summary and "Karpenter" in incident.summary
    assert after.restarts_count == 0, "nothing has failed"
    uid = gone["metadata"]["uid"]  # its pod is evicted
    await site.it.until(lambda: uid not in {p["metadata"]["uid"] for p in site.pods()})
    body = await site.api.get(NODES, machine)
    assert body["spec"]["taints"] == [taint], "and nobody cordons it for that"
    newest = max(site.pods("node") + site.pods("spare"), key=_number)
    assert machine in repr(newest["spec"]["affinity"]["nodeAffinity"]), "its successor avoids it"


def _number(pod: dict[str, Any]) -> int:
    """Pods are numbered as they are made."""
    return int(pod["metadata"]["name"].rpartition("-")[2])


async def _a_dead_machine_is_noticed_by_silence(site: Site) -> None:
    before = await site.trains(spares=1)
    controller = (await site.controller())["spec"]["nodeName"]
    ranks = [await site.member(rank) for rank in (0, 1)]
    gone = next(pod for pod in ranks if pod["spec"]["nodeName"] != controller)
    site.it.kill_machine(gone["spec"]["nodeName"])
    await site.trains(attempt=before.attempt + 1)
    incident = (await site.incidents())[-1]
    assert incident.cause == "node-lost"
    if site.request.engine in REFILL:
        await site.trains(attempt=before.attempt + 1, spares=1)


@engines("pods", when_asked=("jobset",))
def test_whatever_a_node_is_lost_by_training_goes_on_and_knows_what_it_was(
    engine: Engine, tmp_path: Path
) -> None:
    """An evicted pod, a machine that is announced to go, one that dies: one after another."""

    async def story(site: Site) -> None:
        await _an_evicted_pod_says_goodbye(site)
        if engine == "pods":
            await _a_machine_that_is_announced_to_go_is_left_before_it_goes(site)
        await _a_dead_machine_is_noticed_by_silence(site)
        await site.stop()
        await site.ends("stopped")

    keys: dict[str, Any] = {"scheduling": {"one_per_machine": True}, "access": {"cordon": True}}
    played(engine, tmp_path, story, machines=6, recovery=SILENCE, **keys)


@long
def test_a_machine_whose_kubelet_stops_costs_no_pods_until_it_is_back(tmp_path: Path) -> None:
    """The cluster marks its pod for deletion, and the node in it trains on."""

    async def story(site: Site) -> None:
        before = await site.trains(spares=1)
        controller = (await site.controller())["spec"]["nodeName"]
        ranks = [await site.member(rank) for rank in (0, 1)]
        gone = next(pod for pod in ranks if pod["spec"]["nodeName"] != controller)
        site.it.partition_machine(gone["spec"]["nodeName"])
        uid = gone["metadata"]["uid"]
        await site.it.until(lambda: uid not in {p["metadata"]["uid"] for p in site.pods()})
        same = await site.until(lambda s: s.wall_s > before.wall_s + 2, "the next record")
        assert (same.attempt, len(same.nodes)) == (before.attempt, 3)
        trains = [p for role in TRAINS for p in site.it.pods(job="run", role=role)]
        assert len(trains) == 3, "nobody asked for another"
        site.it.revive_machine(gone["spec"]["nodeName"])
        after = await site.trains(attempt=2, spares=1)
        assert uid not in {n.node for n in after.nodes}
        await site.stop()
        await site.ends("stopped")

    apart = {"one_per_machine": True}
    played("pods", tmp_path, story, machines=5, scheduling=apart)


@long
def test_a_pod_of_a_machine_that_was_removed_is_dropped(tmp_path: Path) -> None:
    """Volcano waits for the pod of a dead machine, which nobody takes away: with the right to look
    at machines the controller does, once the machine is no part of the cluster any more."""

    async def story(site: Site) -> None:
        await site.trains(spares=1)
        controller = (await site.controller())["spec"]["nodeName"]
        ranks = [await site.member(rank) for rank in (0, 1)]
        gone = next(pod for pod in ranks if pod["spec"]["nodeName"] != controller)
        machine = gone["spec"]["nodeName"]
        await site.api.patch(NODES, machine, {"spec": {"unschedulable": True}})
        await site.until(
            lambda s: any(c.condition == "machine-cordoned" for n in s.nodes for c in n.conditions),
            "the status to tell that a machine is cordoned",
        )
        site.it.kill_machine(machine)
        await site.trains(attempt=2)
        await site.api.delete(NODES, machine)
        await site.trains(attempt=2, spares=1)
        assert gone["metadata"]["uid"] not in {
            p["metadata"]["uid"] for p in site.it.pods(job="run")
        }
        await site.stop()
        await site.ends("stopped")

    apart = {"one_per_machine": True}
    keys: dict[str, Any] = {"scheduling": apart, "access": {"cordon": True}}
    played("volcano", tmp_path, story, machines=5, recovery=SILENCE, **keys)


@torch_engine
def test_a_new_controller_goes_on_and_training_never_notices(
    engine: Engine, tmp_path: Path
) -> None:
    """Nor does it while the API server is away, which delays no recovery."""

    async def story(site: Site) -> None:
        await site.trains(spares=1)
        await _recovers_while_the_api_is_away(site)
        before = await site.trains(attempt=2, spares=1)
        told = len(await site.incidents())
        old = await site.controller()
        assert len({pod["spec"]["nodeName"] for pod in site.pods("controller")}) == 2
        await site.delete(old)
        new = await site.successor(old)
        after = await site.until(
            lambda s: (s.step or 0) > (before.step or 0) + 7 and s.controller == "alive",
            "the next controller to see training go on",
        )
        assert "did not say" not in site.it.output(new), "each agent has told what it holds"
        assert after.attempt == before.attempt
        assert len(await site.incidents()) == told
        assert {n.node for n in after.nodes} == {n.node for n in before.nodes}
        lease = await site.api.get(LEASES, "run-controller")
        assert lease["spec"]["leaseTransitions"] >= 2
        await site.delete(await site.member(1))
        await site.trains(attempt=before.attempt + 1)
        await site.stop()
        await site.ends("stopped")

    played(engine, tmp_path, story, trains=True, args=UNHURRIED)


async def _recovers_while_the_api_is_away(site: Site) -> None:
    def journal() -> str:
        """As it lies on the controller's disk."""
        found = site.it.folder.glob("pods/*/volumes/home/jobs/run/*/*/journal.jsonl")
        return "".join(path.read_text() for path in found)

    victim = await site.worker(1)
    site.it.faults.add(Fault(code=500, times=1_000_000))
    os.kill(victim, signal.SIGKILL)
    await site.it.until(lambda: FIRST_STEP in journal())
    site.it.faults.clear()
    await site.trains(attempt=2)
    (incident,) = await site.incidents()
    assert incident.cause == "worker-killed"


@pytest.mark.parametrize("harm", sample(["is cut off"], ["dies"]))
def test_the_machine_of_the_controller_and_of_a_member_may_go(harm: str, tmp_path: Path) -> None:
    """The one that stands by goes on, with the spare; what comes back from the cut is too late."""

    async def story(site: Site) -> None:
        await site.trains(spares=1)
        machine, gone = await _both_on_one(site)
        old = await site.controller()
        before = await site.until(lambda s: s.controller == "alive", "a controller")
        act = site.it.kill_machine if harm == "dies" else site.it.freeze_machine
        act(machine)
        new = await site.successor(old)
        assert new["spec"]["nodeName"] != machine
        after = await site.trains(attempt=before.attempt + 1)
        members = {node.node for node in after.nodes if node.rank is not None}
        assert gone["metadata"]["uid"] not in members and len(members) == 2
        if harm == "is cut off":
            site.it.revive_machine(machine)
            await site.it.until(lambda: not site.it.store.find(PODS, "default", _name(old)))
            same = await site.trains(attempt=after.attempt)
            assert same.attempt == after.attempt, "it has learned that it is not the controller"
        await site.stop()
        await site.ends("stopped")

    async def _both_on_one(site: Site) -> tuple[str, dict[str, Any]]:
        """Until the controller is where a member is: each time the other one takes its place."""
        while True:
            controller = await site.controller()
            machine = controller["spec"]["nodeName"]
            members = [await site.member(rank) for rank in (0, 1)]
            here = [pod for pod in members if pod["spec"]["nodeName"] == machine]
            if here:
                return machine, here[0]
            await site.delete(controller)
            await site.successor(controller)

    apart = {"one_per_machine": True}
    played("pods", tmp_path, story, machines=3, scheduling=apart, recovery=SILENCE)


@long
def test_a_controller_that_the_api_does_not_answer_gives_way_to_the_one_it_answers(
    tmp_path: Path,
) -> None:
    """Agents still reach the first one. Its lease ends, it acts no more, and they find the other;
    training does not notice."""

    async def story(site: Site) -> None:
        before = await site.trains(spares=1)
        old = await site.controller()
        site.it.cut_from_api(old)
        site.it.partition_machine(old["spec"]["nodeName"])  # nor can anybody end its pod
        await site.successor(old)
        after = await site.until(
            lambda s: (s.step or 0) > (before.step or 0) + 7 and s.controller == "alive",
            "the next controller to see training go on",
        )
        assert after.attempt == before.attempt and not await site.incidents()
        await site.stop()
        await site.ends("stopped")
        site.it.revive_machine(old["spec"]["nodeName"])
        site.it.cut_from_api(old, cut=False)

    played("pods", tmp_path, story, trains=True, args=UNHURRIED)


@long
def test_a_controller_that_hears_of_no_node_any_more_gives_way_to_one_that_does(
    tmp_path: Path,
) -> None:
    """It reaches the API server and no agent. They have hardly all died: training goes on."""

    async def story(site: Site) -> None:
        before = await site.trains(spares=1)
        old = await site.controller()
        site.it.cut_from_pods(old)
        after = await site.until(
            lambda s: (s.step or 0) > (before.step or 0) + 20 and s.controller == "alive",
            "the next controller to see training go on",
        )
        assert after.attempt == before.attempt and not await site.incidents()
        assert "another controller takes over" in site.it.output(old)
        await site.stop()
        await site.ends("stopped")

    apart = {"one_per_machine": True}
    played("pods", tmp_path, story, trains=True, args=UNHURRIED, scheduling=apart)


def _name(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def test_code_that_no_config_map_holds_alone_arrives_whole(tmp_path: Path) -> None:
    """2.5 MB that cannot be compressed, and pods that start while no controller lives. The image
    may run as root and has a user of its own."""
    noise = random.Random(5).randbytes(2_500_000)
    code = tmp_path / "code"
    code.mkdir()
    (code / "noise.bin").write_bytes(noise)
    check = "import hashlib; found = hashlib.sha256(open('noise.bin', 'rb').read()).hexdigest()"
    (code / "check.py").write_text(
        f"{check}\nassert found == '{hashlib.sha256(noise).hexdigest()}'"
    )

    async def play() -> None:
        command = [sys.executable, "check.py"]
        keys: dict[str, Any] = {"command": command, "image": {"name": "img:1", "root": True}}
        async with running("job", tmp_path, light=True, restricted=False, **keys) as site:
            await site.ends("succeeded")
            maps = [b for k, b in site.it.store.everything() if "code-" in b["metadata"]["name"]]
            assert len(maps) > 2

    asyncio.run(play())


async def _strangers(site: Site) -> list[str]:
    """What the controller has made and that does not belong to the job's ConfigMap."""
    home = await site.api.get(CONFIG_MAPS, "run-job")
    names = ((CONFIG_MAPS, "run-record"), (CONFIG_MAPS, "run-journal"), (SECRETS, "run-token"),
             (LEASES, "run-controller"))  # fmt: skip
    made = [await site.api.get(kind, name) for kind, name in names]
    return [
        body["metadata"]["name"]
        for body in (*made, *site.pods("node"), *site.pods("spare"))
        if [ref["uid"] for ref in body["metadata"].get("ownerReferences", [])]
        != [home["metadata"]["uid"]]
    ]


def test_a_journal_on_a_claim_outlives_controller_and_all_agents(tmp_path: Path) -> None:
    """With the record gone too, nobody but the claim knows of the first attempt."""

    async def story(site: Site) -> None:
        site.it.store.create(STORAGE_CLASSES, "", {"metadata": {"name": "fast"}})
        before = await site.trains()
        assert await _strangers(site) == []
        (old,) = site.pods("controller")
        await site.api.delete(CONFIG_MAPS, "run-journal")
        for pod in site.pods():
            os.kill(site.it.pid(pod), signal.SIGKILL)
        for pod in site.pods():
            await site.delete(pod)
        await site.api.delete(CONFIG_MAPS, "run-journal")
        after = await site.trains(attempt=before.attempt + 1)
        (new,) = site.pods("controller")
        assert new["metadata"]["uid"] != old["metadata"]["uid"]
        assert not {n.node for n in after.nodes} & {n.node for n in before.nodes}
        assert {i.cause for i in await site.incidents()} == {"node-lost"}
        (journal,) = site.it.folder.glob("shared/claims/default/journals/run/*/*/journal.jsonl")
        assert journal.read_text().count('"type":"JobSubmitted"') == 1
        await site.stop()
        await site.ends("stopped")
        logs = list(site.it.folder.glob("shared/claims/default/ckpt/**/attempt-*/rank-?.log"))
        assert {log.name for log in logs} == {"rank-0.log", "rank-1.log"}
        assert {log.read_text() for log in logs} == {"trains\n"}, "on the shared claim, all of it"

    async def play() -> None:
        claim = {"pvc": "journals", "storage_class": "fast"}
        keys: dict[str, Any] = {
            "kubernetes": {"journal": claim},
            "checkpoints": {"shared": {"pvc": "ckpt", "storage_class": "fast"}},
        }
        async with running("pods", tmp_path, light=True, **keys) as site:
            await story(site)

    asyncio.run(play())


@pytest.mark.parametrize("engine", sample(["job"], ["pods", "pytorchjob", "jobset"]))
def test_the_engine_makes_as_many_pods_as_the_job_is_scaled_to(
    engine: Engine, tmp_path: Path
) -> None:
    async def story(site: Site) -> None:
        site.pods_bound = 4
        site.it.server.webhooks.gates.add(ELASTIC)
        await site.trains()
        await ask_to_scale(site.api, "run", 3)
        await site.until(_trains_with(3), "three nodes to train")
        await site.it.until(lambda: len(site.pods("node")) >= 3)
        await ask_to_scale(site.api, "run", 1)
        await site.until(_trains_with(1), "one node to train")
        async with asyncio.timeout(PATIENCE_S):
            while not await _as_few_as_can_be(site):
                await asyncio.sleep(0.1)
        assert len(site.ever()) == 4, "none of those that went was made anew"

    gate: dict[str, Any] = {"kubernetes": {"elastic_jobset": engine == "jobset"}}
    played(engine, tmp_path, story, elasticity={"min_nodes": 1, "max_nodes": 3}, **gate)


def _trains_with(count: int) -> Callable[[JobStatus], bool]:
    return lambda status: (
        status.phase == "running" and sum(node.rank is not None for node in status.nodes) == count
    )


async def _as_few_as_can_be(site: Site) -> bool:
    """One trains and one is a spare; where the engine takes the highest numbers away, those that
    are below who trains are left."""
    if site.request.engine == "pods":
        return len(site.pods("node")) + len(site.pods("spare")) == 2
    member = await site.member(0)
    number = int(member["metadata"]["labels"][NUMBER[site.request.engine]])
    return len(site.pods("node")) == max(2, number + 1)


@long
@torch_engine
def test_a_bug_in_the_code_ends_the_job_with_its_traceback(engine: Engine, tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.ends("failed")
        incident = (await site.incidents())[-1]
        assert incident.cause == "worker-exception"
        assert "sleep length must be non-negative" in (incident.traceback or "")

    # One rank: the same place is another file in each pod here, so two of them would be two bugs.
    bug = ("--pause", "-1", "--pause-rank", "1")
    played(engine, tmp_path, story, trains=True, args=bug)
