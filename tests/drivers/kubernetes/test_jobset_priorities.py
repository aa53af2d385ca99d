"""A priority below 0, with which JobSet could make no pod, is refused before anything is made."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import PRIORITIES
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.drivers.kubernetes.submit import rehearse, submit
from holdfast.errors import Error
from holdfast.spec.cluster import Engine
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.cluster.kinds import JOB_SETS
from tests.drivers.kubernetes.playing import playing
from tests.drivers.kubernetes.test_doctor import bad, seen
from tests.drivers.kubernetes.test_submit import ours

TOLD = "scheduling.spare_priority_class: low has value -10, and pods of engine jobset need 0"


def request(engine: Engine = "jobset", name: str = "low") -> Request:
    scheduling: dict[str, Any] = {"spare_priority_class": name}
    nodes = {"count": 2, "spares": 1}
    return asked(engine, namespace="default", nodes=nodes, scheduling=scheduling)


def classes(it: FakeCluster) -> None:
    for name, value in (("low", -10), ("zero", 0)):
        it.store.create(PRIORITIES, "", {"metadata": {"name": name}, "value": value})


def test_spares_below_zero_are_refused_and_nothing_is_made() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        classes(it)
        with pytest.raises(Error, match=TOLD):
            await submit(api, request(), replace=True)
        with pytest.raises(Error, match=TOLD):
            await rehearse(api, request())
        assert ours(it) == set()
        told = [c for c in (await seen(api, request()))[PRIORITIES.kind] if not c.ok]
        assert [c.found.startswith(TOLD) for c in told] == [True]

    playing(story, images={})


@pytest.mark.parametrize(
    ("engine", "name"), [("jobset", "zero"), ("jobset", "gone"), ("pods", "low"), ("job", "low")]
)
def test_what_can_be_made_or_is_not_known_is_left_to_the_cluster(engine: Engine, name: str) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        classes(it)
        await submit(api, request(engine, name))
        assert (it.store.find(JOB_SETS, "default", "run") is not None) == (engine == "jobset")
        assert (PRIORITIES.kind in bad(await seen(api, request(engine, name)))) == (name == "gone")

    playing(story, images={})


def test_without_the_right_to_see_classes_nothing_is_refused() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        classes(it)
        it.server.access.denied.add(("get", "priorityclasses"))
        await submit(api, request())
        assert it.store.find(JOB_SETS, "default", "run") is not None

    playing(story, images={})
