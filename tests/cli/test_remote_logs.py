"""Lines that come from pods one by one, and the quiet between them."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, cast

from holdfast.cli.cluster import Session
from holdfast.cli.remote_logs import _stepped
from holdfast.drivers.kubernetes.remote_logs import Printed


class Loop:
    """A session without a cluster."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner

    def do(self, call: Coroutine[Any, Any, Any], _what: str = "") -> Any:
        return self._runner.run(call)


def test_a_quiet_moment_is_told_and_loses_no_line() -> None:
    more: list[asyncio.Event] = []

    async def printed() -> AsyncIterator[str]:
        more.append(asyncio.Event())
        yield "one"
        yield "two"
        await more[0].wait()
        yield "three"

    async def go_on() -> None:
        more[0].set()

    with asyncio.Runner() as runner:
        session = Loop(runner)
        lines = cast(AsyncIterator[Printed], printed())
        found: Iterator[Any] = _stepped(cast(Session, session), lines, "logs", 0.01)
        assert [next(found) for _ in range(5)] == ["one", "two", None, None, None]
        session.do(go_on())
        assert [line for line in found if line is not None] == ["three"]


def test_what_still_waits_for_a_line_is_given_up_before_the_connection_is() -> None:
    told = list[str]()

    async def printed() -> AsyncIterator[str]:
        try:
            await asyncio.Event().wait()
            yield "never"
        finally:
            told.append("reading has ended")

    with asyncio.Runner() as runner:
        lines = cast(AsyncIterator[Printed], printed())
        found = _stepped(cast(Session, Loop(runner)), lines, "logs", 0.01)
        assert next(found) is None and told == []
        found.close()
        assert told == ["reading has ended"]
