"""A pod that was given up is taken away, however often that has to be asked for."""

import asyncio
from unittest.mock import AsyncMock, Mock

import pytest

from holdfast.actions import Fence
from holdfast.controller import Limits
from holdfast.controller.state import State
from holdfast.drivers.kubernetes import removal
from holdfast.drivers.kubernetes.cluster import ApiError, DeniedError
from holdfast.drivers.kubernetes.removal import Removal
from holdfast.drivers.kubernetes.roster import Roster
from tests.drivers.kubernetes.seen import pod
from tests.patience import PATIENCE_S

FENCE = Fence(node="uid-run-0", reason="silent")


class PodWorld:
    """One pod, and an API that answers each request for its end in turn."""

    def __init__(self, *answers: bool | ApiError | None, fenced: bool = False) -> None:
        self.roster = Roster(State(limits=Limits(node_count=1)))
        self.roster.see(pod())
        self._answers = iter(answers)
        self.asked: list[str] = []
        self.cluster = Mock(evict=self._evict, delete=self._delete)
        machines = Mock(fenced=AsyncMock(return_value=fenced))
        self.removal = Removal(self.cluster, self.roster, machines, Mock(glance=AsyncMock()))

    async def _evict(self, _name: str, *, uid: str, grace_s: int) -> bool:
        """None: it is said to have been evicted, and was not."""
        assert uid == "uid-run-0" and grace_s == 1
        self.asked.append("evict")
        answer = next(self._answers)
        if isinstance(answer, ApiError):
            raise answer
        if answer:
            self.roster.see(pod(leaving=True))
        return answer is not False

    async def _delete(self, _kind: object, _name: str, *, uid: str, grace_s: int) -> None:
        assert uid == "uid-run-0"
        self.asked.append(f"delete {grace_s}")
        self.roster.see(pod(leaving=True)) if grace_s else self.roster.lose(pod())

    async def to_the_end(self) -> list[str]:
        self.removal.remove(FENCE)
        async with asyncio.timeout(PATIENCE_S):
            while self.roster.pods:
                await asyncio.sleep(0.001)
        await self.removal.close()
        return self.asked


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "FENCED_S", 0.001)
    monkeypatch.setattr(removal, "RETRY_S", 0.001)


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ((True,), ["evict", "delete 0"]),
        ((False,), ["evict", "delete 1", "delete 0"]),
        ((ApiError(500, "InternalError", "etcd"), True), ["evict", "evict", "delete 0"]),
        ((None, True), ["evict", "evict", "delete 0"]),
        ((DeniedError(403, "Forbidden", "pods/eviction"),), ["evict", "delete 1", "delete 0"]),
    ],
)
def test_a_pod_is_asked_to_go_until_it_does_and_forced_where_nothing_runs_any_more(
    answers: tuple[bool | ApiError | None, ...], asked: list[str]
) -> None:
    assert asyncio.run(PodWorld(*answers, fenced=True).to_the_end()) == asked


def test_a_pod_that_goes_is_neither_asked_again_nor_forced_where_something_may_run() -> None:
    async def story() -> list[str]:
        world = PodWorld(True)
        world.removal.remove(FENCE)
        async with asyncio.timeout(PATIENCE_S):
            while world.removal._machines.fenced.await_count < 3:  # type: ignore[attr-defined]
                await asyncio.sleep(0.001)
        world.roster.lose(pod())
        await world.to_the_end()
        return world.asked

    assert asyncio.run(story()) == ["evict"]


@pytest.mark.parametrize(
    ("restarts", "state", "blamed", "stays"),
    [
        (1, None, False, True),
        (1, None, True, False),
        (1, {"waiting": {"reason": "CrashLoopBackOff"}}, False, False),
        (0, None, False, False),
    ],
)
def test_a_pod_in_which_the_next_agent_begins_stays_unless_its_machine_is_to_blame(
    restarts: int, state: dict[str, object] | None, *, blamed: bool, stays: bool
) -> None:
    async def story() -> None:
        world = PodWorld(True, fenced=True)
        world.roster.restarts.joined("uid-run-0")
        world.roster.see(pod(restarts=restarts, state=state))
        world.removal.keep = Mock(side_effect=lambda work: work.close())  # type: ignore[method-assign]
        world.removal._machines.leave = AsyncMock()  # type: ignore[method-assign]
        world.removal.remove(Fence(node="uid-run-0", reason="r", blamed=blamed))
        assert (world.removal.keep.call_count == 0) == stays
        assert world.removal._machines.leave.call_count == int(blamed), "and only then"

    asyncio.run(story())
