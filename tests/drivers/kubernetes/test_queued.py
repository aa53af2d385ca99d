"""A job that Kueue holds back says why in Kueue's own words, to all who may read them."""

from typing import Any

import msgspec
import pytest

from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import JOBS
from holdfast.drivers.kubernetes.doctor import needed
from holdfast.drivers.kubernetes.queued import (
    SAME_S,
    WORKLOADS,
    Workload,
    Workloads,
    quoted,
    words,
)
from holdfast.drivers.kubernetes.remote import look, status
from holdfast.drivers.kubernetes.remote_troubles import evidence
from holdfast.drivers.kubernetes.submit import submit
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.test_submit import asked, play

pytestmark = pytest.mark.usefixtures("nothing_left")

NEWEST = WORKLOADS[0]
NO_QUOTA = (
    "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in "
    "flavor h200, 8 more needed"
)
QUEUED = {"scheduling": {"kueue": {"queue": "research"}}}


def workload(
    *conditions: tuple[str, str, str], kind: str = "Job", owner: str = "run", uid: str = "u"
) -> Any:
    """A Workload as Kueue makes it, with conditions: type, status, message."""
    owners = [{"apiVersion": "batch/v1", "kind": kind, "name": owner, "uid": uid}]
    said = [{"type": t, "status": s, "reason": "Pending", "message": m} for t, s, m in conditions]
    meta = {"name": f"{kind.lower()}-{owner}-1a2b3", "ownerReferences": owners}
    return {"metadata": meta, "spec": {"podSets": []}, "status": {"conditions": said}}


def told(*workloads: Any) -> str:
    """What Kueue says of the job `run`, which has pods `u-0` and `u-1`."""
    return words(msgspec.convert(workloads, list[Workload]), "run", ["u-0", "u-1"])


def test_kueue_is_quoted_word_for_word() -> None:
    assert told(workload(("QuotaReserved", "False", NO_QUOTA))) == NO_QUOTA
    checks = "The workload has not all checks ready"
    reserved = workload(("QuotaReserved", "True", ""), ("Admitted", "False", checks))
    assert told(reserved) == checks


def test_what_is_admitted_or_over_or_of_another_job_is_not_quoted() -> None:
    held = ("QuotaReserved", "False", NO_QUOTA)
    assert told() == told(workload()) == ""
    assert (
        told(workload(("QuotaReserved", "True", "Quota reserved"), ("Admitted", "True", ""))) == ""
    )
    assert told(workload(held, ("Finished", "True", "Job finished"))) == ""
    assert told(workload(held, owner="run-2")) == ""
    assert told(workload(held, kind="Pod", owner="run-0", uid="of-an-earlier-run")) == ""


def test_a_group_of_pods_and_spares_of_their_own_are_the_jobs_too() -> None:
    spares = workload(("QuotaReserved", "False", "no spares"), owner="run-spare")
    group = workload(("QuotaReserved", "False", NO_QUOTA), kind="Pod", owner="run-1", uid="u-1")
    assert told(group, group, spares) == f"{NO_QUOTA}; no spares"


async def _seen(api: Api) -> str | None:
    """What the status of the job says that it waits for."""
    seen = await look(api, "run")
    return quoted(status(seen), (await evidence(api, seen)).queued).waiting_for


@pytest.mark.parametrize("kind", WORKLOADS, ids=lambda kind: kind.api.rpartition("/")[2])
def test_a_job_in_a_queue_says_in_its_status_why_it_is_not_admitted(kind: Any) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, asked("job", **QUEUED))
        without = await _seen(api) or ""
        assert "queue research of Kueue to admit" in without
        it.server.kinds.add(kind)
        assert "; Kueue: " not in (await _seen(api) or ""), "it has not looked at it yet"
        owner = (await api.get(JOBS, "run"))["metadata"]["uid"]
        held = workload(("QuotaReserved", "False", NO_QUOTA), uid=owner)
        it.store.create(kind, "default", held)
        assert (await _seen(api) or "").endswith(f"; Kueue: {NO_QUOTA}")
        it.server.access.denied.add(("list", "workloads"))
        assert "; Kueue: " not in (await _seen(api) or ""), "who may not look is told the rest"

    play(story, machines=0)


def test_who_looks_at_many_jobs_reads_the_workloads_of_a_namespace_once_in_a_while() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, asked("job", **QUEUED))
        it.server.kinds.add(NEWEST)
        owner = (await api.get(JOBS, "run"))["metadata"]["uid"]
        it.store.create(NEWEST, "default", workload(uid=owner))
        now = [0.0]
        known = Workloads(api, lambda: now[0])
        before = it.server.calls.count(("list", "workloads"))
        for namespace in (None, None, "default", "default"):
            assert len(await known.of(namespace)) == 1
        assert it.server.calls.count(("list", "workloads")) == before + 2
        it.store.delete(NEWEST, "default", "job-run-1a2b3")
        now[0] = SAME_S + 1.0
        assert await known.of(None) == []

    play(story, machines=0)


def test_a_job_without_a_queue_asks_nothing_of_kueue() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.server.kinds.add(NEWEST)
        await submit(api, asked("job"))
        await _seen(api)
        assert ("list", "workloads") not in it.server.calls

    play(story, machines=0)


def test_the_doctor_asks_for_the_right_to_see_why_of_a_job_in_a_queue_only() -> None:
    def of(**keys: Any) -> set[tuple[str, str, str]]:
        return {(right.group, right.resource, right.verb) for right in needed(asked("job", **keys))}

    assert of(**QUEUED) - of() == {("kueue.x-k8s.io", "workloads", "list")}
