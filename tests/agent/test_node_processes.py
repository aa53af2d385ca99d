"""The agent reaps what nobody else does, and has time for other things."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from holdfast.agent import processes
from holdfast.agent.node_processes import REAPED_AT_ONCE, NodeProcesses
from holdfast.agent.processes import ProcessExit


def test_orphans_that_end_without_end_leave_others_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by hand: a script whose processes fork others and end, all the time, kept the agent so
    busy that it sent no heartbeat, and the node was lost."""
    reaped = list[ProcessExit]()

    def endless(_: object) -> Iterator[ProcessExit]:
        while True:
            reaped.append(ProcessExit(1 + len(reaped), 0, None, 0.0))
            yield reaped[-1]

    monkeypatch.setattr(processes, "reap", endless)
    node = NodeProcesses.__new__(NodeProcesses)
    storage = SimpleNamespace(pid=0)
    node.__dict__.update(_orphans={}, forkserver=None, _fallen=None, storage=storage)

    async def story() -> None:
        node.reap()
        assert len(reaped) == REAPED_AT_ONCE
        while len(reaped) == REAPED_AT_ONCE:  # the others follow
            await asyncio.sleep(0.001)

    asyncio.run(story())
