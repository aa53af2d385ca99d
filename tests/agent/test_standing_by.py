"""A node of replicas takes part again once its workers only need their ranks, and not before."""

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.fork_protocol import ChildKind
from holdfast.agent.standing_by import StandingBy


class Offer:
    """Who tells the controller of a store."""

    def __init__(self) -> None:
        self.held = 0
        self.warm = True
        self.told = 0

    def hold(self) -> None:
        self.held += 1

    def release(self) -> None:
        self.held -= 1

    def tell_again(self) -> None:
        self.told += 1


class Control:
    """The socket of a warm worker."""

    def __init__(self) -> None:
        self.at = ""

    def waits_at(self) -> str:
        return self.at


def node(mode: str = "replicas", kind: ChildKind = ChildKind.RUN) -> Any:
    """One of two workers, of which one is parked, and one is being made ready."""
    workers = SimpleNamespace(
        count=2,
        warm_kind=kind,
        table={1: SimpleNamespace(local_rank=0, is_parked=True)},
        warm={local: SimpleNamespace(control=Control()) for local in (0, 1)},
    )
    tasks: list[Any] = []
    return SimpleNamespace(
        job=SimpleNamespace(recovery=SimpleNamespace(mode=mode)),
        offer=Offer(),
        end=SimpleNamespace(begun=False),
        tasks=SimpleNamespace(start=tasks.append, made=tasks),
        processes=SimpleNamespace(ready=True, workers=workers, warm_up=lambda: None),
    )


def finish(parts: Any) -> None:
    """What was started, which has not to wait any more."""
    for task in parts.tasks.made:
        with pytest.raises(StopIteration):
            task.send(None)


def test_it_is_held_back_until_each_worker_is_parked_or_waits_for_its_rank() -> None:
    parts = node()
    standing = StandingBy(parts)
    standing.hold_back()
    standing.hold_back()
    assert parts.offer.held == 1 and len(parts.tasks.made) == 1
    parts.processes.workers.warm[1].control.at = "join()"
    finish(parts)
    assert parts.offer.held == 0
    standing.hold_back()
    assert parts.offer.held == 0, "it stands"


def test_a_worker_that_fails_above_join_is_to_show_why_in_an_attempt() -> None:
    parts = node()
    StandingBy(parts).hold_back()
    del parts.processes.workers.warm[1]
    finish(parts)
    assert parts.offer.held == 0


def test_a_node_that_comes_is_told_of_at_once_and_again_when_it_is_warm() -> None:
    parts = node("processes")
    standing = StandingBy(parts)
    standing.tell_when_warm(lambda: False)
    assert (parts.offer.held, parts.offer.warm) == (0, False)
    standing.tell_when_warm(lambda: False)
    assert len(parts.tasks.made) == 1, "the forkserver has died, and is back"
    parts.processes.workers.warm[1].control.at = "join()"
    finish(parts)
    assert (parts.offer.warm, parts.offer.told) == (True, 1)


def test_one_that_has_a_rank_is_not_asked_any_more() -> None:
    parts = node("processes")
    StandingBy(parts).tell_when_warm(lambda: True)
    finish(parts)
    assert (parts.offer.warm, parts.offer.told) == (True, 0)


def test_where_workers_do_not_run_ahead_a_node_is_warm_at_once() -> None:
    parts = node("processes", ChildKind.WAIT)
    StandingBy(parts).tell_when_warm(lambda: False)
    assert (parts.offer.warm, parts.tasks.made) == (True, [])


@pytest.mark.parametrize(
    ("mode", "kind"), [("in_process", ChildKind.RUN), ("replicas", ChildKind.WAIT)]
)
def test_otherwise_nobody_is_held_back(mode: str, kind: ChildKind) -> None:
    parts = node(mode, kind)
    StandingBy(parts).hold_back()
    assert parts.offer.held == 0
