"""What the controller makes belongs to the job's ConfigMap, or to what that belongs to."""

import asyncio
from typing import Any

import pytest

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS
from holdfast.drivers.kubernetes.origin import Origin, first_origin, origin
from tests.drivers.kubernetes.cluster.fake import FakeCluster, cluster
from tests.drivers.kubernetes.cluster.faults import Fault

ABOVE = {"apiVersion": "v1", "kind": "ConfigMap", "name": "above"}


def home(it: FakeCluster, **said: Any) -> str:
    """Make the job's ConfigMap, below another one where something is said of it; its UID."""
    owners = []
    if said:
        above = it.store.create(CONFIG_MAPS, "default", {"metadata": {"name": "above"}})
        owners = [{**ABOVE, "uid": above["metadata"]["uid"], **said}]
    meta = {"name": "run-job", "ownerReferences": owners}
    return str(it.store.create(CONFIG_MAPS, "default", {"metadata": meta})["metadata"]["uid"])


def found(**said: Any) -> tuple[str, Origin]:
    async def story() -> tuple[str, Origin]:
        async with cluster(machines=0) as it:
            uid, api = home(it, **said), it.api()
            try:
                return uid, await origin(api, "run")
            finally:
                await api.close()

    return asyncio.run(story())


def test_a_job_without_an_owner_is_its_config_map() -> None:
    uid, seen = found()
    assert seen.run == seen.owner["uid"] == uid
    assert seen.owner["kind"] == "ConfigMap" and seen.of_pods["controller"] is True


def test_the_owner_of_the_config_map_is_taken_without_what_would_need_rights() -> None:
    uid, seen = found(controller=True, blockOwnerDeletion=True)
    assert seen.run == uid and seen.owner.pop("uid") != uid
    assert seen.owner == ABOVE


def test_one_that_only_refers_to_it_is_no_owner() -> None:
    uid, seen = found(controller=False)
    assert seen.owner["uid"] == uid


@pytest.mark.parametrize("code", [404, 503])
def test_it_is_waited_for(code: int) -> None:
    async def story() -> None:
        async with cluster(machines=0) as it:
            uid, api = home(it), it.api()
            it.faults.add(Fault("get", "configmaps", code, times=1))
            assert (await first_origin(api, "run")).run == uid
            await api.close()

    asyncio.run(story())
