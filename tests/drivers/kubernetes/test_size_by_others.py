"""A size that others give the object of an engine does not last."""

import asyncio
from typing import Any

import pytest

from holdfast.controller import Limits
from holdfast.drivers.kubernetes import engine_size
from holdfast.drivers.kubernetes.cluster import Kind
from holdfast.drivers.kubernetes.engine_size import EngineSize
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.roster import Roster
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.test_roster import state


class OneJob:
    """A cluster with a Job of some size."""

    namespace = "default"

    def __init__(self) -> None:
        self.size, self.calls = 4, list[str]()

    async def get(self, _kind: Kind, _name: str) -> Body:
        """The Job."""
        self.calls.append("get")
        return {"spec": {"completions": self.size}}

    async def patch(self, _kind: Kind, _name: str, patch: Body) -> Body:
        """Another size."""
        self.calls.append("patch")
        assert patch["spec"]["completions"] == patch["spec"]["parallelism"]
        self.size = patch["spec"]["completions"]
        return {}


def sized(cluster: Any) -> EngineSize:
    request = asked("job", nodes={"count": 4}, elasticity={"min_nodes": 2, "max_nodes": 4})
    known = state()
    known.limits = Limits.of(request.job)
    return EngineSize(cluster, request, known, Roster(known))


def test_a_size_that_somebody_else_has_given_it_does_not_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        cluster = OneJob()
        size = sized(cluster)
        await size._settle()
        assert cluster.calls == ["get"], "it is as it should be"
        cluster.size = 2
        await size._settle()
        assert cluster.calls == ["get"], "it is not read at every line of the journal"
        monkeypatch.setattr(engine_size, "KNOWN_S", 0.0)
        await size._settle()
        assert (cluster.size, cluster.calls[1:]) == (4, ["get", "patch"])

    asyncio.run(story())
    assert "Job run: from 2 to 4 pods" in capsys.readouterr().err
