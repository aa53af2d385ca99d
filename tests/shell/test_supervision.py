"""A duty that dies is said and started again; one that dies again and again ends its process."""

import asyncio

import pytest

from holdfast.shell import supervision
from holdfast.shell.supervision import (
    FIRST_PAUSE_S,
    LAST_PAUSE_S,
    TIMES,
    WITHIN_S,
    DutyError,
    Strikes,
    keep_running,
)


def test_pauses_grow_to_a_limit() -> None:
    strikes = Strikes()
    pauses = [strikes.failed(0.0) for _ in range(TIMES - 1)]
    assert pauses[0] == FIRST_PAUSE_S and pauses[1] == 2 * FIRST_PAUSE_S
    assert pauses[-1] == LAST_PAUSE_S
    assert pauses == sorted(pause for pause in pauses if pause is not None)


def test_a_duty_that_fails_at_once_each_time_is_given_up_whatever_its_pauses_take() -> None:
    strikes, now, failures = Strikes(), 0.0, 1
    while (pause_s := strikes.failed(now)) is not None:
        now += pause_s
        failures += 1
        assert failures <= TIMES, "its pauses hide how often it fails"
    assert failures == TIMES


def test_failures_that_are_long_ago_are_forgotten() -> None:
    strikes = Strikes()
    for failure in range(10 * TIMES):
        assert strikes.failed(failure * WITHIN_S) == FIRST_PAUSE_S


def test_a_duty_that_fails_or_ends_is_said_and_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.0)
    said: list[str] = []
    begun: list[int] = []

    async def story() -> None:
        goes_on = asyncio.Event()

        async def duty() -> None:
            begun.append(len(begun))
            if len(begun) == 1:
                raise OSError("no route")
            if len(begun) == 3:
                goes_on.set()
                await asyncio.Event().wait()

        running = asyncio.create_task(keep_running("watching", duty, said.append))
        await asyncio.wait_for(goes_on.wait(), 30)
        running.cancel()

    asyncio.run(story())
    assert said == [
        "watching failed and is restarted: OSError: no route",
        "watching failed and is restarted: it ended",
    ]


def test_a_duty_that_fails_too_often_is_an_error_with_the_last_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.0)
    said: list[str] = []

    async def duty() -> None:
        raise ValueError("again")

    with pytest.raises(DutyError, match=r"watching failed 10 times .*; last: ValueError: again"):
        asyncio.run(keep_running("watching", duty, said.append))
    assert len(said) == TIMES - 1
