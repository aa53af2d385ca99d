"""Stacks of a job in a cluster: asked for by a word, answered with the same one."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.digests import StepsToRepeat
from holdfast.drivers.kubernetes import fetched_traces, published_stacks
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, ApiError
from holdfast.drivers.kubernetes.manifests.names import STACKS
from holdfast.drivers.kubernetes.manifests.support import access
from holdfast.drivers.kubernetes.published_stacks import (
    ANSWER_BYTES,
    ASKED,
    Ask,
    PublishedStacks,
    Respondents,
    _packed,
    ask_for_checks,
    ask_for_stacks,
)
from holdfast.drivers.kubernetes.wishes import Wishes
from holdfast.messages import ChecksReply, ReplayReply, StacksReply
from holdfast.profiles import (
    TRACE_PART_BYTES,
    ProfileReply,
    ProfileRequest,
    RankProfile,
    TakeTracePart,
    TracePart,
    TracePartRequest,
)
from holdfast.stacks import StackGroup, ThreadStack
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.cluster.fake import FakeCluster, cluster
from tests.patience import PATIENCE_S

OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "run-job"}
Reply = Callable[[StacksReply], None]


def group(rank: int, at: str) -> StackGroup:
    thread = ThreadStack(name="MainThread", pid=1, frames=("main (t.py:1)", at))
    return StackGroup(ranks=((rank, rank),), threads=(thread,))


REPLY = StacksReply(groups=(group(0, "read (t.py:9)"), group(1, "wait (t.py:3)")), missing=("n",))
NATIVE_REPLY = StacksReply(groups=(group(0, "ncclRecv (libnccl.so.2)"),))

CHECKED = ChecksReply(found={"run-spare-0": "", "run-spare-1": "memory: 1 of 2"}, missing=("x",))


def answer(reply: Reply) -> None:
    reply(REPLY)


def _repeated(wish: StepsToRepeat, reply: Callable[[ReplayReply], None]) -> None:
    reply(ReplayReply(verdict="genuine", summary=f"step {wish.step}"))


def _profiled(wish: ProfileRequest, reply: Callable[[ProfileReply], None]) -> None:
    reply(ProfileReply(ranks=(RankProfile(rank=wish.ranks[0], steps=wish.steps),)))


TRACE = bytes(range(256)) * 4_000  # of two parts
LARGE = 5  # a rank whose trace is larger than what is fetched


def _handed_out(wish: TracePartRequest, reply: Callable[[TracePart], None]) -> None:
    part, rank = wish.part, wish.part.trace.partition("rank-")[2]
    told = TracePart(trace=part.trace, offset=part.offset)
    if rank.startswith("1."):
        reply(msgspec.structs.replace(told, why="its node is gone, and its trace with it"))
        return
    data = TRACE[part.offset : part.offset + TRACE_PART_BYTES]
    size = fetched_traces.TRACES_BYTES if rank.startswith(f"{LARGE}.") else len(TRACE)
    reply(msgspec.structs.replace(told, size=size, data=data))


def _mute(_: Reply) -> None:
    """No node answers."""


def _in_c(reply: Reply, rank: int | None) -> None:
    reply(NATIVE_REPLY if rank is None else StacksReply(groups=(group(rank, "here"),)))


def _answering(stacks: Ask) -> Respondents:
    def checked(reply: Callable[[ChecksReply], None]) -> None:
        reply(CHECKED)

    return Respondents(stacks, checked, _repeated, _profiled, _handed_out, _in_c)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_stacks, "POLL_S", 0.01)
    monkeypatch.setattr(published_stacks, "STAYS_S", 0.0)


BEGAN_AGAIN = "the controller was restarted; try again"


def played_alone(story: Callable[[FakeCluster, Api], Awaitable[None]]) -> None:
    """Without a controller."""

    async def play() -> None:
        async with cluster(machines=0) as it:
            for body in access.objects(asked(namespace="default")):
                await it.api().apply(body)
            it.store.create(CONFIG_MAPS, "default", {"metadata": {"name": "run-job"}})
            await story(it, it.api())

    asyncio.run(play())


def played(story: Callable[[FakeCluster, Api], Awaitable[None]], *, answers: bool = True) -> None:
    """With a controller that has the rights of a real one."""

    async def play() -> None:
        async with cluster(machines=0) as it:
            for body in access.objects(asked(namespace="default")):
                await it.api().apply(body)
            it.store.create(CONFIG_MAPS, "default", {"metadata": {"name": "run-job"}})
            uid = (await it.api().get(CONFIG_MAPS, "run-job"))["metadata"]["uid"]
            api = it.api(account="run-controller")
            asks = _answering(answer if answers else _mute)
            there = PublishedStacks(api, "run", {**OWNER, "uid": uid}, asks)
            wishes = Wishes(api, "run", lambda _by, _now: None, there.wanted)
            tasks = [asyncio.create_task(there.run()), asyncio.create_task(wishes.hear())]
            await story(it, it.api())
            for task in tasks:
                assert not task.done(), "it goes on for ever"
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await api.close()

    asyncio.run(play())


def test_whoever_asks_gets_what_the_controller_answers_to_just_that() -> None:
    async def story(_: FakeCluster, api: Api) -> None:
        assert await ask_for_stacks(api, "run") == REPLY
        first = await api.get(CONFIG_MAPS, "run-stacks")
        wish = StepsToRepeat(step=7, id="a", by="somebody")
        repeated = await published_stacks.ask_for_replay(api, "run", wish)
        assert repeated == ReplayReply(verdict="genuine", summary="step 7")
        garbage = {"metadata": {"annotations": {STACKS: f"{published_stacks.REPLAY}{{"}}}
        await api.patch(CONFIG_MAPS, "run-job", garbage)
        profile = ProfileRequest(id="a1", steps=3, ranks=(4,))
        measured = await published_stacks.ask_for_profile(api, "run", profile)
        assert measured == ProfileReply(ranks=(RankProfile(rank=4, steps=3),))
        garbage = {"metadata": {"annotations": {STACKS: f"{published_stacks.PROFILE}{{"}}}
        await api.patch(CONFIG_MAPS, "run-job", garbage)
        assert await ask_for_checks(api, "run") == CHECKED
        assert await ask_for_stacks(api, "run", native=True) == NATIVE_REPLY
        one = await ask_for_stacks(api, "run", native=True, rank=17)
        assert one == StacksReply(groups=(group(17, "here"),)), "and nobody else is paused"
        assert await ask_for_stacks(api, "run") == REPLY
        second = await api.get(CONFIG_MAPS, "run-stacks")
        assert first["data"][ASKED] != second["data"][ASKED]
        job = await api.get(CONFIG_MAPS, "run-job")
        assert second["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
        assert job["metadata"]["annotations"][STACKS] == second["data"][ASKED]

    played(story)


def test_traces_come_part_by_part_and_of_those_that_do_not_nothing_is_left(tmp_path: Path) -> None:
    ranks = [
        RankProfile(rank=rank, node="n", trace=f"profiles/a1/rank-{rank}.json.gz")
        for rank in (0, 1, LARGE, 6)
    ]

    async def story(_: FakeCluster, api: Api) -> None:
        stayed = await fetched_traces.fetch(api, "run", ranks, tmp_path)
        assert stayed.keys() == {1, LARGE} and "is gone" in stayed[1]
        assert stayed[LARGE] == "it has 32.0 MiB; of 32.0 MiB 31.0 MiB are left"

    played(story)
    came = {path.name: path.read_bytes() for path in (tmp_path / "profiles/a1").iterdir()}
    assert came == {"rank-0.json.gz": TRACE, "rank-6.json.gz": TRACE}


def test_a_part_whose_word_another_was_written_over_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = RankProfile(rank=0, node="n", trace="profiles/a1/rank-0.json.gz")
    asked = list[TracePartRequest]()

    async def ask(cluster: Api, job: str, wish: TracePartRequest) -> TracePart | None:
        asked.append(wish)
        lost = len(asked) % 2 == 1
        return None if lost else await published_stacks.ask_for_trace_part(cluster, job, wish)

    async def never(*_: object) -> None:
        return None

    async def story(_: FakeCluster, api: Api) -> None:
        monkeypatch.setattr(fetched_traces, "ask_for_trace_part", ask)
        assert await fetched_traces.fetch(api, "run", [one], tmp_path) == {}
        monkeypatch.setattr(fetched_traces, "ask_for_trace_part", never)
        stayed = await fetched_traces.fetch(api, "run", [one], tmp_path)
        assert stayed == {0: "its controller does not answer"}

    played(story)
    assert len({wish.id for wish in asked}) == len(asked) == 4
    assert (tmp_path / one.trace).read_bytes() == TRACE


def test_who_is_silent_is_not_asked_for_each_rank_and_a_refusal_costs_one_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [
        RankProfile(rank=rank, node="n", trace=f"profiles/a1/rank-{rank}.json.gz")
        for rank in range(4)
    ]
    asked = list[str]()

    async def ask(_cluster: Api, _job: str, wish: TracePartRequest) -> TracePart | None:
        asked.append(wish.part.trace)
        match len(asked):
            case 1:
                raise ApiError(500, "InternalError", "etcd is away")
            case 2:
                return TracePart(trace=wish.part.trace, offset=0, size=1, data=b"x")
        return None

    async def story(_: FakeCluster, api: Api) -> None:
        monkeypatch.setattr(fetched_traces, "ask_for_trace_part", ask)
        stayed = await fetched_traces.fetch(api, "run", ranks, tmp_path)
        assert stayed.keys() == {0, 2, 3} and "etcd is away" in stayed[0]
        assert stayed[2] == stayed[3] == fetched_traces.SILENT

    played_alone(story)
    assert asked == [ranks[0].trace, ranks[1].trace, *[ranks[2].trace] * fetched_traces.TRIES]


def test_an_answer_that_others_wait_for_is_not_gone_with_the_next_part_of_a_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(published_stacks, "STAYS_S", PATIENCE_S, raising=False)
    wish = ProfileRequest(id="a1", ranks=(2,))
    words = [published_stacks.PROFILE + msgspec.json.encode(wish).decode()]
    part = TracePartRequest(
        id="b1", node="n", part=TakeTracePart(trace="profiles/a1/rank-0.json.gz")
    )
    words.append(published_stacks.TRACE + msgspec.json.encode(part).decode())

    async def story(it: FakeCluster, api: Api) -> None:
        uid = (await api.get(CONFIG_MAPS, "run-job"))["metadata"]["uid"]
        asks = _answering(answer)
        there = PublishedStacks(api, "run", {**OWNER, "uid": uid}, asks)
        for word in words:
            there.wanted(word)
        running = asyncio.create_task(there.run())
        async with asyncio.timeout(PATIENCE_S):
            while it.store.find(CONFIG_MAPS, "default", "run-stacks") is None:
                await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await running
        body = await api.get(CONFIG_MAPS, "run-stacks")
        assert body["data"][ASKED] == words[0]

    played_alone(story)


def test_without_an_answer_in_time_there_is_none_whatever_lies_there() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        meta = {"name": "run-stacks"}
        it.store.create(CONFIG_MAPS, "default", {"metadata": meta, "data": {ASKED: "other"}})
        assert await ask_for_stacks(api, "run", wait_s=0.2) is None

    played(story, answers=False)


def test_what_is_too_much_for_a_config_map_loses_its_end() -> None:
    noise = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(40_000)]
    packed = _packed(StacksReply(groups=tuple(group(n, at) for n, at in enumerate(noise))))
    assert ANSWER_BYTES // 4 < len(packed) <= ANSWER_BYTES


@pytest.mark.parametrize("answered", [True, False])
def test_a_controller_that_begins_again_takes_no_profile_again(answered: bool) -> None:
    wish = ProfileRequest(id="a1", steps=3, ranks=(4,))
    word = published_stacks.PROFILE + msgspec.json.encode(wish).decode()

    async def story(it: FakeCluster, api: Api) -> None:
        marks = {"metadata": {"annotations": {STACKS: word}}}
        await api.patch(CONFIG_MAPS, "run-job", marks)
        if answered:
            meta = {"name": "run-stacks"}
            it.store.create(CONFIG_MAPS, "default", {"metadata": meta, "data": {ASKED: word}})
        taken: list[ProfileRequest] = []

        def profile(wish: ProfileRequest, reply: Callable[[ProfileReply], None]) -> None:
            taken.append(wish)
            _profiled(wish, reply)

        asks = _answering(answer)._replace(profile=profile)
        second = PublishedStacks(it.api(account="run-controller"), "run", OWNER, asks)
        await second.load()
        second.wanted(word)
        told = [] if answered else [second._answers.get_nowait().reply]
        assert taken == [] and second._answers.empty()
        assert told == ([] if answered else [ProfileReply(refused=BEGAN_AGAIN)])
        second.wanted(word.replace("a1", "a2"))
        assert [one.id for one in taken] == ["a2"]

    played_alone(story)


def test_what_could_not_be_seen_when_it_began_is_taken_for_an_old_word() -> None:
    async def story(it: FakeCluster, _: Api) -> None:
        asks = _answering(answer)
        second = PublishedStacks(it.api(account="nobody"), "run", OWNER, asks)
        await second.load()
        for name in ("a1", "a2"):
            wish = ProfileRequest(id=name, steps=3, ranks=(4,))
            second.wanted(published_stacks.PROFILE + msgspec.json.encode(wish).decode())
        first, then = (second._answers.get_nowait().reply for _ in range(2))
        assert first == ProfileReply(refused=BEGAN_AGAIN)
        assert isinstance(then, ProfileReply) and then.ranks

    played_alone(story)


def test_a_controller_without_profiles_is_named() -> None:
    async def story(_: FakeCluster, api: Api) -> None:
        told = await published_stacks.ask_for_profile(api, "run", ProfileRequest(id="a1"))
        assert told is not None and "version of Holdfast without profiles" in told.refused

    with pytest.MonkeyPatch.context() as older:
        older.setattr(PublishedStacks, "_profile", lambda _self, _word, reply, **_: reply(REPLY))
        played(story)
