"""A whole rendering: its parts fit each other, whatever the engine."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.lint.spots import File
from holdfast.drivers.kubernetes.manifests.checks.frameworks import PLAIN
from holdfast.drivers.kubernetes.manifests.names import ROLE
from holdfast.drivers.kubernetes.manifests.render import as_text, render, requested
from holdfast.drivers.kubernetes.manifests.request import NEWEST, Body, Request
from holdfast.drivers.kubernetes.manifests.support.protection import KEPT, kept_count
from holdfast.drivers.kubernetes.pods import MAIN
from holdfast.spec.cluster import ENGINES, Engine, Mode
from tests.drivers.kubernetes.asking import asked, job

CASES: list[tuple[Engine, Mode, dict[str, Any]]] = [
    *(
        (engine, "managed", {"nodes": {"count": 4, "spares": 2 * (engine != "rayjob")}})
        for engine in ENGINES
    ),
    *((engine, "plain", {"nodes": 4, "framework": PLAIN[engine][0]}) for engine in ENGINES),
    ("tfjob", "plain", {"nodes": 4, "framework": "tensorflow", "roles": {"ps": 2, "chief": True}}),
    ("trainjob", "plain", {"nodes": 4, "framework": "mpi"}),
    ("volcano", "plain", {"nodes": 4, "framework": "mpi"}),
    ("job", "plain", {"sweep": {"trials": 20, "parallel": 5}}),
    (
        "jobset",
        "managed",
        {"nodes": {"count": 4, "spares": 2}, "scheduling": {"spare_priority_class": "spare"}},
    ),
]


def request(engine: Engine, mode: Mode, keys: dict[str, Any]) -> Request:
    more: dict[str, Any] = {"schedule": {"cron": "@daily"}} if engine == "cronjob" else {}
    return asked(engine, mode, **keys, **more)


def pods(bodies: list[Body]) -> list[tuple[dict[str, str], int]]:
    """Labels of every kind of pod, and how many of it there are."""
    return [(spot.body["metadata"]["labels"], spot.pods) for spot in File(bodies).pods]


@pytest.mark.parametrize(("engine", "mode", "keys"), CASES)
def test_the_budget_counts_the_pods_that_there_are(
    engine: Engine, mode: Mode, keys: dict[str, Any]
) -> None:
    asked_for = request(engine, mode, keys)
    if (engine, mode) == ("cronjob", "managed"):
        return  # its pods come of the submission
    counted = sum(count for labels, count in pods(render(asked_for)) if labels[ROLE] in KEPT)
    assert counted == kept_count(asked_for)


@pytest.mark.parametrize(("engine", "mode", "keys"), CASES)
def test_the_container_of_a_pod_is_known_by_its_name(
    engine: Engine, mode: Mode, keys: dict[str, Any]
) -> None:
    """Whatever a cluster adds, a kubelet lists all of them by their names."""
    for spot in File(render(request(engine, mode, keys))).pods:
        ours = [one["name"] for one in spot.body["spec"]["containers"]]
        assert len(MAIN & set(ours)) == 1, ours


@pytest.mark.parametrize(("engine", "mode", "keys"), CASES)
def test_every_object_and_pod_carries_the_label_of_the_job(
    engine: Engine, mode: Mode, keys: dict[str, Any]
) -> None:
    bodies = render(request(engine, mode, keys))
    named = [body["metadata"]["labels"] for body in bodies]
    assert {labels["holdfast.dev/job"] for labels in [*named, *(p for p, _ in pods(bodies))]} == {
        "run"
    }


@pytest.mark.parametrize(("engine", "mode", "keys"), CASES)
def test_no_object_is_there_twice_and_accounts_come_before_what_uses_them(
    engine: Engine, mode: Mode, keys: dict[str, Any]
) -> None:
    bodies = render(request(engine, mode, keys))
    places = [(b["apiVersion"], b["kind"], b["metadata"]["name"]) for b in bodies]
    assert len(set(places)) == len(places)
    kinds = [body["kind"] for body in bodies]
    assert kinds[0] == "ServiceAccount"
    before = kinds.index("PodDisruptionBudget")
    assert not set(kinds[:before]) & {"Job", "Pod", "Deployment", "CronJob", "TrainJob", "JobSet"}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_account_that_a_pod_names_is_made(engine: Engine) -> None:
    bodies = render(request(engine, "managed", {"nodes": 2}))
    made = {body["metadata"]["name"] for body in bodies if body["kind"] == "ServiceAccount"}
    named = {s.body["spec"]["serviceAccountName"] for s in File(bodies).pods}
    assert named <= made


def test_a_request_is_what_is_said_before_what_is_written() -> None:
    written = job(kubernetes={"engine": "jobset", "mode": "plain", "namespace": "a"})
    as_written = requested(written)
    assert (as_written.engine, as_written.mode, as_written.namespace) == ("jobset", "plain", "a")
    assert as_written.version == NEWEST
    said = requested(written, engine="job", mode="managed", namespace="b", mpi_version="v1")
    assert (said.engine, said.mode, said.namespace) == ("job", "managed", "b")
    assert said.job.kubernetes.mpi_version == "v1"
    assert said.job.kubernetes.engine == "job"


def test_the_same_request_gives_the_same_text() -> None:
    once = as_text(render(request("job", "managed", {"nodes": 3})))
    assert once == as_text(render(request("job", "managed", {"nodes": 3})))
