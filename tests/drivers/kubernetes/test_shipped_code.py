"""The code of an update comes whole to the controller and to the nodes, or says why it does not."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast import bundles
from holdfast.agent import code_delivery
from holdfast.agent.code_delivery import CodeDelivery
from holdfast.drivers.kubernetes import shipped_code
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS
from holdfast.drivers.kubernetes.manifests.names import CODE as CODE_LABEL
from holdfast.drivers.kubernetes.manifests.names import UPDATE_PARTS, update_parts
from holdfast.drivers.kubernetes.manifests.support import access
from holdfast.drivers.kubernetes.origin import origin
from holdfast.drivers.kubernetes.shipped_code import ShippedCode, ship
from holdfast.errors import Error
from holdfast.messages import AskCode, CodePart, UpdateJob
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.cluster.fake import FakeCluster, cluster

DATA, OTHER = b"0123456789" * 5, b"abcdefghij" * 5
CODE = bundles.digest(DATA)
Story = Callable[[FakeCluster, Api], Awaitable[None]]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_code, "PART_BYTES", 20)
    monkeypatch.setattr(shipped_code, "TOLD_BYTES", 8)
    monkeypatch.setattr(code_delivery, "AGAIN_S", 0.001)
    monkeypatch.setattr(code_delivery, "ANSWER_S", 0.05)


def played(story: Story) -> None:
    async def play() -> None:
        async with cluster(machines=0) as it:
            api = it.api()
            it.store.create(CONFIG_MAPS, "default", {"metadata": {"name": "run-job"}})
            try:
                await story(it, api)
            finally:
                await api.close()

    asyncio.run(play())


async def shipped(api: Api, data: bytes, *needed: str) -> None:
    await ship(api, "run", data, (await origin(api, "run")).owner, needed)


def parts(it: FakeCluster) -> list[str]:
    names = update_parts("run")
    return [name for name in names if it.store.find(CONFIG_MAPS, "default", name)]


def order(data: bytes) -> UpdateJob:
    return UpdateJob(by="me", id="x", code=bundles.digest(data))


class Heard:
    """A controller's side, and the updates that it has told of."""

    def __init__(self, api: Api, folder: Path) -> None:
        self.told: asyncio.Queue[UpdateJob] = asyncio.Queue()
        self.code = ShippedCode(api, "run", folder, self.told.put_nowait)
        self.task = asyncio.create_task(self.code.run())

    async def close(self) -> None:
        assert not self.task.done(), "it goes on for ever"
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def node(folder: Path, heard: Heard, lose: int = 0) -> CodeDelivery:
    """An agent whose first so many questions are lost with a connection."""
    lost = [None] * lose

    def ask(question: AskCode) -> None:
        if lost:
            lost.pop()
        else:
            found.take(heard.code.part(question))

    found = CodeDelivery(folder, ask)
    return found


def test_a_bundle_in_parts_comes_to_the_controller_and_from_there_to_a_node(
    tmp_path: Path,
) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        await shipped(api, DATA)
        await shipped(api, DATA)
        assert parts(it) == ["run-update-1", "run-update-2", "run-update-3"]
        heard = Heard(api, tmp_path / "controller")
        heard.code.hear(order(DATA))
        assert (await heard.told.get()).code == CODE
        assert await node(tmp_path / "node", heard, lose=2).fetch(CODE) == ""
        assert bundles.packed(tmp_path / "node", CODE).read_bytes() == DATA
        await heard.close()
        again = Heard(api, tmp_path / "another")  # a new controller with an empty disk
        assert await node(tmp_path / "late", again).fetch(CODE) == ""
        await again.close()

    played(story)


def test_versions_that_may_be_used_again_keep_their_place_and_others_give_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped_code, "update_parts", lambda job: update_parts(job)[:5])

    async def story(it: FakeCluster, api: Api) -> None:
        await shipped(api, DATA)
        with pytest.raises(Error, match="too large for an update"):
            await shipped(api, OTHER, CODE)
        await shipped(api, OTHER)
        assert len(parts(it)) == 3
        heard = Heard(api, tmp_path)
        heard.code.hear(order(DATA))
        await heard.told.get()
        assert "parts of the code bundle" in await node(tmp_path / "node", heard).fetch(CODE)
        assert await node(tmp_path / "node", heard).fetch(bundles.digest(OTHER)) == ""
        await heard.close()

    played(story)


def test_older_versions_stay_while_there_is_room_and_the_oldest_gives_way_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shipped_code, "update_parts", lambda job: update_parts(job)[:4])
    versions = [bytes([number]) * 30 for number in range(4)]  # two parts each

    async def story(it: FakeCluster, api: Api) -> None:
        def of(data: bytes) -> list[str]:
            found = it.store.all(CONFIG_MAPS, "default")
            metas = [
                body["metadata"]
                for body in found
                if CODE_LABEL in body["metadata"].get("labels", {})
            ]
            return [m["name"] for m in metas if m["labels"][CODE_LABEL] in bundles.digest(data)]

        async def whole_after(number: int, *needed: int) -> list[int]:
            it.server.skew_s += 60.0
            codes = [bundles.digest(versions[one]) for one in needed]
            await shipped(api, versions[number], *codes)
            return [n for n, data in enumerate(versions) if len(of(data)) == 2]

        assert await whole_after(0) == [0]
        assert await whole_after(1) == [0, 1]
        assert await whole_after(2) == [1, 2], "the oldest gives way"
        assert await whole_after(3, 1) == [1, 3], "unless it may be used again"
        assert await whole_after(1) == [1, 3], "it is there already"
        await api.delete(CONFIG_MAPS, of(versions[1])[0])
        assert await whole_after(1) == [1, 3], "what is left of itself gives way first"

    played(story)


def test_the_role_of_a_controller_lets_it_read_the_code_and_one_without_says_so(
    tmp_path: Path,
) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        for body in access.objects(asked(namespace="default")):
            await api.apply(body)
        await shipped(api, DATA)
        for account in ("run-controller", "run"):
            own = it.api(account=account)
            heard = Heard(own, tmp_path / account)
            heard.code.hear(order(DATA))
            await heard.told.get()
            why = await node(tmp_path / f"node-{account}", heard).fetch(CODE)
            assert ("cannot read the code" in why) == (account == "run"), why
            await heard.close()
            await own.close()

    played(story)


def test_what_is_not_what_its_name_says_is_kept_by_nobody(tmp_path: Path) -> None:
    def lie(question: AskCode) -> None:
        data = b"x" * 50
        found.take(CodePart(code=question.code, offset=question.offset, data=data, size=50))

    found = CodeDelivery(tmp_path, lie)
    assert "SHA-256" in asyncio.run(found.fetch(CODE))
    assert not bundles.packed(tmp_path, CODE).exists() and UPDATE_PARTS == 24
