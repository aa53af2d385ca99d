"""What the cluster does not let the operator do is told, and what is of others is left alone."""

import asyncio

from holdfast.drivers.kubernetes.cluster import CLAIMS, CONFIG_MAPS, DEPLOYMENTS, SERVICES
from tests.drivers.kubernetes.cluster.fake import cluster
from tests.operator.asking import training_job
from tests.operator.test_loop import Site, impatient, on_site

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
