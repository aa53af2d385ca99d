"""A node of replicas takes part again once its workers only need their ranks, and not before."""

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent import standing_by
from holdfast.agent.fork_protocol import ChildKind
from holdfast.agent.standing_by import StandingBy


class Offer:
    """Who tells the controller of a store."""

    def __init__(self) -> None:
        self.held = 0

    def hold(self) -> None:
        self.held += 1

    def release(self) -> None:
        self.held -= 1


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


def test_a_node_that_comes_while_the_others_train_is_a_spare_once_its_workers_stand() -> None:
    parts = node("processes")
    StandingBy(parts).hold_back(joins=True)
    assert parts.offer.held == 1
    parts.processes.workers.warm[1].control.at = "join()"
    finish(parts)
    assert parts.offer.held == 0


def test_but_one_that_takes_longer_than_two_minutes_is_counted_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = node("processes")
    monkeypatch.setattr(standing_by, "JOINS_S", 0.0)
    StandingBy(parts).hold_back(joins=True)
    finish(parts)
    assert parts.offer.held == 0


@pytest.mark.parametrize(
    ("mode", "kind"), [("in_process", ChildKind.RUN), ("replicas", ChildKind.WAIT)]
)
def test_otherwise_nobody_is_held_back(mode: str, kind: ChildKind) -> None:
    parts = node(mode, kind)
    StandingBy(parts).hold_back()
    assert parts.offer.held == 0
