"""A node has its data sets before it has workers, whatever happens while they are fetched."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.agent.datasets import handle as datasets_handle
from holdfast.agent.datasets.handle import MAX_FRUITLESS, DatasetsHandle
from holdfast.datasets.cache import Cache
from holdfast.datasets.fetch import FetchNews
from holdfast.events import NodePreparing, NodeReady
from holdfast.spec import job_from_dict
from tests.agent.conftest import Node, node
from tests.agent.controller_stub import running, until
from tests.checkpoint.faults import Answer, Silence
from tests.datasets.conftest import MANIFEST, Site, contents, some_bytes, sums

__all__ = ["node"]

READ = """
import os
from holdfast.datasets.place import dataset
folder = dataset("my-tokens")
assert folder == os.environ["HOLDFAST_DATA_MY_TOKENS"]
print(sorted(os.listdir(folder)), len(open(folder + "/a.bin", "rb").read()), flush=True)
"""


def job(site: Site, **changes: object) -> dict[str, Any]:
    """The sections of a job with that data set, which is read without S3's client: each process
    would load that anew."""
    cache = {"folder": str(site.cache)}
    given = {"name": "my-tokens", "source": site.web, "manifest": MANIFEST, "cache": cache}
    return {"datasets": [{**given, **changes}]}


def put(site: Site, **files: bytes) -> dict[str, bytes]:
    """These, and their manifest."""
    site.put(**files, **{MANIFEST: sums(files)})
    return files


@pytest.mark.slow
def test_workers_find_the_whole_data_set_and_the_next_attempt_reads_nothing(
    site: Site, node: Node
) -> None:
    site.put(**{"a.bin": some_bytes(1, 70_000), "b.bin": b"b"})
    by_s3 = {"source": site.place, "endpoint": site.endpoint, "manifest": None}
    controller, agent = node(READ, **job(site, **by_s3))
    controller.ready()
    for attempt in (1, 2):
        store = controller.wait_for(NodeReady).store
        controller.start(attempt, store)
        assert controller.exited(attempt).exit_code == 0, agent.log(attempt=attempt)
        assert agent.log(attempt=attempt) == "['a.bin', 'b.bin'] 70000\n"
        controller.stop(attempt)
    assert site.reads == 2
    said = [event.what for event in controller.of_kind(NodePreparing)]
    assert said[0].startswith("data set my-tokens: ")
    assert said[-1] == "starting its worker processes", "nothing waits for data any more"
    assert "data set my-tokens: is ready" in agent.words()


@pytest.mark.slow
def test_nodes_of_two_jobs_at_once_fetch_it_once(
    site: Site,
    home: Path,
    nothing_left: None,  # noqa: ARG001
) -> None:
    files = put(site, **{f"{n}.bin": some_bytes(n, 1000) for n in range(8)})
    with (
        running(home / "jobs" / "one", READ, **job(site)) as (first, one),
        running(home / "jobs" / "two", READ, **job(site)) as (second, two),
    ):
        first.ready()
        second.ready()
        for agent in (one, two):
            assert contents(agent.home / "datasets" / "my-tokens") == files
        assert not Cache(site.cache).remove(*Cache(site.cache).whole())  # both use it
    assert site.reads == 8
    assert until(lambda: Cache(site.cache).remove(*Cache(site.cache).whole()), "leases are gone")


@pytest.mark.slow
def test_a_fetch_that_is_killed_goes_on_where_it_was_and_workers_wait(
    site: Site, node: Node
) -> None:
    files = put(site, **{f"{n}.bin": some_bytes(n, 1000) for n in range(8)})
    site.fault, site.reads_before_fault = Silence(), 4
    controller, agent = node("print('up')", **job(site))
    until(lambda: site.reads > 4, "the fetch is in its middle")
    until(lambda: len(contents(_part(site))) >= 4, "four files are there")
    pids = [pid for pid in agent.family() if b"agent.datasets" in _command(pid)]
    assert len(pids) == 1
    site.fault = None
    os.kill(pids[0], signal.SIGKILL)
    assert not controller.of_kind(NodeReady)
    controller.ready()
    assert contents(agent.home / "datasets" / "my-tokens") == files
    assert "has died; restarting it" in agent.words()
    again = site.reads - 4
    assert again <= 8  # those under way, twice; the first four, never again


@pytest.mark.slow
def test_a_source_that_is_away_is_told_until_it_is_back(site: Site, node: Node) -> None:
    put(site, **{"a.bin": b"a"})
    site.away = Answer(403, "AccessDenied")
    controller, agent = node("print('up')", **job(site))
    told = until(
        lambda: [e for e in controller.of_kind(NodePreparing) if not e.moved], "it is told"
    )
    assert "error[dataset-unavailable]" in told[0].what and "403" in told[0].what
    until(lambda: agent.words().count("listing the files") == 1, "the rest is no news")
    until(lambda: len(site.asked) > 3, "it is tried again")
    moves = [event.moved for event in controller.of_kind(NodePreparing)]
    assert moves == [True, False]  # trying again is no progress: the job must not wait for ever
    assert not controller.of_kind(NodeReady)
    assert not (agent.home / "datasets").exists()
    site.away = None
    controller.ready()
    assert contents(agent.home / "datasets" / "my-tokens") == {"a.bin": b"a"}


@pytest.mark.slow
def test_fetching_again_what_is_not_wanted_is_no_progress(site: Site, node: Node) -> None:
    put(site, **{"a.bin": b"a"})
    controller, agent = node("print('up')", **job(site, sha256="0" * 64))
    until(lambda: site.reads >= 3, "it is fetched again and again")
    told = [event for event in controller.of_kind(NodePreparing) if not event.moved]
    assert "error[dataset-mismatch]" in told[0].what
    first = controller.of_kind(NodePreparing).index(told[0])
    assert not any(event.moved for event in controller.of_kind(NodePreparing)[first:])
    assert Cache(site.cache).whole() == {}
    assert not (agent.home / "datasets").exists()


@pytest.mark.slow
def test_the_fetch_ends_with_its_agent(
    site: Site,
    home: Path,
    nothing_left: None,  # noqa: ARG001
) -> None:
    put(site, **{"a.bin": b"a"})
    site.fault = Silence()
    with running(home, "print('up')", **job(site)) as (_, agent):
        until(lambda: site.reads, "the fetch is in its middle")
        agent.process.kill()
        until(lambda: not [p for p in agent.family() if b"datasets" in _command(p)], "it ends")
    assert Cache(site.cache).whole() == {}


def _part(site: Site) -> Path:
    found = list(site.cache.glob("*.part"))
    return found[0] / "data" if found else site.cache


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _memory_ends(handle: DatasetsHandle, at: int) -> None:
    """What a process says that fetches up to this part and is killed."""
    words = [FetchNews(name="my-tokens", text="listing the files of the source")]
    words += [
        FetchNews(name="my-tokens", text=f"{part} of 20 GB fetched", moved=True, part=part)
        for part in range(at + 1)
    ]
    for news in words:
        assert handle._hear(msgspec.json.encode(news), [])


def test_a_fetch_that_is_killed_at_the_same_place_each_time_makes_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the OOM killer: the job must not wait for ever. A part is a thousandth: 20 MB here,
    and gigabytes of a large set, which may be all that one process brings."""
    told: list[NodePreparing] = []
    source = {"name": "my-tokens", "source": "https://data.example/my-tokens"}
    wanted = job_from_dict({"name": "one", "script": "t.py", "datasets": [source]}, where="test")
    handle = DatasetsHandle(wanted, tmp_path, tmp_path, {"HOLDFAST_NODE": "n"}, told.append)
    ends = [3, *[3] * MAX_FRUITLESS, 3, 3, 5, 5]
    moves: list[bool] = []

    async def one_process() -> None:
        told.clear()
        _memory_ends(handle, ends[len(moves)])
        moves.append(any(event.moved for event in told))
        if len(moves) == len(ends):
            raise asyncio.CancelledError

    monkeypatch.setattr(handle, "_one_process", one_process)
    monkeypatch.setattr(datasets_handle, "AGAIN_S", 0.0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(handle.fetch(lambda: None))
    assert moves == [True, *[True] * MAX_FRUITLESS, False, False, True, True]
