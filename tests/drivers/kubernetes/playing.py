"""A story told to a cluster of the tests and a client of it, both gone at its end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.drivers.kubernetes.api import Api
from tests.drivers.kubernetes.cluster.fake import FakeCluster, cluster

T = TypeVar("T")


def playing(
    story: Callable[[FakeCluster, Api], Awaitable[T]], machines: int = 0, **options: Any
) -> T:
    """What the story returns; `options` are those of `cluster`."""

    async def whole() -> T:
        async with cluster(machines=machines, **options) as it:
            api = it.api()
            try:
                return await story(it, api)
            finally:
                await api.close()

    return asyncio.run(whole())
