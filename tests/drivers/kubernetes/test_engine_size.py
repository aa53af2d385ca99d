"""The object that makes the pods becomes larger and smaller with the job, as far as it may."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from holdfast.controller import Limits, State
from holdfast.drivers.kubernetes.cluster import ConflictError, InvalidError
from holdfast.drivers.kubernetes.engine_size import INDEX, NO_GATE, EngineSize, size_in, sized
from holdfast.drivers.kubernetes.manifests.render import render
from holdfast.drivers.kubernetes.roster import Roster
from tests.drivers.kubernetes import schemas
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.cluster.fake import FakeCluster, cluster
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.drivers.kubernetes.cluster.kinds import JOB_SETS
from tests.drivers.kubernetes.cluster.webhooks import ELASTIC
from tests.drivers.kubernetes.seen import pod

KEYS: dict[str, Any] = {
    "nodes": {"count": 3, "spares": 1},
    "elasticity": {"min_nodes": 1, "max_nodes": 5},
    "kubernetes": {"elastic_jobset": True},
}


class Sized(NamedTuple):
    """A JobSet, and who keeps it as large as its job wants it."""

    it: FakeCluster
    state: State
    roster: Roster
    size: EngineSize

    def ask(self, nodes: int) -> None:
        """So many nodes are wanted."""
        self.state.sizing.target = nodes
        self.size.look()

    def indexes(self, role: str = "node") -> set[int]:
        """Of the pods that are not about to go."""
        return {
            int(found["metadata"]["labels"][INDEX])
            for found in self.it.pods(job="run", role=role)
            if "deletionTimestamp" not in found["metadata"]
        }

    async def until(self, count: int) -> None:
        """Wait for the pods with the lowest numbers, and no others."""
        await self.it.until(lambda: self.indexes() == set(range(count)))


@asynccontextmanager
async def job_set(*gates: str, **keys: Any) -> AsyncIterator[Sized]:
    """Where its controller has these feature gates; no machine has room for a pod."""
    async with cluster(machines=0, engines=("jobset",)) as it:
        it.server.webhooks.gates |= set(gates)
        api, request = it.api(), asked("jobset", namespace="default", **{**KEYS, **keys})
        low = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 10}
        for body in (low | {"metadata": {"name": "low"}}, *render(request)):
            if body["kind"] in ("PriorityClass", "ServiceAccount", "JobSet"):
                await api.create(body)
        state = State(limits=Limits.of(request.job))
        roster = Roster(state)
        size = EngineSize(api, request, state, roster)
        assert size.can_change
        duty = asyncio.create_task(size.run())
        yield Sized(it, state, roster, size)
        duty.cancel()
        await api.close()


def played(story: Callable[[Sized], Awaitable[None]], *gates: str, **keys: Any) -> None:
    async def play() -> None:
        async with job_set(*gates, **keys) as found:
            await story(found)

    asyncio.run(play())


def test_a_job_set_grows_and_shrinks_and_keeps_every_pod_that_trains() -> None:
    async def story(run: Sized) -> None:
        await run.until(4)
        run.ask(5)
        await run.until(6)
        run.roster.see(pod("run-2", labels={INDEX: "2"}))
        run.state.ranks[0] = "uid-run-2"
        run.ask(1)
        await run.until(3)
        run.ask(3)
        await run.until(4)
        assert run.size.trouble is None

    played(story, ELASTIC)


def test_spares_with_a_priority_of_their_own_stay_as_many_as_they_are() -> None:
    async def story(run: Sized) -> None:
        await run.until(3)
        run.ask(5)
        await run.until(5)
        run.ask(2)
        await run.until(2)
        assert run.indexes("spare") == {0}

    played(story, ELASTIC, scheduling={"spare_priority_class": "low"})


def test_what_others_change_between_reading_and_writing_is_not_undone() -> None:
    async def story(run: Sized) -> None:
        api = run.it.api()
        body = await api.get(JOB_SETS, "run")
        await api.patch(JOB_SETS, "run", {"metadata": {"labels": {"team": "a"}}})
        with pytest.raises(ConflictError):
            await api.patch(JOB_SETS, "run", sized("jobset", 5, body))
        run.it.faults.add(Fault(verb="patch", plural="jobsets", code=409))
        run.ask(5)
        await run.until(6)
        assert (await api.get(JOB_SETS, "run"))["metadata"]["labels"]["team"] == "a"
        await api.close()

    played(story, ELASTIC)


def test_without_its_feature_gate_a_job_set_stays_as_it_is_and_status_says_why() -> None:
    async def story(run: Sized) -> None:
        await run.until(4)
        run.ask(5)
        await run.it.until(lambda: run.size.trouble)
        assert run.size.trouble == f"the cluster to resize its jobset: {NO_GATE}"
        assert run.indexes() == {0, 1, 2, 3}

    played(story)


def test_the_webhook_refuses_what_the_real_one_refuses() -> None:
    """Sizes that differ or are none, other changes of its Jobs, and what the definition fixes."""

    async def story(run: Sized) -> None:
        api = run.it.api()
        body = await api.get(JOB_SETS, "run")
        other = sized("jobset", 5, body)
        other["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] = 4
        policy = {"spec": {"failurePolicy": {"maxRestarts": 3}}}
        more = sized("jobset", 4, body)
        more["spec"]["replicatedJobs"][0]["replicas"] = 2
        for patch, why in (
            (other, "must be equal"),
            (sized("jobset", 0, body), "must be >= 1"),
            (more, "field is immutable"),
            *([(policy, "Value is immutable")] if schemas.CRDS else []),
        ):
            with pytest.raises(InvalidError, match=why):
                await api.patch(JOB_SETS, "run", patch)
        assert size_in("jobset", await api.get(JOB_SETS, "run")) == 4
        await api.close()

    played(story, ELASTIC)
