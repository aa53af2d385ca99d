"""A wish to stop is heard at once and once, whatever stands between the controller and the API."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import pytest

from holdfast.drivers.kubernetes import api as client
from holdfast.drivers.kubernetes import watch, wishes
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, NotFoundError
from holdfast.drivers.kubernetes.manifests.names import SCALE, STACKS, STOP, UPDATE
from holdfast.drivers.kubernetes.manifests.support import access
from holdfast.drivers.kubernetes.remote_orders import ask_to_scale, ask_to_stop, ask_to_update
from holdfast.drivers.kubernetes.wishes import Wishes
from holdfast.messages import UpdateJob
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.cluster import rbac
from tests.drivers.kubernetes.cluster.fake import FakeCluster, cluster
from tests.drivers.kubernetes.cluster.http import Answer, CutError, Request, Server

PAGE = b"<!DOCTYPE html><html><body>Sign in to continue</body></html>"
HALF = b'{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "run-j'
HTML = {"Content-Type": "text/html"}


class Proxy:
    """Stands between a client and the cluster: hands on, or answers as `answer` says."""

    def __init__(self, it: FakeCluster) -> None:
        self._it = it
        self.answer: Callable[[Request], Answer] | None = None
        self.calls = 0
        self._server = Server(self._handle)

    async def _handle(self, request: Request) -> Answer:
        self.calls += 1
        return (
            await self._it.server.handle(request) if self.answer is None else self.answer(request)
        )

    async def __aenter__(self) -> Api:
        await self._server.start()
        url = f"http://127.0.0.1:{self._server.port}"
        self._api = Api(httpx2.AsyncClient(base_url=url, trust_env=False, verify=False), "default")
        return self._api

    async def __aexit__(self, *_: object) -> None:
        await self._api.close()
        await self._server.stop()


class Heard:
    """A listener and what it has heard."""

    def __init__(self, api: Api) -> None:
        self.wishes: list[tuple[str, bool]] = []
        self.words: list[str] = []
        told = self.wishes.append
        self.sizes: list[tuple[str, int]] = []
        self.updates: list[UpdateJob] = []
        heard = Wishes(
            *(api, "run", lambda by, now: told((by, now)), self.words.append),
            lambda by, nodes: self.sizes.append((by, nodes)),
            self.updates.append,
        )
        self.task = asyncio.create_task(heard.hear())


Story = Callable[[FakeCluster, Proxy, Api, Heard], Awaitable[None]]
GENTLY, NOW = ("holdfast stop", False), ("holdfast stop", True)


def heard(story: Story, *, wish: str = "") -> None:
    async def play() -> None:
        async with cluster(machines=0) as it:
            put(it, wish)
            proxy = Proxy(it)
            async with proxy as api:
                there = Heard(api)
                await story(it, proxy, api, there)
                assert not there.task.done(), "it goes on for ever"
                there.task.cancel()
                await asyncio.gather(there.task, return_exceptions=True)

    asyncio.run(play())


def put(it: FakeCluster, wish: str = "") -> None:
    marks = {STOP: wish} if wish else {}
    it.store.create(CONFIG_MAPS, "default", {"metadata": {"name": "run-job", "annotations": marks}})


def wish(it: FakeCluster, text: str | None) -> None:
    def edit(body: dict[str, dict[str, dict[str, str]]]) -> None:
        marks = body["metadata"].setdefault("annotations", {})
        marks.pop(STOP, None)
        if text is not None:
            marks[STOP] = text

    it.store.change(CONFIG_MAPS, "default", "run-job", edit)


@pytest.fixture
def _never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes, "LOOK_S", 3600.0)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (client, watch):
        monkeypatch.setattr(module, "PAUSE_S", 0.001)
        monkeypatch.setattr(module, "PAUSE_MAX_S", 0.05)


async def watched(it: FakeCluster) -> None:
    await it.until(lambda: ("watch", "configmaps") in it.server.calls)


@pytest.mark.usefixtures("_never_looks")
def test_a_wish_is_heard_by_the_watch_and_once() -> None:
    async def story(it: FakeCluster, _: Proxy, api: Api, there: Heard) -> None:
        await watched(it)
        assert there.wishes == []
        await ask_to_stop(api, "run", now=False)
        await it.until(lambda: there.wishes == [GENTLY])
        await api.patch(CONFIG_MAPS, "run-job", {"data": {"other": "x"}})
        await ask_to_stop(api, "run", now=True)
        await it.until(lambda: len(there.wishes) > 1)
        assert there.wishes == [GENTLY, NOW]

    heard(story)


@pytest.mark.usefixtures("_never_looks")
def test_an_update_is_heard_whole_and_nonsense_never() -> None:
    order = UpdateJob(by="me", id="x", code="a" * 64, sets={"lr": "0.1"}, when="now", canary=True)

    async def story(it: FakeCluster, _: Proxy, api: Api, there: Heard) -> None:
        await watched(it)
        for nonsense in ("{}", '{"type":"UpdateJob","by":"me","id":"y","code":"../x"}', "no JSON"):
            marks = {"metadata": {"annotations": {UPDATE: nonsense}}}
            await api.patch(CONFIG_MAPS, "run-job", marks)
        await ask_to_update(api, "run", order)
        await it.until(lambda: there.updates == [order])

    heard(story)


@pytest.mark.usefixtures("_never_looks")
def test_a_number_of_nodes_is_heard_once_and_nonsense_never() -> None:
    async def story(it: FakeCluster, _: Proxy, api: Api, there: Heard) -> None:
        await watched(it)
        await ask_to_scale(api, "run", 3)
        await it.until(lambda: there.sizes == [("holdfast scale", 3)])
        for nonsense in ("many", "-1", "²", "9" * 25, "9" * 5000):
            marks = {"metadata": {"annotations": {SCALE: nonsense}}}
            await api.patch(CONFIG_MAPS, "run-job", marks)
        await ask_to_scale(api, "run", 4)
        await it.until(lambda: len(there.sizes) > 1)
        assert [nodes for _, nodes in there.sizes] == [3, 4] and there.wishes == []

    heard(story)


@pytest.mark.usefixtures("_never_looks")
def test_each_word_of_somebody_who_wants_stacks_is_heard_once_and_stops_nothing() -> None:
    async def story(it: FakeCluster, _: Proxy, api: Api, there: Heard) -> None:
        await watched(it)
        for word in ("a", "b"):
            await api.patch(CONFIG_MAPS, "run-job", {"metadata": {"annotations": {STACKS: word}}})
            await api.patch(CONFIG_MAPS, "run-job", {"data": {"other": word}})
            await it.until(lambda word=word: word in there.words)  # type: ignore[misc]
        assert (there.words, there.wishes) == (["a", "b"], [])

    heard(story)


@pytest.mark.parametrize(("text", "expected"), [("gently", GENTLY), ("now", NOW)])
def test_a_wish_waits_for_a_controller(text: str, expected: tuple[str, bool]) -> None:
    async def story(it: FakeCluster, _: Proxy, __: Api, there: Heard) -> None:
        await it.until(lambda: there.wishes)
        await watched(it)
        assert there.wishes == [expected]

    heard(story, wish=text)


def test_a_wish_that_was_taken_back_may_come_again() -> None:
    async def story(it: FakeCluster, _: Proxy, __: Api, there: Heard) -> None:
        await it.until(lambda: there.wishes)
        told = it.server.told
        wish(it, None)
        await it.until(lambda: it.server.told > told)
        wish(it, "gently")
        await it.until(lambda: len(there.wishes) == 2)
        assert there.wishes == [GENTLY, GENTLY]

    heard(story, wish="gently")


def test_a_wish_is_heard_without_a_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes, "LOOK_S", 0.05)

    async def story(it: FakeCluster, _: Proxy, __: Api, there: Heard) -> None:
        it.server.access.denied |= {("watch", "configmaps"), ("list", "configmaps")}
        it.http.drop()
        wish(it, "now")
        await it.until(lambda: there.wishes)
        assert there.wishes == [NOW]

    heard(story)


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data
    raise CutError


def _cut(_: Request) -> Answer:
    raise CutError


ANSWERS: dict[str, Callable[[Request], Answer]] = {
    "a page": lambda _: Answer(200, PAGE, HTML),
    "a page of an error": lambda _: Answer(502, PAGE, HTML),
    "half an object": lambda _: Answer(200, HALF),
    "half an object, cut": lambda _: Answer(200, _pieces(HALF)),
    "nothing": lambda _: Answer(200, b""),
    "another shape": lambda _: Answer(200, b'{"kind": "Status", "metadata": {"annotations": [1]}}'),
    "no object": lambda _: Answer(200, b"[1, 2]"),
    "no text": lambda _: Answer(200, b"\xff\xfe\x00"),
    "false zip": lambda _: Answer(200, b"xx", {"Content-Encoding": "gzip"}),
    "another place": lambda _: Answer(302, b"", {"Location": "/login"}),
    "a closed connection": _cut,
}


@pytest.mark.parametrize("what", ANSWERS)
def test_what_a_proxy_says_ends_nothing_and_is_said_once(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wishes, "LOOK_S", 0.01)

    async def story(it: FakeCluster, proxy: Proxy, _: Api, there: Heard) -> None:
        await watched(it)
        proxy.answer, before = ANSWERS[what], proxy.calls
        await it.until(lambda: proxy.calls > before + 20)
        assert there.wishes == []
        wish(it, "gently")
        proxy.answer = None
        await it.until(lambda: there.wishes)
        assert there.wishes == [GENTLY]

    heard(story)
    assert capsys.readouterr().err.count("stop requests cannot be read now") == 1


def test_an_api_that_hangs_is_asked_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wishes, "LOOK_S", 0.05)
    monkeypatch.setattr(wishes, "CALL_S", 0.2)

    async def story(it: FakeCluster, proxy: Proxy, _: Api, there: Heard) -> None:
        async def silence() -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        proxy.answer, before = lambda _: Answer(200, silence()), proxy.calls
        await it.until(lambda: proxy.calls > before + 3)
        proxy.answer = None
        wish(it, "now")
        await it.until(lambda: there.wishes)
        assert there.wishes == [NOW]

    heard(story)
    err = capsys.readouterr().err
    assert "stop requests cannot be read now: the API does not answer\n" in err


def test_a_job_without_a_file_has_no_wishes_until_it_is_there() -> None:
    async def story(it: FakeCluster, _: Proxy, api: Api, there: Heard) -> None:
        await watched(it)
        await api.delete(CONFIG_MAPS, "run-job")
        with pytest.raises(NotFoundError):
            await api.get(CONFIG_MAPS, "run-job")
        put(it, "gently")
        await it.until(lambda: there.wishes == [GENTLY])

    heard(story)


def test_a_controller_may_hear_the_wishes_of_its_own_job_only() -> None:
    """As Kubernetes grants them: a list or a watch of one name needs the right to that name."""

    async def play() -> None:
        async with cluster(machines=0) as it:
            for body in access.objects(asked(namespace="default")):
                await it.api().apply(body)
            put(it)
            account = it.server.access
            user = rbac.token("default", "run-controller")
            for verb in ("list", "watch"):
                wished = {
                    name: account.allows(user, rbac.Wish(verb, "", "configmaps", "default", name))
                    for name in ("run-job", "other-job", "")
                }
                assert wished == {"run-job": True, "other-job": False, "": False}
            api = it.api(account="run-controller")
            there = Heard(api)
            await watched(it)
            wish(it, "now")
            await it.until(lambda: there.wishes == [NOW])
            there.task.cancel()
            await asyncio.gather(there.task, return_exceptions=True)
            await api.close()

    asyncio.run(play())
