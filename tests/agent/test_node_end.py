"""How a node ends: by whose word, with what exit status, and never by a fault that nobody sees."""

import asyncio

import pytest

from holdfast.agent.node_end import NodeEnd
from holdfast.agent.tasks import AgentTasks
from holdfast.messages import Leave


def test_the_order_of_the_controller_decides_the_exit_status_even_if_it_comes_late() -> None:
    async def ends() -> None:
        end = NodeEnd(let_go=5, broken=6)
        assert (end.begun, end.status) == (False, 5)
        end.ask(3.0)
        end.obey(Leave(reason="over", exit_code=0))
        assert (await end.asked(), end.status, end.dismissed) == (3.0, 0, True)

    asyncio.run(ends())


def test_a_fault_while_the_node_ends_anyway_is_not_what_it_ends_with() -> None:
    async def ends() -> None:
        end = NodeEnd(let_go=5, broken=6)
        end.ask(0.0)
        end.fail("too late")
        assert end.status == 5
        broken = NodeEnd(let_go=5, broken=6)
        broken.fail("in time")
        assert (broken.begun, broken.status) == (True, 6)

    asyncio.run(ends())


def test_a_task_that_fails_ends_the_node() -> None:
    said: list[str] = []

    async def fails() -> None:
        raise ValueError("broken")

    async def main() -> None:
        tasks = AgentTasks(said.append)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        tasks.start(fails())
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert said == ["ValueError: broken"]


def test_so_does_a_callback(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []

    async def main() -> None:
        AgentTasks(said.append).watch_callbacks()
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert said == ["internal error: ZeroDivisionError('integer division or modulo by zero')"]
    assert "ZeroDivisionError" in caplog.text


def test_tasks_that_are_cancelled_at_the_end_are_no_failures() -> None:
    said: list[str] = []

    async def main() -> None:
        tasks = AgentTasks(said.append)
        tasks.start(asyncio.Event().wait())  # type: ignore[arg-type]
        await tasks.cancel()

    asyncio.run(main())
    assert not said
