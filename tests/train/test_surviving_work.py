"""What gloo never ends is ended once nothing can arrive any more, and not before."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.train.surviving_work import SurvivingWork, UnderWay, WorkOutcome

GONE = RuntimeError("gloo/transport: the connection was closed")


class Forgotten:
    """An operation that gloo says nothing of."""

    def __init__(self) -> None:
        self.future: torch.futures.Future[Any] = torch.futures.Future()

    def get_future(self) -> Any:
        return self.future

    def is_completed(self) -> bool:
        return False


class Message(Forgotten):
    """One that can only be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def get_future(self) -> Any:
        raise RuntimeError("Work::getFuture not implemented.")

    def wait(self) -> None:
        self.waits.wait()


def begun(work: Any, conclude: Callable[[RuntimeError | None], None]) -> SurvivingWork:
    """As a group begins it; the connections are closed from another thread."""
    under_way = UnderWay()
    outcome = WorkOutcome(work, conclude)
    under_way.add(outcome)
    looks = iter([True, True, False])
    under_way.forsake(lambda: next(looks, False), GONE)
    return SurvivingWork([7], under_way, outcome)


def test_it_counts_as_failed_once_the_connections_are_closed() -> None:
    heard: list[Any] = []
    assert begun(Forgotten(), heard.append).wait()
    assert begun(Forgotten(), heard.append).get_future().wait() == 7
    message = Message()
    assert begun(message, heard.append).wait()
    message.waits.set()
    assert heard == [GONE, GONE, GONE]


def test_what_gloo_has_ended_before_is_told_once() -> None:
    heard: list[Any] = []
    work = Forgotten()
    under_way, open_ = UnderWay(), threading.Event()
    outcome = WorkOutcome(work, heard.append)
    under_way.add(outcome)
    under_way.forsake(lambda: not open_.wait(), GONE)
    work.future.set_result(None)
    assert SurvivingWork([7], under_way, outcome).wait()
    open_.set()
    assert heard == [None]


def test_what_the_conclusion_raises_is_raised_to_who_waits() -> None:
    def refuse(_error: RuntimeError | None) -> None:
        raise ValueError("in the script's setup it is an error")

    work = begun(Forgotten(), refuse)
    with pytest.raises(ValueError, match="in the script's setup"):
        work.wait()
    with pytest.raises(RuntimeError, match="in the script's setup"):  # as the reducer hears it
        work.get_future().wait()
