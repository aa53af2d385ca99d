"""The queue of keys that are due: one at a time, never lost, slower after failures."""

import asyncio

from holdfast.operator.queue import FIRST_S, LAST_S, PACE_S, Queue


def test_a_key_is_worked_on_by_one_and_again_if_news_came_meanwhile() -> None:
    async def live() -> None:
        queue: Queue[str] = Queue()
        queue.add("a")
        queue.add("a")
        assert await queue.take() == "a"
        queue.add("a")
        other = asyncio.create_task(queue.take())
        await asyncio.sleep(0)
        assert not other.done()
        began = asyncio.get_running_loop().time()
        queue.done("a", None)
        assert await other == "a"
        assert asyncio.get_running_loop().time() - began > PACE_S / 2
        queue.done("a", None)
        assert not queue._due

    asyncio.run(live())


def test_failures_wait_longer_and_longer_up_to_a_limit_until_one_works() -> None:
    async def live() -> None:
        queue: Queue[str] = Queue()
        waits = [queue.failed("a") for _ in range(12)]
        assert waits[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
        assert waits[-1] == LAST_S
        queue.done("a", None)
        assert queue.failed("a") == FIRST_S

    asyncio.run(live())


def test_another_key_need_not_wait_for_one_that_failed() -> None:
    async def live() -> None:
        queue: Queue[str] = Queue()
        queue.failed("a")
        queue.add("b")
        async with asyncio.timeout(FIRST_S / 2):
            assert await queue.take() == "b"
        queue.forget("a")
        assert "a" not in queue._due

    asyncio.run(live())
