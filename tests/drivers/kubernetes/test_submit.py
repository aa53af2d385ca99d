"""Submitting: everything in order, all or nothing, nobody else's objects, once and again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from holdfast.drivers.kubernetes import api as client
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import (
    CLAIMS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
    SECRETS,
    SERVICES,
    kind_of,
)
from holdfast.drivers.kubernetes.manifests.names import JOB, MANAGED_BY, STOP
from holdfast.drivers.kubernetes.manifests.render import render, requested
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.submit import rehearse, start_scheduled, submit, wanted
from holdfast.drivers.kubernetes.submit_withdraw import withdraw
from holdfast.errors import Error
from holdfast.spec.cluster import ENGINES, Engine
from holdfast.status import Goodput, JobStatus
from tests.drivers.kubernetes.asking import job
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.drivers.kubernetes.cluster.kinds import ENGINES as KINDS
from tests.drivers.kubernetes.cluster.kinds import JOB_SETS
from tests.drivers.kubernetes.playing import playing
from tests.more import sample, thinned

pytestmark = pytest.mark.usefixtures("nothing_left")
NIGHTLY = {"cron": "0 3 * * *"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a client pauses before it asks again is tested with the client."""
    monkeypatch.setattr(client, "PAUSE_S", 0.01)


def asked(engine: Engine = "pods", mode: Any = "managed", **keys: Any) -> Request:
    """A request in namespace `default`."""
    return requested(job(**keys), engine=engine, mode=mode, namespace="default")


def play(
    story: Callable[[FakeCluster, Api], Awaitable[None]], machines: int = 3, **options: Any
) -> None:
    """Let something happen in a cluster whose machines can pull no image."""
    playing(story, machines=machines, images={}, **options)


def ours(it: FakeCluster) -> set[str]:
    """Everything that carries the job's label, but for pods and what controllers make."""
    found = [(k.kind, b) for k, b in it.store.everything()]
    return {
        f"{kind} {body['metadata']['name']}"
        for kind, body in found
        if body["metadata"].get("labels", {}).get(JOB) == "run"
        and kind not in ("Pod", "ReplicaSet")
    }


def names(bodies: list[Body]) -> set[str]:
    return {f"{body['kind']} {body['metadata']['name']}" for body in bodies}


async def ended(api: Api, outcome: str = "succeeded") -> None:
    """Write the record that the controller of an ended job leaves, and retire it."""
    status = JobStatus(
        job="run", phase=outcome, attempt=1, step=3, ettr=1.0, nodes=(), incidents_count=0,
        restarts_count=0, waiting_for=None, started_at=0.0, wall_s=1.0, controller="ended",
        outcome=outcome,
    )  # fmt: skip
    meta: Body = {"name": "run-record", "labels": {JOB: "run", MANAGED_BY: "holdfast"}}
    meta["namespace"] = "default"
    ledger = Goodput(job="run", wall_s=1.0, ettr=1.0, ettr_1h=1.0, buckets={}, observed=True)
    said = {"status.json": status, "incidents.json": [], "goodput.json": ledger}
    data = {name: msgspec.json.encode(value).decode() for name, value in said.items()}
    await api.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    journal = {**meta, "name": "run-journal"}
    await api.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": journal})


SPECIAL: dict[str, dict[str, Any]] = {
    "cronjob": {"schedule": NIGHTLY},
    "mpijob": {},
}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_object_of_every_engine_is_accepted_by_a_strict_server(engine: Engine) -> None:
    request = asked(engine, nodes={"count": 2}, **SPECIAL.get(engine, {}))

    async def story(it: FakeCluster, api: Api) -> None:
        made = await submit(api, request)
        assert names(made) == names(wanted(request)) <= ours(it)

    play(story, machines=0)


def test_pods_of_our_own_are_left_to_the_controller_but_in_plain_mode() -> None:
    assert "Pod" not in {b["kind"] for b in wanted(asked())}
    assert wanted(asked(mode="plain")) == render(asked(mode="plain"))


def test_a_submission_that_was_cut_off_is_made_again_and_is_whole() -> None:
    request = asked()

    async def story(it: FakeCluster, api: Api) -> None:
        for body in wanted(request)[:5]:
            await api.apply(body)
        await submit(api, request)
        assert ours(it) >= names(wanted(request))

    play(story, machines=0)


@pytest.mark.parametrize("engine", ["pods", "jobset", "cronjob"])
def test_all_of_it_goes_with_its_config_map_but_for_storage(engine: Engine) -> None:
    shared = {"pvc": "ckpt", "storage_class": "rwx"}
    request = asked(engine, checkpoints={"shared": shared}, **SPECIAL.get(engine, {}))

    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, request)
        await api.delete(CONFIG_MAPS, "run-job")
        await it.until(lambda: ours(it) == {"PersistentVolumeClaim ckpt"})

    play(story, machines=0)


@pytest.mark.parametrize("plural", ["deployments", "services", "configmaps", "roles"])
@pytest.mark.parametrize("code", sample([403], [409, 422, 500]))
def test_a_refusal_in_the_middle_leaves_nothing_behind(plural: str, code: int) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.faults.add(Fault("patch", plural, code, times=5, message="no such luck"))
        with pytest.raises(Error, match="run") as caught:
            await submit(api, asked())
        assert "no such luck" in caught.value.why
        assert ours(it) == set()

    play(story, machines=0)


@pytest.mark.parametrize("fault", [Fault("patch", "", 500), Fault("patch", "", 429, times=2),
                                   Fault("patch", "services", cut=True),
                                   Fault("patch", "roles", 503, done=True)])  # fmt: skip
def test_a_server_that_stumbles_is_asked_again(fault: Fault) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.faults.add(fault)
        await submit(api, asked())
        assert ours(it) >= names(wanted(asked()))

    play(story, machines=0)


def test_an_engine_that_is_not_installed_is_said_and_nothing_is_left() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        with pytest.raises(Error) as caught:
            await submit(api, asked("jobset"))
        assert caught.value.slug == "engine-missing"
        assert "JobSet" in caught.value.what
        assert ours(it) == set()

    play(story, machines=0, engines=[e for e in KINDS if e not in ("jobset", "trainjob")])


def test_a_namespace_that_is_missing_is_said() -> None:
    async def story(it: FakeCluster, _api: Api) -> None:
        api = it.api("nowhere")
        request = requested(job(), namespace="nowhere")
        with pytest.raises(Error) as caught:
            await submit(api, request)
        await api.close()
        assert caught.value.slug == "namespace-missing"
        assert "kubectl create namespace nowhere" in caught.value.help

    play(story, machines=0)


def test_without_rights_it_is_said_which_one_is_missing() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.server.access.denied.add(("patch", "roles"))
        with pytest.raises(Error) as caught:
            await submit(api, asked())
        assert caught.value.slug == "rights-missing"
        assert "roles" in caught.value.why

    play(story, machines=0)


# ── what is there already ─────────────────────────────────────────────────────────────────────


def test_a_running_job_is_not_submitted_twice_nor_replaced() -> None:
    async def story(_it: FakeCluster, api: Api) -> None:
        await submit(api, asked())
        for replace in (False, True):
            with pytest.raises(Error) as caught:
                await submit(api, asked(), replace=replace, words=" -n x")
            assert caught.value.slug == "job-running"
            assert "holdfast watch run --on kubernetes -n x" in caught.value.help

    play(story, machines=0)


def test_an_ended_job_is_replaced_only_if_that_is_said() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, asked())
        await ended(api)
        before = it.store.get(CONFIG_MAPS, "default", "run-job")["metadata"]["uid"]
        with pytest.raises(Error) as caught:
            await submit(api, asked())
        assert caught.value.slug == "job-exists"
        assert "--replace" in caught.value.help
        await submit(api, asked(), replace=True)
        assert it.store.get(CONFIG_MAPS, "default", "run-job")["metadata"]["uid"] != before
        assert it.store.find(CONFIG_MAPS, "default", "run-record") is None

    play(story, machines=1)


def test_what_belongs_to_somebody_else_is_left_alone() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        meta = {"name": "run", "namespace": "default", "labels": {"app": "web"}}
        spec = {"ports": [{"port": 80}]}
        kind = {"apiVersion": "v1", "kind": "Service", "metadata": meta}
        await api.create({**kind, "spec": spec})
        with pytest.raises(Error) as caught:
            await submit(api, asked())
        assert caught.value.slug == "name-taken"
        assert ours(it) == set()
        assert it.store.get(SERVICES, "default", "run")["spec"]["ports"] == spec["ports"]

    play(story, machines=0)


@pytest.mark.parametrize("taken", ["ConfigMap run-logs", "Secret run-token"])
def test_names_that_its_controller_will_need_must_not_be_taken_by_others(taken: str) -> None:
    """It would write over them, and they would be deleted with the job."""

    async def story(it: FakeCluster, api: Api) -> None:
        kind, name = taken.split()
        theirs = await api.create({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})
        with pytest.raises(Error, match=f"{kind} {name!r} already exists") as caught:
            await submit(api, asked())
        assert caught.value.slug == "name-taken" and ours(it) == set()
        assert it.store.get(kind_of(theirs), "default", name) == theirs

    play(story, machines=0)


def test_a_schedule_is_changed_in_place() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, asked("cronjob", schedule=NIGHTLY))
        await submit(api, asked("cronjob", schedule={"cron": "0 4 * * *"}))
        [cron] = [b for k, b in it.store.everything() if k.kind == "CronJob"]
        assert cron["spec"]["schedule"] == "0 4 * * *"

    play(story, machines=0)


# ── dry run ───────────────────────────────────────────────────────────────────────────────────


def test_a_rehearsal_makes_nothing_and_tells_every_refusal() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        trials = await rehearse(api, asked("jobset"))
        assert ours(it) == set()
        refused = [t.body["kind"] for t in trials if t.error is not None]
        assert refused == ["JobSet"]

    play(story, machines=0, engines=[e for e in KINDS if e not in ("jobset", "trainjob")])


# ── removal ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("engine", thinned(ENGINES, 3))
def test_nothing_of_any_engine_is_left_but_storage(engine: Engine) -> None:
    store = {"shared": {"pvc": "run-ckpt", "storage_class": "nfs"}}
    keys = {**SPECIAL.get(engine, {}), "checkpoints": store, "access": {"cordon": True}}

    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, asked(engine, **keys))
        gone = await withdraw(api, "run")
        assert gone.kept == ["persistentvolumeclaims/run-ckpt"]
        await it.until(lambda: ours(it) == {"PersistentVolumeClaim run-ckpt"})
        await withdraw(api, "run", storage=True)
        await it.until(lambda: ours(it) == set())

    play(story, machines=0)


def test_a_train_job_goes_before_the_runtime_that_its_webhook_asks_for() -> None:
    """Its pods take their time; meanwhile nothing that its last change needs may go."""

    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, asked("trainjob"))
        await it.until(lambda: it.store.find(JOB_SETS, "default", "run"))
        _hold(it, "test/slow")
        gone = await withdraw(api, "run", within_s=0.1)
        assert gone.held == ["trainjobs/run"]
        assert "TrainingRuntime run" in ours(it) and "ConfigMap run-job" in ours(it)
        ending = asyncio.create_task(withdraw(api, "run"))
        _hold(it)
        assert (await ending).held == []
        await it.until(lambda: ours(it) == set())

    play(story, machines=0)


def _hold(it: FakeCluster, *finalizers: str) -> None:
    """Whether the JobSet may go."""

    def edit(body: Body) -> None:
        others = [f for f in body["metadata"].get("finalizers", []) if "/" not in f]
        body["metadata"]["finalizers"] = [*others, *finalizers]

    it.store.change(JOB_SETS, "default", "run", edit)


def test_a_webhook_that_is_down_is_no_rule_of_the_cluster() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.server.webhooks.down.add("jobset.x-k8s.io")
        with pytest.raises(Error) as caught:
            await submit(api, asked("jobset"))
        assert caught.value.slug == "webhook-down"
        assert "connection refused" in str(caught.value.why)
        assert "kubectl get pods -n jobset-system" in str(caught.value.help)
        await it.until(lambda: ours(it) == set())

    play(story, machines=0)


def test_what_the_job_made_while_it_ran_goes_too() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, asked())
        mine = {"labels": {JOB: "run"}, "namespace": "default"}
        await api.create({"apiVersion": "v1", "kind": "Secret",
                          "metadata": {"name": "run-token", **mine}})  # fmt: skip
        await api.create({"apiVersion": LEASES.api, "kind": LEASES.kind,
                          "metadata": {"name": "run-controller", **mine}, "spec": {}})  # fmt: skip
        it.server.access.denied.add(("list", "secrets"))
        await withdraw(api, "run")
        assert it.store.find(SECRETS, "default", "run-token") is None
        assert it.store.find(LEASES, "default", "run-controller") is None

    play(story, machines=0)


def test_a_job_of_the_same_name_elsewhere_is_left_alone() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.namespace("other")
        there = it.api("other")
        keys: dict[str, Any] = {"access": {"cordon": True}}
        await submit(there, requested(job(**keys), namespace="other"))
        await submit(api, asked(**keys))
        before = {b["metadata"]["uid"] for b in _theirs(it)}
        await withdraw(api, "run", storage=True)
        assert {b["metadata"]["uid"] for b in _theirs(it)} == before
        await there.close()

    play(story, machines=0)


def _theirs(it: FakeCluster) -> list[Body]:
    """Objects of the job in the other namespace, those of the cluster included."""
    made = (b for k, b in it.store.everything() if k.kind not in ("Pod", "ReplicaSet"))
    return [
        b
        for b in made
        if b["metadata"].get("namespace") == "other" or "other" in b["metadata"]["name"]
    ]


# ── jobs that a CronJob starts ────────────────────────────────────────────────────────────────


def test_a_scheduled_run_starts_a_controller_with_the_rights_it_has() -> None:
    cron = asked("cronjob", schedule=NIGHTLY)
    run = asked("pods", schedule=NIGHTLY)

    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, cron)
        mine = it.api(account="run-submit")
        for _ in range(2):  # the second run finds what the first has left
            await start_scheduled(mine, run)
            made = it.store.get(DEPLOYMENTS, "default", "run-controller")
            env = made["spec"]["template"]["spec"]["containers"][0]["env"]
            assert {"name": "HOLDFAST_ENGINE", "value": "pods"} in env
            await ended(api)
            wish = {"metadata": {"annotations": {STOP: "now"}}}
            await api.patch(CONFIG_MAPS, "run-job", wish)
        await start_scheduled(mine, run)
        for name in ("run-record", "run-journal"):
            assert it.store.find(CONFIG_MAPS, "default", name) is None
        kept = it.store.get(CONFIG_MAPS, "default", "run-job")["metadata"]
        assert STOP not in kept.get("annotations", {})
        await mine.close()

    play(story, machines=0)


def test_claims_and_pods_of_the_name_are_no_hindrance() -> None:
    """A claim that exists and is only named is not made, so it is not taken over either."""
    store = {"shared": {"pvc": "run"}}

    async def story(it: FakeCluster, api: Api) -> None:
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        meta = {"name": "run", "namespace": "default"}
        kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        await api.create({**kind, "metadata": meta, "spec": spec})
        await submit(api, asked(checkpoints=store))
        assert JOB not in it.store.get(CLAIMS, "default", "run")["metadata"].get("labels", {})

    play(story, machines=0)
