"""How the end of a job is told to its engine, where a container of a pod does not end with it."""

import asyncio
from typing import Any

import pytest

from holdfast.actions import Outcome
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import EVENTS, JOBS, PODS
from holdfast.drivers.kubernetes.ending import Departures, finish
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.roster import Roster
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.cluster.conditions import is_true
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.playing import playing
from tests.drivers.kubernetes.seen import RUNS, pod
from tests.drivers.kubernetes.test_roster import state

SUCCEEDED = Outcome.SUCCEEDED
DONE = {"terminated": {"exitCode": 0, "reason": "Completed"}}
FAILED = {"terminated": {"exitCode": 1, "reason": "Error"}}
WAITS = {"waiting": {"reason": "ContainerCreating"}}


def beside(main: Body, other: Body, **more: Any) -> Pod:
    """A pod with a classic sidecar."""
    statuses = [{"name": "proxy", "state": other}, {"name": "main", "state": main}]
    return pod(containerStatuses=statuses, **more)


STATES = {
    "both run": (beside(RUNS, RUNS), False),
    "only ours has ended": (beside(DONE, RUNS), True),
    "ours has ended before the other has begun": (beside(DONE, WAITS), True),
    "ours has failed, and its engine may start it again": (beside(FAILED, RUNS), False),
    "only the other has ended": (beside(RUNS, DONE), False),
    "both have, and the pod is about to": (beside(DONE, DONE), False),
    "there is only ours, which has": (pod(state=DONE), False),
    "the pod has ended": (beside(DONE, RUNS, phase="Succeeded"), False),
    "somebody deletes it": (beside(DONE, RUNS, leaving=True), False),
}


@pytest.mark.parametrize("which", STATES)
def test_a_sidecar_outlives_what_it_is_beside_only_after_that_has_ended_well(which: str) -> None:
    seen, expected = STATES[which]
    assert seen.outlived == expected


def test_a_sidecar_has_as_much_time_to_end_as_an_agent() -> None:
    async def story() -> None:
        roster = Roster(state("uid-run-0"))
        roster.see(beside(RUNS, RUNS))
        departures = Departures(roster.running)
        waiting = asyncio.create_task(departures.wait(1000.0))
        await asyncio.sleep(0)
        roster.see(beside(DONE, RUNS))
        departures.changed()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        roster.see(beside(DONE, DONE))
        departures.changed()
        await asyncio.wait_for(waiting, 60)

    asyncio.run(story())


class Job:
    """A Job of one pod: our container succeeds at once, the other as its command says."""

    def __init__(self, it: FakeCluster, api: Api) -> None:
        self.it, self.api, self.asked_whether_recorded = it, api, 0
        self.roster = Roster(state())

    async def begin(self, *command: str) -> None:
        main = {"name": "main", "image": "img:1", "command": ["true"]}
        other = {"name": "proxy", "image": "img:1", "command": list(command)}
        labels = {"holdfast.dev/job": "run", "holdfast.dev/role": "node"}
        spec = {"restartPolicy": "Never", "containers": [main, other]}
        template = {"metadata": {"labels": labels}, "spec": spec}
        job = {"completionMode": "Indexed", "completions": 1, "template": template}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "run"}, "spec": job}
        await self.api.create(body)
        await self.it.until(self._main_is_done)
        self.roster.relist((await self.api.listed(PODS, Pod)).items)

    def _main_is_done(self) -> bool:
        statuses = [p["status"].get("containerStatuses", []) for p in self.it.pods()]
        told = [s["state"] for found in statuses for s in found]
        return len(told) == 2 and "terminated" in told[0] and "waiting" not in told[1]

    async def finish(self, *, recorded: bool) -> None:
        async def record() -> bool:
            self.asked_whether_recorded += 1
            return recorded

        await finish(self.api, asked("job"), SUCCEEDED, self.roster, record)

    @property
    def object(self) -> Body:
        return self.it.store.get(JOBS, "default", "run")


def test_a_job_whose_sidecar_does_not_end_is_suspended_so_that_its_machine_is_free(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        job = Job(it, api)
        await job.begin("sleep", "1000")
        await job.finish(recorded=False)
        assert job.object["spec"]["suspend"] is False, "nobody would know how it ended"
        await job.finish(recorded=True)
        await it.until(lambda: not it.pods())
        assert is_true(job.object, "Suspended")
        (event,) = it.store.all(EVENTS, "default")
        assert (event["type"], event["reason"]) == ("Warning", "SuspendedByHoldfast")
        assert event["involvedObject"]["uid"] == job.object["metadata"]["uid"]
        assert "container proxy of pod run-0-" in event["message"]

    playing(story, machines=1)
    told = capsys.readouterr().err
    assert told.count("container proxy of pod run-0-") == 1
    assert "Job run is suspended to remove it. Make it a native sidecar" in told


def test_a_job_whose_sidecar_ends_is_left_alone() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        job = Job(it, api)
        await job.begin("true")
        await it.until(lambda: is_true(job.object, "Complete"))
        job.roster.relist((await api.listed(PODS, Pod)).items)
        await job.finish(recorded=True)
        assert job.object["spec"]["suspend"] is False and job.asked_whether_recorded == 0
        assert it.store.all(EVENTS, "default") == []

    playing(story, machines=1)


def test_an_event_says_why_an_object_is_suspended_and_one_that_is_refused_holds_up_nothing() -> (
    None
):
    async def story(it: FakeCluster, api: Api) -> None:
        async def recorded() -> bool:
            return True

        request, roster = asked("job"), Roster(state())
        main = {"name": "main", "image": "img:1", "command": ["true"]}
        template = {"spec": {"restartPolicy": "Never", "containers": [main]}}
        spec = {"completionMode": "Indexed", "completions": 1, "template": template}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "run"}, "spec": spec}
        for denied in (set(), {("create", "events")}):
            await api.create(body)
            it.server.access.denied |= denied
            await finish(api, request, Outcome.GAVE_UP, roster, recorded)
            assert it.store.get(JOBS, "default", "run")["spec"]["suspend"] is True
            await api.delete(JOBS, "run")
            await it.until(lambda: it.store.find(JOBS, "default", "run") is None)
        (event,) = it.store.all(EVENTS, "default")
        assert event["message"] == "the job has ended (gave_up), and no pod is to be made anew"
        assert event["type"] == "Normal" and event["involvedObject"]["kind"] == "Job"

    playing(story)


@pytest.mark.parametrize(
    ("engine", "told"),
    [("volcano", "ended: delete Job run. Make"), ("pods", "ended: the pod is deleted. Make")],
)
def test_where_no_engine_can_be_suspended_it_is_said_what_becomes_of_the_pod(
    engine: Any, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Cluster:
        """Notes what is deleted."""

        def __init__(self) -> None:
            self.deleted: list[str] = []

        async def delete(self, _kind: object, name: str, **_how: object) -> None:
            self.deleted.append(name)

    async def recorded() -> bool:
        return True

    roster, cluster = Roster(state()), Cluster()
    for name in ("run-0", "run-1"):
        statuses = [{"name": "proxy", "state": RUNS}, {"name": "main", "state": DONE}]
        roster.see(pod(name, containerStatuses=statuses))
    asyncio.run(finish(cluster, asked(engine), SUCCEEDED, roster, recorded))  # type: ignore[arg-type]
    assert cluster.deleted == (["run-0", "run-1"] if engine == "pods" else [])
    said = capsys.readouterr().err
    assert "container proxy of pod run-0 and 1 more pods runs although" in said and told in said
