"""Pods of our own are made as many as are missing, and not one more."""

import asyncio
from typing import Any

import pytest

from holdfast.controller import Limits
from holdfast.drivers.kubernetes.cluster import ApiError, ConflictError, Kind, NotFoundError
from holdfast.drivers.kubernetes.left_machines import Machines
from holdfast.drivers.kubernetes.manifests.names import JOB
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.roster import Roster
from holdfast.drivers.kubernetes.supply import Supply
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.seen import pod
from tests.drivers.kubernetes.test_roster import state


class Making:
    """A cluster in which pods can be made; `gone` are those deleted again."""

    namespace = "default"

    def __init__(self) -> None:
        self.made: list[str] = []
        self.gone: set[str] = set()
        self.refusals: list[ApiError | None] = []  # of the next pods; None: it is made all the same

    async def get(self, kind: Kind, name: str) -> Body:
        """The job's ConfigMap, or a pod."""
        if kind.kind == "Pod" and (name in self.gone or name not in self.made):
            raise NotFoundError(404, "NotFound", name)
        return {"metadata": {"name": name, "uid": f"uid-{name}", "labels": {JOB: "run"}}}

    async def create(self, body: Body) -> Body:
        """A pod, unless it is refused, or only its answer is lost."""
        refusals = self.refusals[:1]
        del self.refusals[:1]
        for refusal in refusals:
            if refusal is not None:
                raise refusal
        self.made.append(body["metadata"]["name"])
        if refusals:
            raise ApiError(0, "ReadError", "connection reset")
        return {"metadata": {"name": self.made[-1], "uid": f"uid-{self.made[-1]}"}}


def supply(cluster: Any, wanted: int) -> tuple[Supply, Roster]:
    """Of a job that has asked for all its nodes and has none."""
    request, known = asked("pods", nodes={"count": wanted}), state(asked=wanted)
    known.limits = Limits(node_count=wanted, max_nodes=wanted + 2)
    roster = Roster(known)
    return Supply(cluster, request, known, roster, Machines(cluster, request)), roster


def test_a_job_that_was_asked_to_grow_gets_as_many_pods_as_that_and_no_more() -> None:
    cluster = Making()
    made, roster = supply(cluster, 2)

    async def story() -> None:
        await made.make_missing()
        for name in cluster.made:
            roster.see(pod(name))
        roster._state.sizing.target, roster._state.asked = 3, 9
        await made.make_missing()
        assert cluster.made == ["run-0", "run-1", "run-2"]

    asyncio.run(story())


def test_a_list_from_before_a_pod_was_made_makes_no_second_one() -> None:
    cluster = Making()
    made, roster = supply(cluster, 2)

    async def story() -> None:
        await made.make_missing()
        assert cluster.made == ["run-0", "run-1"]
        roster.relist([pod("run-0")])  # was asked for before run-1 was made
        made.listed()
        await made.make_missing()
        assert len(cluster.made) == 2
        roster.see(pod("run-1"))
        await made.make_missing()
        assert len(cluster.made) == 2

    asyncio.run(story())


def test_a_pod_whose_answer_was_lost_is_made_once() -> None:
    cluster = Making()
    cluster.refusals = [None]
    made, roster = supply(cluster, 1)

    async def story() -> None:
        with pytest.raises(ApiError, match="reset"):
            await made.make_missing()
        await made.make_missing()
        assert cluster.made == ["run-0"]
        roster.see(pod("run-0"))
        await made.make_missing()
        assert cluster.made == ["run-0"]

    asyncio.run(story())


def test_a_pod_that_was_not_made_by_a_call_that_failed_is_made_by_the_next() -> None:
    cluster = Making()
    cluster.refusals = [ApiError(500, "InternalError", "webhook")]
    made, _ = supply(cluster, 1)

    async def story() -> None:
        with pytest.raises(ApiError, match="webhook"):
            await made.make_missing()
        await made.make_missing()
        assert cluster.made == ["run-1"]

    asyncio.run(story())


def test_a_name_that_is_taken_is_passed_over_and_a_quota_that_others_change_is_left_alone() -> None:
    """The first for a moment at once, the second after a pause: all jobs of the namespace ask."""
    cluster = Making()
    quota = ConflictError(409, "Conflict", "cannot be fulfilled on resourcequotas")
    cluster.refusals = [ConflictError(409, "AlreadyExists", "run-0"), quota]
    made, _ = supply(cluster, 1)

    async def story() -> None:
        with pytest.raises(ConflictError, match="resourcequotas"):
            await made.make_missing()
        await made.make_missing()
        assert cluster.made == ["run-2"]

    asyncio.run(story())


def test_a_pod_that_went_before_any_list_showed_it_is_made_again() -> None:
    cluster = Making()
    made, roster = supply(cluster, 1)

    async def story() -> None:
        await made.make_missing()
        cluster.gone.add("run-0")
        roster.relist([])
        made.listed()
        await made.make_missing()
        assert cluster.made == ["run-0", "run-1"]

    asyncio.run(story())


def test_a_pod_that_others_delete_while_it_waits_is_made_again_and_ever_later_if_that_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = Making()
    made, roster = supply(cluster, 1)
    waits: dict[str, Any] = {"machine": "", "phase": "Pending", "state": {}}

    async def snatched(count: int) -> None:
        await made.make_missing()
        assert len(cluster.made) == count
        roster.see(pod(cluster.made[-1], **waits))
        roster.lose(pod(cluster.made[-1], leaving=True, **waits))

    async def story() -> None:
        await snatched(1)
        await snatched(2)
        for count in (2, 3):
            await made.make_missing()
            assert len(cluster.made) == count, "somebody deletes all of them"
            told = f"pods to get a machine ({count} were deleted before that, by others)"
            assert made._held_back() == told
            made._not_before = 0.0  # that time is over
            await snatched(count + 1)
        roster.see(pod("run-9"))
        roster.lose(pod("run-9"))
        roster._state.lost["uid-run-9"] = "its pod was deleted"
        await made.make_missing()
        assert len(cluster.made) == 5 and made._held_back() is None, "one has got a machine"

    asyncio.run(story())
    said = capsys.readouterr().err.splitlines()
    assert [line.rpartition("in ")[2] for line in said] == ["1 s", "2 s"]


def test_pods_that_stay_on_their_way_out_are_named_as_what_is_waited_for() -> None:
    cluster = Making()
    made, roster = supply(cluster, 1)

    async def story() -> None:
        for number in range(9):
            roster.see(pod(f"run-{number}", leaving=True))
        working = asyncio.create_task(made.run())
        made.look()
        while made.trouble is None:
            await asyncio.sleep(0)
        working.cancel()
        assert made.trouble == "9 pods to be deleted (terminating or removed from the job)"
        assert cluster.made == []

    asyncio.run(story())
