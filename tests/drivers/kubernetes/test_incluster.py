"""A controller takes the place of one that is silent, and one that waits ends when it is told."""

import asyncio
import os
import signal

import pytest

from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import PODS
from holdfast.drivers.kubernetes.incluster import end_by_signal, remove_former
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.playing import playing
from tests.drivers.kubernetes.test_api import pod


def test_the_pod_of_the_one_before_is_removed_and_no_other() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(pod("a"))
        await api.create(pod("b"))
        await remove_former(api, "a")
        await it.until(lambda: it.store.find(PODS, "default", "a") is None)
        await remove_former(api, "a")
        await remove_former(api, "")
        assert it.store.find(PODS, "default", "b") is not None

    playing(act)


def test_a_pod_that_cannot_be_removed_holds_up_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        it.server.access.denied.add(("delete", "pods"))
        await remove_former(api, "a")

    playing(act)
    assert "pod a cannot be removed" in capsys.readouterr().err


def test_a_signal_ends_a_controller_that_only_waits() -> None:
    """Whoever is the first process of a container has no other way to go."""

    async def wait() -> None:
        end_by_signal()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(wait())
