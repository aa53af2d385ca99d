"""An agent has its workers profiled, and tells of each that cannot be; nothing is left of those."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.agent.profile_taking import FOLDER, ProfileTaking
from holdfast.agent.read_trace import TraceReading, found_in
from holdfast.page import Page
from holdfast.profile_slot import ProfileNotes
from holdfast.profiles import ProfileTaken, RankProfile, TakeProfile
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
    assert never.why == "it did not come to the end of a step within 0.1 s"
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
    assert superseded in ("another profile was asked for meanwhile", "it was taken back")
    assert dead == "its worker ended: signal 9" and site.left() == []
    site.profiler.give_up("the test is over")


@pytest.mark.parametrize("text", [b"", b"{}", b"no trace", b'{"traceEvents": 3}'])
def test_what_is_no_trace_is_refused_with_a_reason(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "t.json").write_bytes(text)
    notes = ProfileNotes(first_step=1, ends_ns=(0, 10**9))
    wanted = TraceReading(
        trace=str(tmp_path / "t.json"), folder=str(tmp_path), kept="t.gz", rank=0, node="n",
        notes=notes,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"."):
        found_in(wanted)
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
