"""New pods keep off the machines that their job has left, whatever these are labelled with."""

import asyncio

import pytest

from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.left_machines import Machines
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.playing import playing
from tests.drivers.kubernetes.test_api import pod

EITHER = [
    {"matchExpressions": [{"key": "pool", "operator": "Exists"}]},
    {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["m-9"]}]},
]


@pytest.mark.parametrize("alternatives", [[], EITHER])
def test_a_pod_starts_on_the_machine_that_was_not_left(alternatives: list[object]) -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        machines = Machines(api, asked("pods", nodes=2))
        await asyncio.gather(*(machines.leave(name, "a fault") for name in ("m-0", "m-1")))
        body = pod()
        if alternatives:
            required = {"nodeSelectorTerms": alternatives}
            node = {"requiredDuringSchedulingIgnoredDuringExecution": required}
            body["spec"]["affinity"] = {"nodeAffinity": node}
        await api.create(machines.avoided(body))
        placed = await it.until(lambda: it.pods()[0]["spec"].get("nodeName"))
        assert placed == "m-2"

    playing(act, machines=3)


def test_a_pod_of_a_job_that_has_left_none_is_as_it_was() -> None:
    body = pod()
    assert Machines(Api.__new__(Api), asked("pods")).avoided(body) is body
