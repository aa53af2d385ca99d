"""The operator on a cluster: from `kubectl apply` of a TrainingJob to its end, and through faults.

It runs as the service account that deploy/rbac gives it, so what it may not do fails here too. The
machines run nothing: what a controller would publish, the tests publish.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from holdfast.drivers.kubernetes import api, lease
from holdfast.drivers.kubernetes.cluster import (
    CLUSTER_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    DEFINITIONS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    PODS,
    ROLES,
    SECRETS,
    SERVICES,
    Kind,
)
from holdfast.drivers.kubernetes.manifests.names import UPDATE_SPEC
from holdfast.messages import UpdateJob
from holdfast.operator import decide, loop, queue
from holdfast.operator.definition import TRAINING_JOBS, definition
from holdfast.operator.loop import EVERYWHERE, Operator, operate
from holdfast.operator.rights import role
from holdfast.status import JobStatus, NodeStatus, UpdateStatus
from tests.drivers.kubernetes.cluster.fake import FakeCluster, cluster, in_thread
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.operator.asking import Body, training_job
from tests.patience import PATIENCE_S, until
from tests.warm import Warm

ACCOUNT = "holdfast-operator"
JOB_ENGINE = {"engine": "job"}
PLAIN = {"engine": "job", "mode": "plain"}
OTHER = {"name": "other:2"}
STARTED = time.time()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between two looks are no promise; those between two writes are left as they are."""
    for module, name, pause_s in (
        (api, "PAUSE_S", 0.01), (decide, "SOON_S", 0.1), (lease, "POLL_S", 0.1),
        (loop, "RETRY_S", 0.2), (queue, "FIRST_S", 0.05), (queue, "PACE_S", 0.1),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, pause_s)


@cache
def defined() -> Body:
    return definition()


class Site:
    """A cluster with the definition, the rights, and copies of the operator."""

    def __init__(self, fake: FakeCluster) -> None:
        self.fake, self.tasks = fake, list[asyncio.Task[None]]()
        self.store = fake.store

    def install(self, *, defined: bool = True) -> None:
        """What `kubectl apply -k deploy` brings, but for the Deployment."""
        binding = {
            "apiVersion": CLUSTER_BINDINGS.api,
            "kind": CLUSTER_BINDINGS.kind,
            "metadata": {"name": ACCOUNT},
            "roleRef": {"kind": "ClusterRole", "name": ACCOUNT, "apiGroup": "x"},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "default"}],
        }
        self.store.create(CLUSTER_ROLES, "", role())
        self.store.create(CLUSTER_BINDINGS, "", binding)
        if defined:
            self.define()

    def define(self) -> None:
        made = self.store.create(DEFINITIONS, "", deepcopy(defined()))
        self.fake.server.custom.add(made)

    def start(self, me: str = "one", namespace: str = EVERYWHERE) -> asyncio.Task[None]:
        """Another copy."""

        async def live() -> None:
            api = self.fake.api(account=ACCOUNT)
            try:
                await operate(api, Operator(api, namespace), me)
            finally:
                await api.close()

        task = asyncio.create_task(live())
        self.tasks.append(task)
        return task

    async def apply(self, body: Body) -> None:
        """As a person does."""
        api = self.fake.api()
        await api.apply(body)
        await api.close()

    def get(self, kind: Kind, name: str) -> Body | None:
        return self.store.find(kind, "default", name)

    def status(self, name: str = "run") -> Body:
        found: Body = (self.get(TRAINING_JOBS, name) or {}).get("status", {})
        return found

    def marks(self, name: str = "run") -> dict[str, str]:
        return {c["type"]: c["status"] for c in self.status(name).get("conditions", [])}

    async def until(self, true: Callable[[], Any]) -> Any:
        try:
            return await self.fake.until(true)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(self.status(), indent=1)}") from None

    def publish(self, phase: str, outcome: str | None = None, **keys: Any) -> None:
        """What the job's controller would say."""
        node = NodeStatus(name="run-0", state="member", rank=0, node="u")
        said: dict[str, Any] = {
            "job": "run", "phase": phase, "attempt": 1, "step": 41, "ettr": 0.9, "nodes": (node,),
            "incidents_count": 0, "restarts_count": 0, "waiting_for": None, "wall_s": 5.0,
            "started_at": STARTED, "outcome": outcome,
        }  # fmt: skip
        text = msgspec.json.encode(JobStatus(**{**said, **keys})).decode()
        body = {
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"status.json": text},
            "metadata": {"name": "run-record", "labels": {"holdfast.dev/job": "run"}},
        }  # fmt: skip
        if self.get(CONFIG_MAPS, "run-record") is None:
            self.store.create(CONFIG_MAPS, "default", body)
            return
        self.store.change(
            CONFIG_MAPS, "default", "run-record", lambda b: b.update(data=body["data"])
        )

    def asked(self) -> UpdateJob | None:
        """What the job's controller is asked for because the spec has changed."""
        marks = (self.get(CONFIG_MAPS, "run-job") or {})["metadata"].get("annotations") or {}
        text = marks.get(UPDATE_SPEC)
        return msgspec.json.decode(text, type=UpdateJob) if text else None

    def looks(self) -> int:
        """How often the operator has read the TrainingJob."""
        return self.fake.server.calls.count(("get", "trainingjobs"))

    def edit(self, change: Callable[[Body], None]) -> None:
        """Of the TrainingJob's spec, as `kubectl edit`."""

        def whole(body: Body) -> None:
            change(body["spec"])
            body["metadata"]["generation"] = body["metadata"].get("generation", 1) + 1

        self.store.change(TRAINING_JOBS, "default", "run", whole)


@asynccontextmanager
async def site(*, defined: bool = True) -> AsyncIterator[Site]:
    async with cluster(machines=0) as fake:
        made = Site(fake)
        made.install(defined=defined)
        try:
            yield made
        finally:
            for task in made.tasks:
                task.cancel()
            await asyncio.gather(*made.tasks, return_exceptions=True)


def on_site(
    test: Callable[[Site], Coroutine[Any, Any, None]],
) -> Callable[[], None]:
    """Run a test on a site of its own."""

    def run() -> None:
        async def live() -> None:
            async with site() as made:
                await test(made)

        asyncio.run(live())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def suspend(wish: bool) -> Callable[[Body], None]:
    return lambda said: said.setdefault("lifetime", {}).update(suspend=wish)


@on_site
async def test_a_job_is_made_owned_followed_and_told_of(it: Site) -> None:
    it.start()
    await it.apply(training_job(kubernetes=JOB_ENGINE, nodes={"count": 2}))
    await it.until(lambda: it.get(DEPLOYMENTS, "run-controller"))
    for kind, name in ((JOBS, "run"), (CONFIG_MAPS, "run-job"), (ROLES, "run-controller"),
                       (SERVICES, "run"), (DEPLOYMENTS, "run-controller")):  # fmt: skip
        body = it.get(kind, name)
        assert body is not None, f"{kind.kind} {name}"
        assert body["metadata"]["ownerReferences"][0]["kind"] == "TrainingJob"
    await it.until(lambda: it.marks().get("Accepted") == "True")
    it.publish("running")
    await it.until(lambda: it.marks().get("Running") == "True")
    assert it.status()["step"] == 41 and it.status()["nodes"] == "1/2"
    it.publish("recovering", restarts_count=1)
    await it.until(lambda: it.marks().get("Recovering") == "True")
    it.publish("succeeded", "succeeded")
    await it.until(lambda: it.marks().get("Complete") == "True")
    told = {"Waiting", "Running", "Recovering", "Restarted", "Succeeded"}
    await it.until(lambda: told <= {e["reason"] for e in it.store.all(EVENTS, "default")})


@on_site
async def test_deleting_it_deletes_all_that_was_made_also_by_the_controller(it: Site) -> None:
    it.start()
    await it.apply(training_job())
    await it.until(lambda: it.get(DEPLOYMENTS, "run-controller"))
    labels = {"holdfast.dev/job": "run"}
    for kind, name in ((SECRETS, "run-token"), (LEASES, "run-controller"), (PODS, "run-7")):
        meta = {"name": name, "labels": labels}
        body: Body = {"apiVersion": kind.api, "kind": kind.kind, "metadata": meta}
        if kind is PODS:
            body["spec"] = {"containers": [{"name": "main", "image": "x"}]}
        it.store.create(kind, "default", body)
    it.publish("running")
    it.tasks.pop().cancel()
    it.start("two")  # looks after all of it at once, which the first did a moment ago
    await it.until(
        lambda: "ownerReferences" in (it.get(CONFIG_MAPS, "run-record") or {})["metadata"]
    )
    await it.until(lambda: "ownerReferences" in (it.get(PODS, "run-7") or {})["metadata"])
    it.store.delete(TRAINING_JOBS, "default", "run")
    await it.until(lambda: not [
        (kind.kind, body["metadata"]["name"])
        for kind, body in it.store.everything()
        if body["metadata"].get("labels", {}).get("holdfast.dev/job") == "run"
    ])  # fmt: skip


@on_site
async def test_what_was_deleted_by_hand_comes_back_until_the_job_has_ended(it: Site) -> None:
    it.start()
    await it.apply(training_job(kubernetes=JOB_ENGINE))
    await it.until(lambda: it.get(DEPLOYMENTS, "run-controller"))
    it.publish("running")
    first = it.store.delete(DEPLOYMENTS, "default", "run-controller")["metadata"]["uid"]
    await it.until(lambda: (it.get(DEPLOYMENTS, "run-controller") or first) is not first)
    it.publish("succeeded", "succeeded")
    await it.until(lambda: it.marks().get("Complete") == "True")
    it.store.delete(DEPLOYMENTS, "default", "run-controller")
    it.publish("succeeded", "succeeded", restarts_count=3)
    await it.until(lambda: it.status()["restarts"] == 3)
    assert it.get(DEPLOYMENTS, "run-controller") is None


@on_site
async def test_another_image_is_an_update_where_pods_can_be_replaced_one_by_one(it: Site) -> None:
    """By itself: what is left with the image before would run other arguments, too."""
    it.start()
    await it.apply(training_job(kubernetes={"engine": "pods"}, nodes={"count": 2}))
    before = await it.until(lambda: it.get(DEPLOYMENTS, "run-controller"))
    it.publish("running")
    it.edit(lambda said: said.update(image=OTHER, args=["--lr", "2"]))
    await it.until(lambda: _waits(it))
    assert it.asked() is None
    it.edit(lambda said: said.pop("args"))
    first = await it.until(it.asked)
    assert (first.image, first.args, first.sets) == ("other:2", (), {})
    it.edit(lambda said: said.update(args=["--lr", "2"]))
    then = await it.until(lambda: (now := it.asked()) is not None and now.id != first.id and now)
    assert (then.image, then.args) == ("other:2", ("--lr", "2")), "nothing is rolled again"
    after = it.get(DEPLOYMENTS, "run-controller")
    assert after is not None and after["spec"] == before["spec"]


@on_site
async def test_another_image_waits_where_an_engine_makes_the_pods(it: Site) -> None:
    it.start()
    await it.apply(training_job(kubernetes=JOB_ENGINE, nodes={"count": 2}))
    await it.until(lambda: it.get(JOBS, "run"))
    it.publish("running")
    it.edit(lambda said: said.update(image=OTHER))
    await it.until(lambda: _waits(it))


def _waits(it: Site) -> bool:
    conditions = it.status().get("conditions", [])
    return any(condition["reason"] == "ChangeWaits" for condition in conditions)


@on_site
async def test_of_a_running_job_only_arguments_and_variables_are_changed(it: Site) -> None:
    it.start()
    await it.apply(training_job(kubernetes=JOB_ENGINE))
    before = await it.until(lambda: it.get(JOBS, "run"))
    it.publish("running")
    it.edit(lambda said: said.update(nodes={"count": 5}))
    await it.until(lambda: _waits(it))
    assert it.marks()["Accepted"] == "True"
    after = it.get(JOBS, "run")
    assert after is not None and after["spec"] == before["spec"]

    assert it.asked() is None

    def arguments(said: Body) -> None:
        del said["nodes"]
        said.update(args=["--lr", "2"], env={"A": "b"})

    it.edit(arguments)
    order = await it.until(it.asked)
    assert (order.args, order.sets) == (("--lr", "2"), {"env.A": "b"})
    told = {"version": 2, "id": order.id, "by": order.by, "at": 1.0, "when": "next-step",
            "stage": "refused", "why": "run-0: exit status 2", "code": None, "sets": {},
            "back": False, "attempt": None, "incidents": ()}  # fmt: skip
    it.publish("running", updates=(UpdateStatus(**told),))
    await it.until(lambda: any(
        c["reason"] == "UpdateRefused" and "exit status 2" in c["message"]
        for c in it.status().get("conditions", [])
    ))  # fmt: skip
    it.edit(lambda said: said.pop("args"))
    again = await it.until(lambda: (now := it.asked()) is not None and now.id != order.id and now)
    assert (again.args, again.sets) == ((), {"env.A": "b"})
    it.edit(lambda said: said.pop("env"))
    await it.until(lambda: _waits(it))
    assert it.asked() == again, "a variable cannot be taken back"


@on_site
async def test_suspend_stops_cleanly_and_resume_starts_anew_with_the_new_spec(it: Site) -> None:
    it.start()
    await it.apply(training_job(kubernetes=JOB_ENGINE))
    first = (await it.until(lambda: it.get(JOBS, "run")))["metadata"]["uid"]
    it.publish("running")
    labels = {"holdfast.dev/job": "run"}
    it.store.create(CONFIG_MAPS, "default", {"metadata": {"name": "run-journal", "labels": labels}})
    await it.until(lambda: it.marks().get("Running") == "True")
    it.edit(suspend(True))

    def asked() -> bool:
        body = it.get(CONFIG_MAPS, "run-job") or {"metadata": {}}
        return (body["metadata"].get("annotations") or {}).get("holdfast.dev/stop") == "gently"

    await it.until(asked)
    assert it.get(JOBS, "run") is not None, "not before it has stopped"
    it.publish("stopped", "stopped")
    await it.until(lambda: it.marks().get("Suspended") == "True")
    await it.until(lambda: it.get(JOBS, "run") is None)
    assert it.get(CONFIG_MAPS, "run-record") is not None, "people may still ask why"
    it.edit(lambda said: said.update(nodes={"count": 3}))
    it.edit(suspend(False))
    again = await it.until(lambda: it.get(JOBS, "run"))
    assert again["metadata"]["uid"] != first
    assert again["spec"]["completions"] == 3
    for name in ("run-record", "run-journal"):
        assert it.get(CONFIG_MAPS, name) is None, "the next run is not the last one"
    await it.until(lambda: it.marks()["Suspended"] == "False")
    (former,) = it.status()["history"]
    assert (former["step"], former["ettr"], former["outcome"]) == (41, 0.9, "stopped")
    assert former["endTime"] > former["startTime"] and "step" not in it.status()


@on_site
async def test_a_job_that_is_created_suspended_makes_nothing(it: Site) -> None:
    it.start()
    await it.apply(training_job(lifetime={"suspend": True}))
    await it.until(lambda: it.marks().get("Suspended") == "True")
    assert it.store.all(DEPLOYMENTS, "default") == []


@on_site
async def test_an_ended_job_goes_after_its_time(it: Site) -> None:
    it.start()
    await it.apply(training_job(lifetime={"keep_s": 1}))
    await it.until(lambda: it.get(DEPLOYMENTS, "run-controller"))
    it.publish("failed", "failed")
    await it.until(lambda: it.get(TRAINING_JOBS, "run") is None)


@on_site
async def test_an_invalid_spec_is_told_and_others_go_on(it: Site) -> None:
    it.start()
    await it.apply(training_job("bad", env={"RANK": "0"}))
    await it.apply(training_job("worse", resources={"state": "9Gi", "memory": "1Gi"}))
    await it.apply(training_job("good"))
    await it.until(lambda: it.get(DEPLOYMENTS, "good-controller"))
    await it.until(lambda: it.status("bad").get("phase") == "Rejected")
    condition = it.status("bad")["conditions"][0]
    assert "RANK" in condition["message"] and condition["status"] == "False"
    await it.until(lambda: it.status("worse").get("phase") == "Rejected")


@on_site
async def test_plain_jobs_are_followed_by_the_engine_s_own_word(it: Site) -> None:
    it.start()
    await it.apply(training_job(kubernetes=PLAIN))
    await it.until(lambda: it.get(JOBS, "run"))

    def complete(body: Body) -> None:
        body["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}

    it.store.change(JOBS, "default", "run", complete)
    it.edit(lambda said: said.update(args=["again"]))  # news; a Job of an engine is not watched
    await it.until(lambda: it.marks().get("Complete") == "True")


@on_site
async def test_steps_are_not_worth_a_write_each(it: Site) -> None:
    it.start()
    await it.apply(training_job())
    await it.until(lambda: it.get(DEPLOYMENTS, "run-controller"))
    it.publish("running")
    await it.until(lambda: it.marks().get("Running") == "True")
    await it.until(lambda: it.status().get("step") == 41)
    for step in range(100, 103):
        looks = it.looks()
        it.publish("running", step=step)
        await it.until(partial(lambda before: it.looks() > before, looks))
    assert it.status()["step"] == 41
    it.publish("recovering", step=103)
    await it.until(lambda: it.status()["step"] == 103)


def test_the_command_leads_and_gives_the_lease_back_at_sigterm(tmp_path: Path) -> None:
    with in_thread(machines=0) as fake:
        fake.do(lambda it: Site(it).install())
        config = fake.do(lambda it: it.kubeconfig())
        environ = {**os.environ, "KUBECONFIG": str(config)}
        with (tmp_path / "log").open("w") as log:
            process = Warm(["operator", "--port", "0"], env=environ, stderr=log)
        try:
            assert until(lambda: holder(fake) not in (None, ""))
            fake.do(lambda it: it.store.create(TRAINING_JOBS, "default", training_job()))
            made = ("default", "run-controller")
            assert until(lambda: bool(fake.do(lambda it: it.store.find(DEPLOYMENTS, *made))))
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
            assert holder(fake) == ""
        finally:
            process.kill()
            process.wait()


def holder(fake: FakeCluster) -> str | None:
    lease = fake.do(lambda it: it.store.find(LEASES, "default", "holdfast-operator"))
    return None if lease is None else str(lease["spec"]["holderIdentity"])


# ── faults ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "fault",
    [
        Fault(verb="patch", plural="jobs", code=500, times=7),
        Fault(verb="patch", code=409, times=3),
        Fault(verb="list", plural="trainingjobs", code=403, times=2),
        Fault(verb="get", plural="configmaps", code=403, times=2),
        Fault(verb="watch", code=410, times=6),
        Fault(verb="watch", cut_after=1, times=6),
        Fault(verb="patch", plural="jobs", done=True, cut=True, times=1),
        Fault(verb="get", plural="leases", code=500, times=8),
        Fault(verb="create", plural="events", code=403, times=99),
    ],
)
def test_faults_of_the_api_only_delay(fault: Fault) -> None:
    async def live() -> None:
        async with site() as it:
            await it.apply(training_job(kubernetes=JOB_ENGINE))
            it.fake.faults.add(fault)
            it.start()
            await it.fake.until(lambda: it.get(DEPLOYMENTS, "run-controller"))
            it.publish("running")
            await it.fake.until(lambda: it.marks().get("Running") == "True")

    asyncio.run(live())


def test_the_definition_may_come_later(capsys: pytest.CaptureFixture[str]) -> None:
    async def live() -> None:
        async with site(defined=False) as it:
            task = it.start()
            await it.until(lambda: "TrainingJob is missing" in capsys.readouterr().err)
            assert not task.done()
            it.define()
            await it.apply(training_job())
            await it.until(lambda: it.get(DEPLOYMENTS, "run-controller"))

    asyncio.run(live())


@on_site
async def test_two_copies_do_not_work_at_once_and_the_second_takes_over(it: Site) -> None:
    first = it.start("one")
    await it.until(lambda: it.get(LEASES, "holdfast-operator"))
    it.start("two")
    await it.apply(training_job())
    await it.until(lambda: it.get(DEPLOYMENTS, "run-controller"))
    lease = it.get(LEASES, "holdfast-operator")
    assert lease is not None and lease["spec"]["holderIdentity"] == "one"
    first.cancel()
    await it.until(
        lambda: (it.get(LEASES, "holdfast-operator") or {})["spec"]["holderIdentity"] == "two"
    )
    it.publish("running")
    await it.until(lambda: it.marks().get("Running") == "True")


def test_a_copy_that_waits_is_ready_while_it_could_take_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def live() -> None:
        async with site() as it:
            it.start("one")
            await it.until(lambda: it.get(LEASES, "holdfast-operator"))
            api = it.fake.api(account=ACCOUNT)
            waits = Operator(api, EVERYWHERE)
            assert not waits.ready
            it.tasks.append(asyncio.create_task(operate(api, waits, "two")))
            await it.until(lambda: waits.ready)
            fault = it.fake.faults.add(Fault("get", "leases", code=500, times=1_000_000))
            monkeypatch.setattr(lease, "DURATION_S", 0.5)
            await it.until(lambda: not waits.ready)
            fault.times = 0
            monkeypatch.setattr(lease, "DURATION_S", 10.0)
            await it.until(lambda: waits.ready)

    asyncio.run(live())


@on_site
async def test_two_operators_that_both_believe_to_lead_make_one_job(it: Site) -> None:
    api = it.fake.api(account=ACCOUNT)
    tasks = [asyncio.create_task(Operator(api, EVERYWHERE).run()) for _ in range(2)]
    it.tasks += tasks
    await it.apply(training_job(kubernetes=JOB_ENGINE))
    await it.until(lambda: it.get(DEPLOYMENTS, "run-controller"))
    it.publish("running")
    await it.until(lambda: it.marks().get("Running") == "True")
    assert len(it.store.all(JOBS, "default")) == 1
    assert not any(task.done() for task in tasks)


@on_site
async def test_roles_for_machines_go_with_their_job_though_nothing_owns_them(it: Site) -> None:
    cordon = yaml.safe_load_all(open_cordon())
    for body in cordon:
        body["metadata"].setdefault("labels", {})
        for subject in body.get("subjects", []):
            subject["namespace"] = "default"
        kind = CLUSTER_ROLES if body["kind"] == "ClusterRole" else CLUSTER_BINDINGS
        it.store.create(kind, "", body)
    first = it.start()
    await it.apply(training_job(access={"cordon": True}))
    name = "holdfast-default-run-controller"
    await it.until(lambda: it.store.find(CLUSTER_BINDINGS, "", name))
    first.cancel()
    it.store.delete(TRAINING_JOBS, "default", "run")
    it.start("two")
    await it.until(lambda: it.store.find(CLUSTER_ROLES, "", name) is None)


def open_cordon() -> str:
    from tests.tidy.source import ROOT

    return (ROOT / "deploy" / "rbac" / "cordon" / "cordon.yaml").read_text()
