"""An agent has its workers profiled, and tells of each that cannot be; nothing is left of those."""

import asyncio
import contextlib
import gzip
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from holdfast.agent import profile_taking
from holdfast.agent.profile_taking import FOLDER, ProfileTaking
from holdfast.agent.read_trace import TraceReading, found_in
from holdfast.page import Page
from holdfast.profile_slot import ProfileNotes
from holdfast.profiles import (
    AUTOMATIC,
    ProfileTaken,
    RankProfile,
    TakeProfile,
    TakeTracePart,
    TracePart,
)
from holdfast.step_profile import StepProfiler


@contextlib.contextmanager
def nothing_said() -> Iterator[None]:
    yield


class Site:
    """A node with one worker of rank 3 in attempt 2, which trains in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.page = folder, Page(Page.create())
        self.profiler = StepProfiler(self.page.profile, nothing_said)
        self.told: list[ProfileTaken] = []
        self.death: Any = None
        worker: Any = SimpleNamespace(
            page=self.page, pid=1, death=None, assignment=SimpleNamespace(rank=3)
        )
        worker.acts_in = lambda attempt: attempt == 2 and self.death is None
        self.worker = worker
        self.job = SimpleNamespace(uses_torch=True)
        parts: Any = SimpleNamespace(
            job=self.job, node="n-1", controller=SimpleNamespace(answer=self.told.append)
        )
        run = SimpleNamespace(workers={3: worker})
        attempts: Any = SimpleNamespace(shown=run)
        self.taking = ProfileTaking(parts, attempts, "n", folder)

    @asynccontextmanager
    async def training(self) -> AsyncIterator[None]:
        async def train() -> None:
            step = 0
            while True:
                step += 1
                torch.ones(3, 3).mm(torch.ones(3, 3))
                self.page.optimizer_stepped(step, 1.0, 0.01)
                self.profiler.step_ended(step)
                await asyncio.sleep(0.005)

        task = asyncio.create_task(train())
        await asyncio.sleep(0)
        try:
            yield
        finally:
            task.cancel()

    async def take(self, name: str = "a1", steps: int = 2, within_s: float = 60.0) -> RankProfile:
        await self.taking.obey(
            TakeProfile(id=name, attempt=2, ranks=(3,), steps=steps, within_s=within_s)
        )
        [found] = self.told.pop().found
        return found

    def left(self) -> list[str]:
        return sorted(p.name for p in (self.folder / FOLDER).rglob("*") if p.is_file())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_trace_is_read_compressed_and_kept_until_the_next(site: Site) -> None:
    async def story() -> list[RankProfile]:
        async with site.training():
            return [await site.take("a1"), await site.take("a2", steps=1)]

    first, second = asyncio.run(story())
    assert (first.why, first.rank, first.node, first.steps, first.device) == ("", 3, "n", 2, "cpu")
    assert first.trace == "profiles/a1/rank-3.json.gz" and first.stalled_s > 0
    assert any(one.name == "aten::mm" for one in first.top)
    assert site.left() == ["rank-3.json.gz"] and not (site.folder / first.trace).exists()
    kept = json.loads(gzip.decompress((site.folder / second.trace).read_bytes()))
    assert kept["holdfast"]["rank"] == 3 and len(kept["holdfast"]["ends_ns"]) == 2
    assert len(kept["traceEvents"]) == second.events


def test_a_trace_is_handed_out_in_parts_and_nothing_else_is(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_taking, "TRACE_PART_BYTES", 3)
    told = list[TracePart]()
    monkeypatch.setattr(site.taking._parts.controller, "answer", told.append)
    there = tmp_path / FOLDER / "a1"
    there.mkdir(parents=True)
    (there / "rank-3.json.gz").write_bytes(b"trace")
    (there / "rank-4.json.gz").mkdir()

    def part(offset: int, rank: int = 3) -> TracePart:
        name = f"profiles/a1/rank-{rank}.json.gz"
        asyncio.run(site.taking.hand_out(TakeTracePart(trace=name, offset=offset)))
        assert (told[-1].trace, told[-1].offset) == (name, offset)
        return told[-1]

    assert [(part(at).data, part(at).size) for at in (0, 3, 9)] == [
        (b"tra", 5),
        (b"ce", 5),
        (b"", 5),
    ]
    assert "another profile was taken meanwhile" in part(0, 7).why
    assert "it is a folder" in part(0, 4).why
    asyncio.run(site.taking.hand_out(TakeTracePart(trace="")))
    assert told[-1].why == "it has no name"


def test_who_cannot_be_profiled_is_told_of_at_once(site: Site) -> None:
    async def why() -> str:
        return (await site.take()).why

    assert "no step of it was seen" in asyncio.run(why())
    site.page.optimizer_stepped(1, 1.0, 0.1)
    site.job.uses_torch = False
    assert asyncio.run(why()) == "it does not train with PyTorch"
    site.death = SimpleNamespace(words="signal 9")
    assert asyncio.run(why()) == "its worker has ended"
    site.worker.assignment.rank = 5
    assert asyncio.run(why()) == "its node has no worker of this rank"
    assert site.left() == [] and site.page.profile.wanted == 0


def test_steps_that_take_too_long_are_given_up_and_the_worker_trains_on(site: Site) -> None:
    async def story() -> tuple[RankProfile, RankProfile, RankProfile]:
        async with site.training():
            late = await site.take(steps=50, within_s=0.1)
            again = await site.take("a2", steps=1)
        return late, again, await site.take("a3", within_s=0.1)

    late, again, never = asyncio.run(story())
    assert late.why.endswith("within 0.1 s") and again.why == ""
    assert never.why == "it did not complete a step within 0.1 s"
    assert site.left() == []


def test_a_worker_that_dies_or_is_asked_anew_leaves_nothing(site: Site) -> None:
    async def story() -> list[str]:
        async with site.training():
            first = asyncio.create_task(site.taking._found(order("a1")))
            await asked(1)
            second = asyncio.create_task(site.taking._found(order("a2")))
            await asked(2)
            (superseded,) = await first
            site.worker.death = site.death = SimpleNamespace(words="signal 9")
            (dead,) = await second
            return [superseded.why, dead.why]

    async def asked(number: int) -> None:
        while site.page.profile.wanted != number:
            await asyncio.sleep(0.001)

    def order(name: str) -> TakeProfile:
        return TakeProfile(id=name, attempt=2, ranks=(3,), steps=50, within_s=60.0)

    superseded, dead = asyncio.run(story())
    assert superseded in ("another profile was requested meanwhile", "it was cancelled")
    assert dead == "its worker ended: signal 9" and site.left() == []
    site.profiler.give_up("the test is over")


@pytest.mark.parametrize("text", [b"", b"{}", b"no trace", b'{"traceEvents": 3}'])
def test_what_is_no_trace_is_refused_with_a_reason(tmp_path: Path, text: bytes) -> None:
    wanted = traced(tmp_path, text)
    with pytest.raises(ValueError, match=r"."):
        found_in(wanted)
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def traced(folder: Path, text: bytes) -> TraceReading:
    (folder / "t.json").write_bytes(text)
    notes = ProfileNotes(first_step=1, ends_ns=(0, 10**9))
    return TraceReading(
        trace=str(folder / "t.json"), folder=str(folder), kept="t.gz", rank=0, node="n",
        notes=notes,
    )  # fmt: skip


def test_a_trace_that_takes_too_much_memory_is_refused_and_no_worker_ends(tmp_path: Path) -> None:
    wanted = traced(tmp_path, b'{"traceEvents": [' + b" " * (64 << 20) + b"]}")
    code = (
        "import sys; from holdfast.agent import read_trace; read_trace.MEMORY_BYTES = 32 << 20; "
        "read_trace.main(sys.argv[1])"
    )
    words = [sys.executable, "-c", code, msgspec.json.encode(wanted).decode()]
    done = subprocess.run(words, capture_output=True, check=True)
    told = msgspec.json.decode(done.stdout, type=RankProfile)
    assert "takes more than 32 MiB; profile fewer steps" in told.why
    assert list(tmp_path.iterdir()) == []


def test_traces_of_a_node_are_read_one_at_a_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, most = 0, 0

    async def read(_self: ProfileTaking, asked: Any, _notes: ProfileNotes) -> RankProfile:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(5):
            await asyncio.sleep(0)
        under_way -= 1
        return RankProfile(rank=asked.rank)

    async def answered(*_: Any) -> ProfileNotes:
        return ProfileNotes()

    monkeypatch.setattr(ProfileTaking, "_read", read)
    monkeypatch.setattr(profile_taking, "_answer", answered)
    monkeypatch.setattr(ProfileTaking, "_worker", lambda *_: site.worker)
    order = TakeProfile(id="a1", attempt=2, ranks=(3, 4, 5), steps=1)
    found = asyncio.run(site.taking._found(order))
    assert [one.rank for one in found] == [3, 4, 5] and most == 1


def test_a_full_disk_is_told_of_before_anybody_is_asked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_taking, "FREE_BYTES", 1 << 60)
    found = asyncio.run(site.take())
    assert "MiB left for traces" in found.why and site.page.profile.wanted == 0


def test_an_answer_that_is_no_text_and_a_rank_without_a_file_are_told_of_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = site.page.profile
    slot.tell(1, ProfileNotes(why="ab"))
    slot._answer[:9] = b'{"why":"\xff'
    assert (notes := slot.answer_to(1)) is not None and "cannot be read" in notes.why

    async def one(_self: Any, _order: TakeProfile, rank: int, place: Path) -> RankProfile:
        if rank == 3:
            for ending in ("", ".tmp", ".part"):
                (place / f"rank-3.json{ending}").touch()
            raise OSError("no such device")
        return RankProfile(rank=rank)

    monkeypatch.setattr(ProfileTaking, "_one", one)
    order = TakeProfile(id="a1", attempt=2, ranks=(3, 4), steps=1)
    broken, whole = asyncio.run(site.taking._found(order))
    assert (broken.why, whole.why) == ("its node: no such device", "") and site.left() == []


def test_what_a_reader_says_that_is_no_text_is_told_of(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def said(*_: Any) -> bytes:
        return b'{"rank":3,"why":"\xff"}'

    async def story() -> RankProfile:
        async with site.training():
            return await site.take()

    monkeypatch.setattr(profile_taking, "output_of", said)
    assert "its trace could not be read" in asyncio.run(story()).why and site.left() == []


def test_an_automatic_profile_removes_no_trace_that_somebody_has_asked_for(site: Site) -> None:
    async def kept(*names: str) -> list[str]:
        for name in names:
            await site.take(name)
        return sorted(path.name for path in (site.folder / FOLDER).iterdir())

    first, second = AUTOMATIC + "1-step-4", AUTOMATIC + "2-step-9"
    assert asyncio.run(kept("a1", first, second)) == ["a1", second]
    assert asyncio.run(kept("a2")) == ["a2"]


def test_a_process_that_uses_a_gpu_of_which_nothing_was_seen_is_refused(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 5}
    wanted = traced(tmp_path, json.dumps({"traceEvents": [event]}).encode())
    assert found_in(wanted).device == "cpu"
    on_gpu = msgspec.structs.replace(wanted.notes, cuda=True)
    with pytest.raises(ValueError, match="access to CUPTI was denied, or another profiler uses it"):
        found_in(msgspec.structs.replace(wanted, notes=on_gpu))
    kernel = {**event, "cat": "kernel"}
    wanted = traced(tmp_path, json.dumps({"traceEvents": [event, kernel]}).encode())
    assert found_in(msgspec.structs.replace(wanted, notes=on_gpu)).device == "cuda"
