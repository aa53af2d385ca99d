"""The page of a cluster: what controllers publish there, to whoever the cluster lets see it."""

import asyncio
import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import recorded_job
from holdfast.dashboard import controller_figures
from holdfast.dashboard.cluster import Inquiry
from holdfast.dashboard.cluster_site import POD_LINES, ClusterSite
from holdfast.dashboard.job_record import LOG_LINES
from holdfast.dashboard.tokens import Tokens
from holdfast.drivers import records
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, JOBS, ApiError
from holdfast.drivers.kubernetes.record import Recorded
from holdfast.drivers.kubernetes.remote import Look, look
from holdfast.drivers.kubernetes.submit import submit
from holdfast.errors import Error
from holdfast.history.answers import JSON_BYTES, require_answer
from holdfast.status import Goodput
from tests.browser.serving import ServedPage
from tests.dashboard.publishing import published
from tests.drivers.kubernetes.cluster.fake import FakeCluster, in_thread
from tests.drivers.kubernetes.seen import pod
from tests.drivers.kubernetes.test_queued import NEWEST, NO_QUOTA, QUEUED, workload
from tests.drivers.kubernetes.test_remote_troubles import a_status
from tests.drivers.kubernetes.test_submit import asked, play
from tests.patience import PATIENCE_S, until
from tests.warm import holdfast, program

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture
def it() -> Iterator[FakeCluster]:
    """A cluster."""
    with in_thread() as made:
        yield made


def test_a_job_of_a_cluster_is_shown_as_one_of_this_machine(
    it: FakeCluster, tmp_path: Path
) -> None:
    folder = tmp_path / "gpt"
    recorded_job.record(folder, days=0.5, nodes=2, until=time.time(), rate=2000.0)
    asyncio.run(published(it, folder))
    config = str(it.do(lambda it: it.kubeconfig()))
    (tmp_path / "tmp").mkdir()
    page = ServedPage("--on", "kubernetes", KUBECONFIG=config, TMPDIR=str(tmp_path / "tmp"))
    try:
        told = json.loads(page.ask("/api/jobs/gpt")[1])
        here = records.goodput(folder, time.time())
        assert told["status"]["job"] == "gpt"
        assert len(told["incidents"]) == len(records.incidents(folder, time.time())) > 0
        assert told["goodput"]["buckets"]["productive"] == here.buckets["productive"]
        assert json.loads(page.ask("/api/fleet")[1])["jobs"][0]["job"] == "gpt"
        assert json.loads(page.ask("/api/jobs/gpt/incidents/1")[1])["incident"]["id"] == 1
        assert json.loads(page.ask("/api/jobs/gpt/log/0")[1])["lines"] == []
        silent = page.ask("/api/jobs/gpt/figures/curve/0/end/100")
        assert silent[0] == 500 and "controller-silent" in silent[1]
        assert page.ask("/api/jobs/other")[0] == 404
        _another_of_that_name(it, page)
        assert list((tmp_path / "tmp").iterdir()), "there are copies of journals"
    finally:
        page.close()
    assert page.process.returncode == 0 and not list((tmp_path / "tmp").iterdir())


def _another_of_that_name(it: FakeCluster, page: ServedPage) -> None:
    """The job is deleted, and one of its name submitted whose controller says nothing yet."""

    def replaced(it: FakeCluster) -> None:
        file = it.store.get(CONFIG_MAPS, "default", "gpt-job")
        for body in it.store.all(CONFIG_MAPS, "default"):
            it.store.delete(CONFIG_MAPS, "default", body["metadata"]["name"], grace_s=0)
        it.server.skew_s += 60.0
        meta = {"name": "gpt-job", "labels": file["metadata"]["labels"]}
        it.store.create(CONFIG_MAPS, "default", {"metadata": meta, "data": file["data"]})

    it.do(replaced)
    assert until(lambda: "record-incomplete" in page.ask("/api/jobs/gpt")[1])
    assert page.ask("/api/jobs/gpt/incidents/1")[0] == 500, "of the one before nothing is shown"


def test_a_report_of_a_job_of_a_cluster_is_that_of_its_folder(
    it: FakeCluster, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, page = tmp_path / "gpt", tmp_path / "gpt.html"
    recorded_job.record(folder, days=0.5, nodes=2, until=time.time(), rate=2000.0)
    asyncio.run(published(it, folder))
    monkeypatch.setenv("KUBECONFIG", str(it.do(lambda it: it.kubeconfig())))
    words = ("report", "gpt", "--on", "kubernetes", "--json", "--html", str(page))
    there = program("tests.cli.few_worlds", *words)
    assert there.returncode == 0, there.stderr
    found = json.loads(there.stdout)
    here = records.goodput(folder, time.time())
    assert found["goodput"]["buckets"]["productive"] == here.buckets["productive"]
    assert len(found["incidents"]) == len(records.incidents(folder, time.time())) > 0
    assert found["setup"]["engine"] == "pods" and found["changes"]["worlds_count"] > 0
    assert "does not return its figures" in found["curve_missing"]
    assert "There is no curve" in page.read_text()
    missing = holdfast("report", "other", "--on", "kubernetes")
    assert missing.returncode == 4 and missing.stderr.startswith("error[job-not-found]")
    assert not (home / "jobs").exists()


def test_a_job_that_kueue_holds_back_quotes_it_on_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = "queue research of Kueue to admit 2 nodes"

    async def seen(cluster: Api, name: str, **_: object) -> Look:
        nothing = Goodput(job="run", wall_s=0, ettr=0, ettr_1h=0, buckets={}, observed=False)
        recorded = Recorded(a_status(waits), incidents=(), goodput=nothing)
        return replace(await look(cluster, name), record=recorded)

    monkeypatch.setattr("holdfast.dashboard.cluster_site.look", seen)
    mirror = tmp_path / "run"
    mirror.mkdir()
    (mirror / records.JOURNAL).touch()

    async def story(it: FakeCluster, api: Api) -> None:
        await submit(api, asked("job", **QUEUED))
        it.server.kinds.add(NEWEST)
        owner = (await api.get(JOBS, "run"))["metadata"]["uid"]
        held = workload(("QuotaReserved", "False", NO_QUOTA), uid=owner)
        it.store.create(NEWEST, "default", held)
        line, told = Inquiry(api, asyncio.get_running_loop()), list[str | None]()
        for denied in (set[tuple[str, str]](), {("list", "workloads")}):
            it.server.access.denied.update(denied)
            found = await asyncio.to_thread(ClusterSite(line, mirror).status)
            assert found is not None
            told.append(found.waiting_for)
        assert told == [f"{waits}; Kueue: {NO_QUOTA}", waits]

    play(story, machines=0)


def test_output_of_a_rank_is_read_from_its_pod_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which only the end is asked for, and only the end of that is told."""
    read = list[tuple[str, int | None]]()

    async def log(pod: str, *, tail: int | None, **_: object) -> AsyncIterator[str]:
        read.append((pod, tail))
        for n in range(2 * LOG_LINES):
            yield f"[rank {n % 2}] line {n} of {pod}"

    async def seen(*_: object, **__: object) -> Look:
        pods = tuple(pod(f"gpt-{n}") for n in range(3))
        return Look("gpt", None, 0.0, None, pods, kept=True, at=0.0)

    async def none_kept(*_: object) -> list[object]:
        return []

    monkeypatch.setattr("holdfast.dashboard.cluster_site.look", seen)
    monkeypatch.setattr("holdfast.drivers.kubernetes.remote_logs.kept_logs", none_kept)
    cluster = SimpleNamespace(namespace="default", log=log)

    async def story(node: str | None) -> list[str]:
        line = Inquiry(cluster, asyncio.get_running_loop())  # type: ignore[arg-type]
        site = ClusterSite(line, tmp_path / "gpt")
        return (await asyncio.to_thread(site.output, 1, None, node)).lines

    lines = asyncio.run(story("gpt-1"))
    assert read == [("gpt-1", POD_LINES)]
    assert len(lines) == LOG_LINES and lines[-1] == f"line {2 * LOG_LINES - 1} of gpt-1"
    read.clear()
    assert len(asyncio.run(story(None))) == LOG_LINES, "no more is kept of many pods"
    assert len(read) == 3


class Behind:
    """What has got behind the Service of a controller: it says one thing, to whoever connects."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, says: Iterable[bytes], *, stays: bool = False
    ) -> None:
        self.asked: list[str] = []
        self._says, self._stays = says, stays
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        monkeypatch.setattr(socket, "getaddrinfo", self._found)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _found(self, host: str, *_: object, **__: object) -> list[Any]:
        self.asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", self.port))]

    def _answer(self) -> None:
        try:
            line, _ = self._server.accept()
        except OSError:  # nobody has come
            return
        with line, contextlib.suppress(OSError):
            line.recv(4096)
            for piece in self._says:
                line.sendall(piece)
            while self._stays and line.recv(4096):
                pass

    def why(self, folder: Path, path: str) -> str:
        """Why the page has no such figures; nobody else may have been asked."""

        async def story() -> Error:
            line = Inquiry(SimpleNamespace(namespace="default"), asyncio.get_running_loop())  # type: ignore[arg-type]
            with pytest.raises(Error) as raised:
                await asyncio.to_thread(ClusterSite(line, folder / "gpt").figures, path)
            return raised.value

        try:
            told = asyncio.run(story())
        finally:
            self._server.shutdown(socket.SHUT_RDWR)
            self._thread.join(PATIENCE_S)
            self._server.close()
        assert told.slug == "controller-silent" and self.asked == ["gpt-controller.default"]
        return told.why


OK = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = OK[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"
HEAD = b'{"ranks":4,"at":[1.0],"span_s":[1.0],"attempt":[1]}'


@pytest.mark.parametrize(
    ("path", "says", "why"),
    [
        ("curve/0/end/100", [b"nonsense\r\n\r\n"], "nonsense"),
        ("curve/0/end/100", [b"half a head"], "its answer cannot be read"),
        ("curve/0/end/100", [OK, b"<html>sign in</html>"], "its answer cannot be read"),
        ("curve/0/end/100", [OK, b'{"first":0,"last":9,"step":"x"}'], "Expected `array`"),
        ("ranks/late/best", [OK, HEAD + b"\n1234567"], "7 bytes are not the values of 4 ranks"),
        ("ranks/late/best", [OK, HEAD.replace(b"4", b"-4", 1) + b"\n"], "cannot be read"),
        ("ranks/late/best", [CHUNKED, b"34\r\n", HEAD, b"\n\r\n2\r\nab\r\n0\r\n"], "2 bytes"),
        ("ranks/late/best", [CHUNKED, b"x\r\n"], "its answer cannot be read"),
        ("curve/0/end/100", [b"HTTP/1.1 302 Found\r\nLocation: http://other/\r\n\r\n"], "302"),
        ("curve/0/end/100", itertools.chain([OK], itertools.repeat(b"1" * 65536)), "more than 1 M"),
    ],
)  # fmt: skip
def test_what_is_no_answer_of_a_controller_is_said_and_nobody_else_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, says: Iterable[bytes], why: str
) -> None:
    monkeypatch.setattr(controller_figures, "FIGURES_BYTES", 1 << 20)
    assert why in Behind(monkeypatch, says).why(tmp_path, path)


@pytest.mark.timeout(60)  # it takes half a second; some minutes where each chunk copies the rest
def test_an_answer_in_the_smallest_chunks_holds_nobody_up() -> None:
    count = 1 << 19
    whole = controller_figures._joined(b"1\r\nx\r\n" * count + b"0\r\n\r\n")
    assert whole == b"x" * count


@pytest.mark.parametrize("path", ["curve/0/end/100", "ranks/late/best"])
def test_numbers_that_would_fill_the_memory_of_the_page_are_not_read(path: str) -> None:
    at = [0] * (JSON_BYTES // 2)
    curve = {"first": 0, "last": 0, "step": [], "low": {}, "high": {}, "mean": {}}
    content = json.dumps({**curve, "ranks": 0, "at": at, "span_s": [], "attempt": []}).encode()
    with pytest.raises(ValueError, match="more than 8 MiB of JSON"):
        require_answer(path, content)


def test_a_controller_that_says_nothing_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_figures, "FIGURES_S", 0.1)
    behind = Behind(monkeypatch, (), stays=True)
    assert behind.why(tmp_path, "curve/0/end/100") == "no answer within 0.1 s"


def test_what_takes_too_long_is_not_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.dashboard.cluster.ANSWER_S", 0.05)
    ended = asyncio.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def story() -> None:
        cluster = SimpleNamespace(namespace="default")
        line = Inquiry(cluster, asyncio.get_running_loop())  # type: ignore[arg-type]
        with pytest.raises(Error, match="did not answer about jobs"):
            await asyncio.to_thread(line.ask, never(), "jobs")
        await asyncio.wait_for(ended.wait(), PATIENCE_S)

    asyncio.run(story())


class Reviews:
    """An API server that knows tokens: of one who may read all, of one who may read no logs, of
    one who may read nothing else."""

    namespace = "training"

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.silent = False

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        if self.silent:
            raise ApiError(0, "Unreachable", "no answer")
        spec = body["spec"]
        if body["kind"] == "TokenReview":
            known = {"ours": "anna", "theirs": "bert", "hers": "cleo"}.get(spec["token"])
            status = {"authenticated": known is not None, "user": {"username": known}}
        else:
            right = dict(spec["resourceAttributes"])
            assert right.pop("namespace") == "training" and right.pop("verb") == "get"
            maps = right == {"resource": "configmaps"}
            assert maps or right == {"resource": "pods", "subresource": "log"}
            status = {"allowed": spec["user"] in ("anna", "bert" if maps else "cleo")}
        return {"metadata": {}, "status": status}


def test_the_cluster_says_whose_token_may_see_the_page() -> None:
    reviews = Reviews()
    tokens = Tokens(reviews)  # type: ignore[arg-type]

    async def story() -> None:
        assert await tokens.verify("ours")
        assert not await tokens.verify("theirs") and not await tokens.verify("hers")
        assert not await tokens.verify("nobody's")
        assert not await tokens.verify("") and not await tokens.verify("x" * 100_000)
        count = len(reviews.asked)
        assert count == 9 and await tokens.verify("ours")
        assert len(reviews.asked) == count, "the answer is kept for a while"
        reviews.silent = True
        assert not await tokens.verify("another"), "nobody gets in while nobody can be asked"

    asyncio.run(story())
