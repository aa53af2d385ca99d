"""The engines in miniature do what was measured of the real ones, with the manifests we render.

The program of the pods is a shell script that ends as a file of the test tells it to.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.drivers.kubernetes.cluster import JOBS, PODS, Kind
from holdfast.drivers.kubernetes.cluster import NODES as MACHINES
from holdfast.drivers.kubernetes.manifests.render import render
from holdfast.spec.cluster import Engine
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.cluster.conditions import is_true
from tests.drivers.kubernetes.cluster.fake import FakeCluster, cluster
from tests.drivers.kubernetes.cluster.kinds import (
    JOB_SETS,
    KUBEFLOW,
    MPI_JOBS,
    RAY_JOBS,
    TRAIN_JOBS,
    VOLCANO_JOBS,
)
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.more import sample

NODES: dict[Any, Body] = {"rayjob": {"count": 3}}
WITH_SPARE: Body = {"count": 2, "spares": 1}
EVICTED_S = 30.0
SCRIPT = """
trap 'exit 143' TERM
exec 9<> <(:)  # nobody writes there: to wait for that starts no process, as `sleep` does
while :; do
  for name in all "$HOLDFAST_POD"; do
    if [ -e "$0/$name" ]; then code=$(cat "$0/$name"); rm -f "$0/$HOLDFAST_POD"; exit "$code"; fi
  done
  read -rt 0.02 -u 9
done
"""


class Main(NamedTuple):
    """The main object of an engine, how its success reads, and what ends it badly."""

    kind: Kind
    good: Callable[[Body], bool]
    bad: Callable[[Body], bool]
    fatal: int | None  # exit status


def _says(type_: str) -> Callable[[Body], bool]:
    return lambda body: is_true(body, type_)


def _is(*phases: str) -> Callable[[Body], bool]:
    return lambda body: body.get("status", {}).get("state", {}).get("phase") in phases


def _deployed(state: str) -> Callable[[Body], bool]:
    return lambda body: body.get("status", {}).get("jobDeploymentStatus") == state


OPERATED = {
    name: Main(kind, _says("Succeeded"), _says("Failed"), 13) for name, kind in KUBEFLOW.items()
}
ENGINES: dict[Any, Main] = {
    "job": Main(JOBS, _says("Complete"), _says("Failed"), None),
    "jobset": Main(JOB_SETS, _says("Completed"), _says("Failed"), None),
    "trainjob": Main(TRAIN_JOBS, _says("Complete"), _says("Failed"), None),
    "mpijob": Main(MPI_JOBS, _says("Succeeded"), _says("Failed"), None),
    "rayjob": Main(RAY_JOBS, _deployed("Complete"), _deployed("Failed"), None),
    "volcano": Main(VOLCANO_JOBS, _is("Completed"), _is("Terminated", "Failed"), 113),
    **OPERATED,
}


class Run(NamedTuple):
    """A job that runs in a cluster."""

    it: FakeCluster
    main: Main
    told: Path

    def body(self) -> Body:
        """The main object."""
        return self.it.store.get(self.main.kind, "default", "run")

    def nodes(self) -> list[Body]:
        """Pods that run nodes and are there."""
        return [
            pod
            for pod in self.it.pods(job="run", role="node")
            if pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def _waiting(self) -> bool:
        """Whether a pod beside the nodes has not started yet."""
        return any(pod["status"].get("phase") == "Pending" for pod in self.it.pods(job="run"))

    def end(self, code: int, pod: Body | None = None) -> None:
        """Have a pod, or all of them, exit."""
        name = "all" if pod is None else pod["metadata"]["name"]
        whole = self.told / f"{name}.new"  # a pod must not read an empty file
        whole.write_text(str(code))
        whole.replace(self.told / name)

    async def all_run(self) -> list[Body]:
        """Wait for three nodes."""
        await self.it.until(lambda: len(self.nodes()) == 3 and not self._waiting())
        return self.nodes()


def scripted(bodies: list[Body], told: Path) -> list[Body]:
    """The manifests with our script for a program, without the controller and what waits for it."""

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "containers" in value:
            value = {**value, "volumes": []}
            value["containers"] = [_scripted(c, told) for c in value["containers"]]
            return value
        return {key: walk(inner) for key, inner in value.items()}

    found = [walk(body) for body in bodies if body["kind"] != "Deployment"]
    for body in found:
        if body["kind"] == "RayJob":
            body["spec"]["entrypoint"] = shlex.join(["bash", "-c", SCRIPT, str(told)])
    return found


def _scripted(container: Body, told: Path) -> Body:
    kept = ("name", "image", "env", "ports", "resources")
    bare = {key: container[key] for key in kept if key in container}
    return {**bare, "command": ["bash", "-c", SCRIPT, str(told)]}


def running(engine: Engine, told: Path, act: Callable[[Run], Awaitable[None]]) -> None:
    """Run a job with this engine and do something to it."""

    async def whole() -> None:
        async with cluster(machines=3) as it:
            api = it.api()
            request = asked(engine, namespace="default", nodes=NODES.get(engine, WITH_SPARE))
            for body in scripted(render(request), told):
                await api.apply(body)
            run = Run(it, ENGINES[engine], told)
            await run.all_run()
            await act(run)
            await api.close()

    asyncio.run(whole())


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """Where pods look how to end."""
    return tmp_path


ALIKE = ("tfjob", "jaxjob", "xgboostjob", "paddlejob")  # pytorchjob stands for its operator
every = pytest.mark.parametrize("engine", sample([e for e in ENGINES if e not in ALIKE], ALIKE))
# One whose pods have names of their own and one whose names are fixed; the others when asked.
TWO = ("job", "pytorchjob")
two = pytest.mark.parametrize("engine", sample(TWO, [e for e in ENGINES if e not in TWO]))


@every
def test_a_pod_that_asks_to_be_replaced_is_and_at_the_end_the_object_has_succeeded(
    engine: Engine, told: Path
) -> None:
    async def act(run: Run) -> None:
        lost = (await run.all_run())[0]
        run.end(143, lost)
        await run.it.until(lambda: _replaced(run, lost))
        await run.all_run()
        run.end(0)
        await run.it.until(lambda: run.main.good(run.body()))
        await run.it.until(lambda: not run.nodes())

    running(engine, told, act)


def _replaced(run: Run, lost: Body) -> bool:
    """Another pod, or the container once more where the kubelet restarts it."""
    uid = lost["metadata"]["uid"]
    same = [pod for pod in run.nodes() if pod["metadata"]["uid"] == uid]
    return not same or same[0]["status"]["containerStatuses"][0]["restartCount"] == 1


@two
def test_an_evicted_pod_is_replaced(engine: Engine, told: Path) -> None:
    async def act(run: Run) -> None:
        lost, api = (await run.all_run())[0], run.it.api()
        meta = lost["metadata"]
        async with asyncio.timeout(EVICTED_S):
            while not await api.evict(meta["name"], uid=meta["uid"]):
                await asyncio.sleep(0.05)  # its budget counts pods once they are ready
        await run.it.until(lambda: meta["uid"] not in {p["metadata"]["uid"] for p in run.nodes()})
        await run.all_run()
        assert not run.main.bad(run.body())
        await api.close()

    running(engine, told, act)


@two
def test_after_the_loss_of_a_machine_a_pod_comes_back_as_soon_as_the_engine_can(
    engine: Engine, told: Path
) -> None:
    """Engines with fixed names of pods wait until the machine is declared out of service."""

    async def act(run: Run) -> None:
        lost = (await run.all_run())[0]
        machine = lost["spec"]["nodeName"]
        run.it.kill_machine(machine)
        await run.it.until(lambda: _terminating(run, lost))
        if engine not in ("job", "jobset", "trainjob"):
            assert len(run.nodes()) < 3
            _out_of_service(run.it, machine)
        await run.all_run()

    running(engine, told, act)


def _terminating(run: Run, lost: Body) -> bool:
    found = run.it.store.find(PODS, "default", lost["metadata"]["name"])
    return found is None or "deletionTimestamp" in found["metadata"]


def _out_of_service(it: FakeCluster, machine: str) -> None:
    def edit(body: Body) -> None:
        key = "node.kubernetes.io/out-of-service"
        taint = {"key": key, "value": "nodeshutdown", "effect": "NoExecute"}
        body["spec"]["taints"] = [*body["spec"].get("taints", []), taint]

    it.store.change(MACHINES, "", machine, edit)


@two
def test_a_verdict_ends_the_object_where_the_engine_has_a_word_for_it(
    engine: Engine, told: Path
) -> None:
    async def act(run: Run) -> None:
        one = (await run.all_run())[0]
        fatal = run.main.fatal
        run.end(fatal or 113, one)
        if fatal is None:
            await run.it.until(lambda: _replaced(run, one))
            assert not run.main.bad(run.body())
        else:
            await run.it.until(lambda: run.main.bad(run.body()))
            await run.it.until(lambda: not run.nodes())

    running(engine, told, act)


SUSPENDED: dict[Any, Body] = {
    "job": {"spec": {"suspend": True}},
    "jobset": {"spec": {"suspend": True}},
    "trainjob": {"spec": {"suspend": True}},
    "mpijob": {"spec": {"runPolicy": {"suspend": True}}},
    "rayjob": {"spec": {"suspend": True}},
    **{name: {"spec": {"runPolicy": {"suspend": True}}} for name in KUBEFLOW},
}


@pytest.mark.parametrize("engine", sample(TWO, [e for e in SUSPENDED if e not in TWO]))
def test_suspending_takes_all_pods_and_resuming_brings_them_back(
    engine: Engine, told: Path
) -> None:
    async def act(run: Run) -> None:
        api, kind = run.it.api(), run.main.kind
        await api.patch(kind, "run", SUSPENDED[engine])
        await run.it.until(lambda: not run.it.pods(job="run", role="node"))
        suspended = _deployed("Suspended") if engine == "rayjob" else _says("Suspended")
        await run.it.until(lambda: suspended(run.body()))
        resumed = {"spec": {"suspend": False}}
        nested = {"spec": {"runPolicy": {"suspend": False}}}
        await api.patch(kind, "run", nested if "runPolicy" in str(SUSPENDED[engine]) else resumed)
        await run.all_run()
        await api.close()

    running(engine, told, act)


@two
def test_deleting_the_object_takes_all_that_it_has_made(engine: Engine, told: Path) -> None:
    async def act(run: Run) -> None:
        api = run.it.api()
        await api.delete(run.main.kind, "run", foreground=True)
        await run.it.until(lambda: not run.it.pods())
        await run.it.until(lambda: run.it.store.find(run.main.kind, "default", "run") is None)
        left = [b for _, b in run.it.store.everything() if "ownerReferences" in b["metadata"]]
        assert left == []
        await api.close()

    running(engine, told, act)
