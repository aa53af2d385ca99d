"""What the cluster does not let the operator do is told, and what is of others is left alone."""

import asyncio
from functools import partial
from typing import Any

import pytest
import yaml

from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import (
    CLAIMS,
    CLUSTER_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    LEASES,
    PODS,
    SECRETS,
    SERVICES,
)
from holdfast.drivers.kubernetes.manifests.request import NEWEST
from holdfast.operator.observation import existing
from holdfast.operator.reconcile import _clear
from holdfast.operator.wanted import wanted
from tests.drivers.kubernetes.cluster.fake import FakeCluster, cluster
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.drivers.kubernetes.playing import playing
from tests.operator.asking import training_job
from tests.operator.test_loop import Site, impatient, on_site, open_cordon, suspend

__all__ = ["impatient"]


@on_site
async def test_a_name_that_is_taken_is_left_to_its_owner(it: Site) -> None:
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "run-job"}}
    it.store.create(CONFIG_MAPS, "default", theirs)
    it.start()
    await it.apply(training_job())
    await it.until(lambda: it.status().get("phase") == "Blocked")
    assert it.status()["conditions"][0]["reason"] == "NameTaken"
    assert it.get(DEPLOYMENTS, "run-controller") is None


@on_site
async def test_a_service_of_somebody_else_is_no_part_of_a_job(it: Site) -> None:
    """It would lead the pods of the job to his."""
    for kind, name in ((SERVICES, "run"), (CLAIMS, "run-shared")):
        theirs = {"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {}}
        it.store.create(kind, "default", theirs)
    it.start()
    shared = {"storage_class": "rwx", "size": "1Ti"}
    await it.apply(training_job(checkpoints={"shared": {"pvc": "run-shared", **shared}}))
    await it.until(lambda: it.status().get("phase") == "Blocked")
    assert "Service run already exists" in it.status()["conditions"][0]["message"]
    assert it.get(DEPLOYMENTS, "run-controller") is None
    it.store.delete(SERVICES, "default", "run")
    it.edit(lambda said: said.update(args=["again"]))  # news; Services are not watched
    await it.until(lambda: it.get(DEPLOYMENTS, "run-controller"))
    assert "ownerReferences" in it.store.get(SERVICES, "default", "run")["metadata"]
    assert "ownerReferences" not in it.store.get(CLAIMS, "default", "run-shared")["metadata"]


@on_site
async def test_maps_and_secrets_of_others_are_neither_written_over_nor_owned_nor_deleted(
    it: Site,
) -> None:
    """Their names are those that the controller of the job would take."""
    theirs = [(CONFIG_MAPS, "run-logs"), (SECRETS, "run-token"), (LEASES, "run-controller")]
    for kind, name in theirs:
        it.store.create(kind, "default", {"metadata": {"name": name, "labels": {"app": "web"}}})
    before = [it.get(kind, name) for kind, name in theirs]
    it.start()
    await it.apply(training_job())
    for kind, name in theirs:
        told = f"{kind.kind} {name} already exists and does not belong to this job"

        def is_told(told: str = told) -> bool:
            conditions = it.status().get("conditions", [{"message": ""}])
            return told in conditions[0]["message"]

        await it.until(is_told)
        assert it.get(DEPLOYMENTS, "run-controller") is None
        assert it.get(kind, name) == before[theirs.index((kind, name))]
        it.store.delete(kind, "default", name)
        it.edit(partial(_changed, name))
    await it.until(lambda: it.get(DEPLOYMENTS, "run-controller"))


def _changed(word: str, spec: dict[str, Any]) -> None:
    spec["args"] = [word]


@on_site
async def test_what_others_put_in_the_place_of_ours_while_a_job_runs_stays_theirs(
    it: Site,
) -> None:
    it.start()
    await it.apply(training_job(kubernetes={"engine": "job"}))
    await it.until(lambda: it.get(DEPLOYMENTS, "run-controller"))
    labels = {"labels": {"app": "web"}}
    it.store.create(CONFIG_MAPS, "default", {"metadata": {"name": "run-logs", **labels}})
    it.tasks.pop().cancel()
    it.start("two")  # looks after all objects at once
    it.publish("stopped", "stopped")
    it.edit(suspend(True))
    await it.until(lambda: it.marks().get("Suspended") == "True")
    it.edit(suspend(False))
    await it.until(lambda: it.get(CONFIG_MAPS, "run-record") is None)
    await it.until(lambda: it.status().get("phase") == "Blocked")
    kept = it.store.get(CONFIG_MAPS, "default", "run-logs")["metadata"]
    assert "ownerReferences" not in kept and kept["labels"] == {"app": "web"}


def test_what_got_a_name_of_ours_since_it_was_looked_at_is_not_cleared_away() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        made = [{"metadata": {"name": name}} for name in ("ours", "theirs")]
        ours, theirs = (it.store.create(CONFIG_MAPS, "default", one) for one in made)
        body = training_job(kubernetes={"engine": "job"})
        body["metadata"]["uid"] = ours["metadata"]["uid"]
        asked = wanted(body, NEWEST)
        for wish in asked.moving:
            owner = (theirs if wish["metadata"]["name"] == "run" else ours)["metadata"]
            named = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["name"]}
            meta = {**wish["metadata"], "ownerReferences": [{**named, "uid": owner["uid"]}]}
            await api.create({**wish, "metadata": meta})
        await _clear(api, body, asked)
        left = {wish["metadata"]["name"] for wish in asked.moving if await existing(api, wish)}
        assert left == {"run"}

    playing(story)


@pytest.mark.parametrize(("code", "times"), [(403, 2), (500, 9)])
def test_pods_that_could_not_be_removed_are_before_a_job_counts_as_suspended(
    code: int, times: int
) -> None:
    """What makes them is gone by then, and with engine `pods` nothing else would ever take them."""

    @on_site
    async def story(it: Site) -> None:
        it.start()
        await it.apply(training_job(kubernetes={"engine": "pods"}))
        await it.until(lambda: it.get(DEPLOYMENTS, "run-controller"))
        (owner,) = it.store.get(CONFIG_MAPS, "default", "run-job")["metadata"]["ownerReferences"]
        meta = {"labels": {"holdfast.dev/job": "run"}, "ownerReferences": [owner]}
        for name in ("run-0", "run-1"):
            body = {"metadata": {"name": name, **meta}, "spec": {"containers": [CONTAINER]}}
            it.store.create(PODS, "default", {**body, "status": {"phase": "Pending"}})
        it.publish("stopped", "stopped")
        it.tasks.pop().cancel()
        body = {**body, "metadata": {"name": "by-hand", "labels": meta["labels"]}}
        it.store.create(PODS, "default", {**body, "status": {"phase": "Pending"}})
        it.start("two")
        it.fake.faults.add(Fault("list", "pods", code=code, times=times))
        it.edit(suspend(True))
        await it.until(lambda: it.marks().get("Suspended") == "True")
        left = [p["metadata"]["name"] for p in it.store.all(PODS, "default")]
        assert not {"run-0", "run-1"} & set(left) and "by-hand" in left

    story()


CONTAINER = {"name": "main", "image": "x"}


@on_site
async def test_what_a_finalizer_holds_is_named_and_not_asked_for_each_second(it: Site) -> None:
    it.start()
    await it.apply(training_job(kubernetes={"engine": "job"}))
    await it.until(lambda: it.get(JOBS, "run") and it.get(DEPLOYMENTS, "run-controller"))

    def hold(body: dict[str, Any]) -> None:
        body["metadata"]["finalizers"] = ["team/audit"]

    it.store.change(JOBS, "default", "run", hold)
    it.publish("stopped", "stopped")
    it.edit(suspend(True))

    def held() -> bool:
        told = [c["message"] for c in it.status().get("conditions", [])]
        return any("Job run is being deleted, and its finalizer team/audit holds it" in m
                   for m in told)  # fmt: skip

    await it.until(held)
    it.store.change(JOBS, "default", "run", lambda body: body["metadata"].pop("finalizers"))
    it.edit(lambda said: said.update(args=["news"]))  # an engine's object is not watched
    await it.until(lambda: it.marks().get("Suspended") == "True")


def test_a_role_that_may_not_be_deleted_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    @on_site
    async def story(it: Site) -> None:
        labels = {"holdfast.dev/job": "run", "holdfast.dev/namespace": "default"}
        body = {"metadata": {"name": "holdfast-default-run-controller", "labels": labels}}
        it.store.create(CLUSTER_BINDINGS, "", body)
        cordon_rights(it)
        it.fake.server.access.denied.add(("delete", "clusterrolebindings"))
        it.start()
        await it.until(lambda: "cannot delete unused roles: " in capsys.readouterr().err)

    story()


def cordon_rights(it: Site) -> None:
    """What deploy/rbac/cordon brings."""
    for body in yaml.safe_load_all(open_cordon()):
        for subject in body.get("subjects", []):
            subject["namespace"] = "default"
        kind = CLUSTER_ROLES if body["kind"] == "ClusterRole" else CLUSTER_BINDINGS
        it.store.create(kind, "", body)


@on_site
async def test_a_copy_of_a_role_that_somebody_made_is_not_swept_away(it: Site) -> None:
    labels = {"holdfast.dev/job": "run", "holdfast.dev/namespace": "default"}
    for name in ("holdfast-default-run-controller", "a-copy-of-ours"):
        it.store.create(CLUSTER_ROLES, "", {"metadata": {"name": name, "labels": labels}})
    cordon_rights(it)
    it.start()
    await it.until(lambda: not it.store.find(CLUSTER_ROLES, "", "holdfast-default-run-controller"))
    assert it.store.find(CLUSTER_ROLES, "", "a-copy-of-ours")


@on_site
async def test_what_the_cluster_forbids_is_told_and_tried_again(it: Site) -> None:
    it.fake.server.access.denied.add(("patch", "roles"))
    it.start()
    await it.apply(training_job())
    await it.until(lambda: it.status().get("phase") == "Blocked")
    assert it.status()["conditions"][0]["reason"] == "Forbidden"


@on_site
async def test_what_the_operator_may_not_see_is_told_of_a_new_job_and_changes_no_other(
    it: Site,
) -> None:
    it.start()
    await it.apply(training_job())
    await it.until(lambda: it.get(DEPLOYMENTS, "run-controller"))
    it.publish("succeeded", "succeeded")
    await it.until(lambda: it.marks().get("Complete") == "True")
    it.fake.server.access.denied.add(("get", "deployments"))
    calls = it.fake.server.calls
    tried = calls.count(("get", "deployments"))
    it.edit(lambda said: said.update(args=["again"]))
    await it.until(lambda: calls.count(("get", "deployments")) > tried)
    await it.apply(training_job("new"))
    await it.until(lambda: it.status("new").get("phase") == "Blocked")
    accepted = it.status("new")["conditions"][0]
    assert accepted["reason"] == "Forbidden" and "cannot get resource" in accepted["message"]
    assert it.marks()["Complete"] == "True"


@on_site
async def test_a_missing_engine_is_told(it: Site) -> None:
    async with cluster(machines=0, engines=()) as fake:
        other = Site(fake)
        other.install()
        other.start()
        await other.apply(training_job(kubernetes={"engine": "jobset"}))
        await other.until(lambda: other.status().get("phase") == "Blocked")
        assert other.status()["conditions"][0]["reason"] == "KindMissing"
        other.tasks[0].cancel()
        await asyncio.gather(*other.tasks, return_exceptions=True)
    del it
