"""A JobSet restarts a plain job as a whole and a managed one not at all."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.manifests.engines import job, jobset
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.spec.cluster import Mode
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.schemas import problems


def spec(mode: Mode = "managed", **keys: Any) -> Body:
    """The spec of the JobSet of such a job, which is accepted strictly."""
    [found] = jobset.bodies(asked("jobset", mode, **keys))
    assert problems(found) == []
    return dict(found["spec"])


def inner(mode: Mode = "managed", role: str = "node", **keys: Any) -> Body:
    """The spec of the Job for the pods of a role."""
    jobs = {each["name"]: each for each in spec(mode, **keys)["replicatedJobs"]}
    assert jobs[role]["replicas"] == 1
    return dict(jobs[role]["template"]["spec"])


SPARES: dict[str, Any] = {"nodes": {"count": 8, "spares": 2}}


def test_inside_a_managed_set_is_the_job_of_the_job_engine() -> None:
    [alone] = job.bodies(asked("job", **SPARES))
    for each in (found := inner(**SPARES), alone["spec"]):
        each["template"]["spec"]["containers"][0].pop("env")  # it names the engine
    assert found == alone["spec"]


def test_a_managed_set_never_restarts() -> None:
    assert spec(**SPARES)["failurePolicy"] == {"maxRestarts": 0}


def test_a_plain_set_restarts_as_a_whole_and_its_processes_do_not() -> None:
    keys: dict[str, Any] = {"nodes": 2, "recovery": {"max_restarts": 7}}
    assert spec("plain", **keys)["failurePolicy"] == {"maxRestarts": 7}
    found = inner("plain", **keys)
    assert found["backoffLimit"] == 0
    assert "--max-restarts=0" in found["template"]["spec"]["containers"][0]["command"]


@pytest.mark.parametrize("mode", ["managed", "plain"])
def test_the_time_limit_is_that_of_a_job_which_is_never_made_anew(mode: Mode) -> None:
    keys: dict[str, Any] = {"lifetime": {"time_limit_s": 60}, "recovery": {"max_restarts": 0}}
    assert inner(mode, **keys)["activeDeadlineSeconds"] == 60
    assert spec(mode, **keys)["failurePolicy"] == {"maxRestarts": 0}


def test_the_first_pod_has_the_name_that_a_set_gives_it() -> None:
    found = inner("plain", nodes=2)["template"]["spec"]
    assert "--rdzv-endpoint=run-node-0-0.run:29400" in found["containers"][0]["command"]
    network = spec("plain", nodes=2)["network"]
    assert (network["subdomain"], network["publishNotReadyAddresses"]) == ("run", True)


def test_spares_with_a_priority_of_their_own_are_a_second_job_of_the_set() -> None:
    keys: dict[str, Any] = {**SPARES, "scheduling": {"spare_priority_class": "low"}}
    nodes, spares = inner(**keys), inner(role="spare", **keys)
    assert (nodes["completions"], spares["completions"]) == (8, 2)
    assert spares["template"]["spec"]["priorityClassName"] == "low"
    assert spec(**keys)["successPolicy"] == {"operator": "All"}


@pytest.mark.parametrize("mode", ["managed", "plain"])
def test_suspension_and_time_to_live_are_the_sets(mode: Mode) -> None:
    found = spec(mode, lifetime={"suspend": True, "keep_s": 9})
    assert (found["suspend"], found["ttlSecondsAfterFinished"]) == (True, 9)
    assert not {"suspend", "ttlSecondsAfterFinished"} & found["replicatedJobs"][0].keys()
