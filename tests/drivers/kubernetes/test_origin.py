"""What the controller makes belongs to the job's ConfigMap, or to what that belongs to."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS
from holdfast.drivers.kubernetes.origin import JobOrigin, first_origin, origin
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.drivers.kubernetes.playing import playing

ABOVE = {"apiVersion": "v1", "kind": "ConfigMap", "name": "above"}


def home(it: FakeCluster, **said: Any) -> str:
    """Make the job's ConfigMap, below another one where something is said of it; its UID."""
    owners = []
    if said:
        above = it.store.create(CONFIG_MAPS, "default", {"metadata": {"name": "above"}})
        owners = [{**ABOVE, "uid": above["metadata"]["uid"], **said}]
    meta = {"name": "run-job", "ownerReferences": owners}
    return str(it.store.create(CONFIG_MAPS, "default", {"metadata": meta})["metadata"]["uid"])


def found(**said: Any) -> tuple[str, JobOrigin]:
    async def story(it: FakeCluster, api: Api) -> tuple[str, JobOrigin]:
        return home(it, **said), await origin(api, "run")

    return playing(story)


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
    async def story(it: FakeCluster, api: Api) -> None:
        uid = home(it)
        it.faults.add(Fault("get", "configmaps", code, times=1))
        assert (await first_origin(api, "run")).run == uid

    playing(story)
