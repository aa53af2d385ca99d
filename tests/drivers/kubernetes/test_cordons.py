"""Cordons and memories on Node objects: what is written, and what is never touched."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest

from holdfast.diagnosis import machine_memory as memories
from holdfast.diagnosis.lemons import LemonSignal
from holdfast.diagnosis.machine_memory import LIFTED
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import NODES
from holdfast.drivers.kubernetes.cordons import cordon, lift, memory_of, remember
from holdfast.drivers.kubernetes.machines import EXPIRES, MEMORY, OWNER, REASON, TAINT, Machine
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.playing import playing

Body = dict[str, Any]
STRANGER = {"key": "team/own", "effect": "NoSchedule", "value": "x"}


def machine(it: FakeCluster, name: str) -> Machine:
    body = it.store.find(NODES, "", name)
    assert body is not None
    return msgspec.convert(body, Machine)


def edit(it: FakeCluster, name: str, **spec: Any) -> None:
    it.store.change(NODES, "", name, lambda body: body["spec"].update(spec))


async def cordoned(api: Api, name: str, share: float = 0.5) -> str:
    return await cordon(api, name, by="team/run", why="XID 79", share=share)


def test_a_cordon_says_who_why_and_until_when_and_leaves_the_marks_of_others() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        edit(it, "m-0", unschedulable=True, taints=[STRANGER])
        assert await cordoned(api, "m-0") == ""
        found = machine(it, "m-0")
        notes = found.metadata.annotations
        assert (notes[OWNER], notes[REASON]) == ("team/run", "XID 79") and notes[EXPIRES]
        assert {taint.key for taint in found.spec.taints} == {TAINT, STRANGER["key"]}
        assert await lift(api, "m-0")
        found = machine(it, "m-0")
        assert [taint.key for taint in found.spec.taints] == [STRANGER["key"]]
        assert found.spec.unschedulable, "a person's cordon is a person's to end"
        assert not {OWNER, REASON, EXPIRES} & found.metadata.annotations.keys()
        assert memory_of(found, time.time()).cordons[-1].ended == LIFTED

    playing(story, machines=4)


def test_a_cordon_by_a_person_is_neither_counted_nor_taken_for_ours() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        for name in ("m-0", "m-1"):
            edit(it, name, unschedulable=True)
        assert not machine(it, "m-0").cordoned
        assert await cordoned(api, "m-2") == "", "half of four may be out, and none is by us"

    playing(story, machines=4)


def test_never_more_than_the_share_of_the_cluster_is_out() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        assert await cordoned(api, "m-0", 0.25) == ""
        assert await cordoned(api, "m-0", 0.25) == "", "it is out already"
        refused = await cordoned(api, "m-1", 0.25)
        assert refused == "1 of 4 machines are already cordoned, and access.cordon_share allows 1"
        assert not machine(it, "m-1").cordoned
        assert await cordoned(api, "m-2", 0.0) and not machine(it, "m-2").cordoned

    playing(story, machines=4)


def test_jobs_that_cordon_at_the_same_moment_stay_within_the_share() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        names = [f"m-{number}" for number in range(6)]
        told = await asyncio.gather(*(cordoned(api, name, 0.34) for name in names))
        out = [name for name in names if machine(it, name).cordoned]
        assert len(out) <= 2 and sum(bool(why) for why in told) >= 4

    playing(story, machines=6)


def test_a_machine_that_two_jobs_blame_is_out_once_and_neither_takes_the_other_s_cordon_back() -> (
    None
):
    async def story(it: FakeCluster, api: Api) -> None:
        def blamed(name: str, by: str) -> Awaitable[str]:
            return cordon(api, name, by=by, why=f"of {by}", share=0.25)

        await asyncio.gather(blamed("m-0", "team/run"), blamed("m-0", "other/run"))
        (first,) = memory_of(machine(it, "m-0"), time.time()).cordons
        notes = machine(it, "m-0").metadata.annotations
        assert (notes[OWNER], notes[REASON]) == (first.by, f"of {first.by}")
        assert await blamed("m-1", "other/run"), "there is no room for another one"
        assert await blamed("m-0", "third/run") == ""
        assert memory_of(machine(it, "m-0"), time.time()).cordons == (first,)
        assert [machine(it, f"m-{n}").cordoned for n in range(4)] == [True, False, False, False]

    playing(story, machines=4)


def test_a_taint_that_could_not_be_written_is_no_cordon() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.server.access.denied.add(("patch", "nodes"))
        assert await cordoned(api, "m-0") == "its Node object could not be changed"
        assert not machine(it, "m-0").cordoned

    playing(story, machines=4)


@pytest.mark.parametrize("text", ["soon", "9999-12-31T23:59:59-23:59", "2026-13-01", "", "²"])
def test_an_expiry_that_is_no_time_is_one_that_a_person_decides(text: str) -> None:
    """A taint of ours without a memory: somebody has set it, and is to take it off."""

    async def story(it: FakeCluster, api: Api) -> None:
        del api
        edit(it, "m-0", taints=[{"key": TAINT, "effect": "NoSchedule"}])

        def annotate(body: Body) -> None:
            body["metadata"]["annotations"] = {EXPIRES: text, MEMORY: '{"cordons": [{"at": 1e99}]}'}

        it.store.change(NODES, "", "m-0", annotate)
        known = memory_of(machine(it, "m-0"), time.time())
        assert known.cordon is not None and known.cordon.until is None
        assert not memories.is_due(known, time.time() + 1e6)

    playing(story, machines=1)


def test_the_only_machine_is_never_cordoned() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        assert await cordoned(api, "m-0", 1.0) and not machine(it, "m-0").cordoned

    playing(story, machines=1)


def test_a_taint_that_a_person_takes_away_is_a_cordon_that_was_lifted() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await cordoned(api, "m-0")
        edit(it, "m-0", taints=[])
        await remember(api, "m-0", [(LemonSignal.XID, time.time())])
        found = machine(it, "m-0")
        assert not found.cordoned and OWNER not in found.metadata.annotations
        known = memory_of(found, time.time())
        assert known.cordon is None and known.cordons[-1].ended == LIFTED
        assert memories.counts(known, time.time()) == {LemonSignal.XID: 1}

    playing(story, machines=2)


def test_signals_of_several_jobs_add_up_on_the_machine() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        now = time.time()
        for signal in (LemonSignal.XID, LemonSignal.HANG, LemonSignal.LOST):
            assert await remember(api, "m-0", [(signal, now)])
        assert memories.is_lemon(memory_of(machine(it, "m-0"), now), now)
        assert not machine(it, "m-0").cordoned, "a score is shown; nobody is kept out for it"
        assert not await remember(api, "m-9", [(LemonSignal.XID, now)]), "it is gone"

    playing(story, machines=2)
