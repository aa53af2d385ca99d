"""A TrainingJob that Kueue holds back says why in its status, in Kueue's words."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes import queued
from holdfast.drivers.kubernetes.cluster import EVENTS, JOBS
from holdfast.drivers.kubernetes.queued import WORKLOADS
from tests.operator.asking import training_job
from tests.operator.test_loop import JOB_ENGINE, Site, impatient, on_site

__all__ = ["impatient"]


def held(it: Site, message: str) -> None:
    """What Kueue says of the job, for now."""
    conditions = [{"type": "QuotaReserved", "status": "False", "message": message}]
    uid = (it.get(JOBS, "run") or {})["metadata"]["uid"]
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "run", "uid": uid}]
    body = {"metadata": {"name": "job-run-1a2b3", "ownerReferences": owners},
            "spec": {}, "status": {"conditions": conditions}}  # fmt: skip
    if it.store.find(WORKLOADS[0], "default", "job-run-1a2b3") is None:
        it.store.create(WORKLOADS[0], "default", body)
    else:
        it.store.change(
            WORKLOADS[0], "default", "job-run-1a2b3", lambda b: b.update(status=body["status"])
        )


async def _queued(it: Site, **kubernetes: Any) -> None:
    it.fake.server.kinds.add(WORKLOADS[0])
    it.start()
    kueue = {"kueue": {"queue": "research"}}
    engine = {**JOB_ENGINE, **kubernetes}
    await it.apply(training_job(kubernetes=engine, nodes={"count": 2}, scheduling=kueue))
    await it.until(lambda: it.get(JOBS, "run"))
    held(it, "8 more needed")


def test_a_job_that_kueue_holds_back_quotes_it_and_each_number_is_no_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queued, "SAME_S", 0.0)

    @on_site
    async def story(it: Site) -> None:
        await _queued(it)
        waits = "queue research of Kueue to admit 2 nodes"
        it.publish("waiting", waiting_for=waits)
        await it.until(lambda: it.status().get("waitingFor") == f"{waits}; Kueue: 8 more needed")
        held(it, "7 more needed")
        it.publish("waiting", waiting_for=waits, attempt=0)
        await it.until(lambda: it.status().get("waitingFor") == f"{waits}; Kueue: 7 more needed")
        it.publish("running")
        await it.until(lambda: it.marks().get("Running") == "True")
        assert "waitingFor" not in it.status()
        said = [event["message"] for event in it.store.all(EVENTS, "default")]
        assert [text for text in said if "Kueue: " in text] == [
            f"waiting for {waits}; Kueue: 8 more needed"
        ]

    story()


def test_without_a_controller_kueue_is_quoted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued, "SAME_S", 0.0)

    @on_site
    async def story(it: Site) -> None:
        await _queued(it, mode="plain")
        it.edit(lambda _: None)
        told = "queue research of Kueue to admit it; Kueue: 8 more needed"
        await it.until(lambda: it.status().get("waitingFor") == told)

    story()
