"""The examples of other frameworks as manifests, by their own engine and by plain pods."""

import pytest

from holdfast.drivers.kubernetes.manifests.checks import problems
from holdfast.drivers.kubernetes.manifests.render import render
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.spec.cluster import Engine
from holdfast.spec.load import job_as_written
from tests.tidy.source import ROOT

OWN: dict[str, Engine] = {
    "jax": "jaxjob", "tensorflow": "tfjob", "xgboost": "xgboostjob", "mpi": "mpijob"
}  # fmt: skip


@pytest.mark.parametrize("framework", OWN)
@pytest.mark.parametrize("own", [True, False])
def test_an_example_is_rendered_with_agents(framework: str, own: bool) -> None:
    job = job_as_written(ROOT / "examples" / framework / "job.yaml")
    request = Request(job, OWN[framework] if own else "pods", "managed", "team")
    assert list(problems(request)) == []
    documents = render(request)
    assert documents
