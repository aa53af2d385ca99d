"""The doctor finds each thing that would keep a job from running, and says what to do."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import CLAIMS, QUOTAS, SECRETS, STORAGE_CLASSES
from holdfast.drivers.kubernetes.doctor import QUEUES, ClusterCheck, Patient, needed
from holdfast.drivers.kubernetes.doctor_visit import nearest, visit
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.drivers.kubernetes.submit import submit
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.drivers.kubernetes.cluster.kinds import ENGINES
from tests.drivers.kubernetes.test_submit import asked, play
from tests.more import thinned

pytestmark = pytest.mark.usefixtures("nothing_left")


async def seen(api: Api, request: Request, **options: Any) -> dict[str, list[ClusterCheck]]:
    """All checks by name."""
    patient = Patient(api, request, True, "v1.37.1", " -n default")
    found: dict[str, list[ClusterCheck]] = {}
    for check in await visit(patient, **options):
        found.setdefault(check.name, []).append(check)
    return found


def bad(found: dict[str, list[ClusterCheck]]) -> set[str]:
    """Names of what is wrong, each of which has a remedy."""
    wrong = [check for checks in found.values() for check in checks if not check.ok]
    assert all(check.remedy for check in wrong)
    return {check.name for check in wrong}


def test_a_healthy_cluster_has_nothing_to_complain_about() -> None:
    async def story(_it: FakeCluster, api: Api) -> None:
        assert bad(await seen(api, asked(nodes=2, resources={"gpus": 8}))) == set()

    play(story, machines=2)


def test_how_the_controller_gets_to_see_machines_is_told_and_no_failure() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.server.access.denied.add(("list", "nodes"))
        [without] = (await seen(api, asked()))["machine conditions"]
        assert without.ok and "default:run-controller" in without.found
        [with_it] = (await seen(api, asked(access={"cordon": True})))["machine conditions"]
        assert with_it.ok and "watches" in with_it.found

    play(story, machines=1)


@pytest.mark.parametrize("engine", thinned(list(ENGINES)[:-2], 3))
def test_the_rights_that_are_asked_for_are_enough_to_submit(engine: Any) -> None:
    """Without any one of the rights on objects the submission fails, with all it goes through."""
    request = asked(engine)
    made = {(right.verb, right.resource) for right in needed(request)}
    assert ("patch", "deployments") in made

    async def story(it: FakeCluster, api: Api) -> None:
        others = {
            (verb, kind.plural)
            for kind in it.server.kinds
            for verb in ("get", "list", "watch", "create", "patch", "update", "delete")
        }
        it.server.access.denied |= others - made
        await submit(api, request)

    play(story, machines=0)


def test_missing_rights_are_named_with_the_command_that_grants_them() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.server.access.denied |= {("create", "jobsets"), ("patch", "jobsets")}
        found = await seen(api, asked("jobset"))
        assert bad(found) == {"rights"}
        [check] = found["rights"]
        assert check.found == "you lack permissions: jobsets.jobset.x-k8s.io: create, patch"
        assert "--verb=create,patch --resource=jobsets.jobset.x-k8s.io" in check.remedy

    play(story, machines=1)


def test_an_engine_that_is_not_installed_is_told_with_those_that_are() -> None:
    async def story(_it: FakeCluster, api: Api) -> None:
        found = await seen(api, asked("jobset"))
        assert bad(found) == {"engines", "api"}
        [engines] = found["engines"]
        assert engines.found.startswith("usable: pods, job, cronjob, pytorchjob")
        assert "not usable: jobset, trainjob" in engines.found
        assert "jobset.sigs.k8s.io" in engines.remedy

    play(story, machines=1, engines=[e for e in ENGINES if e not in ("jobset", "trainjob")])


def test_definitions_without_a_controller_are_no_engine() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.store.delete(QUEUES, "", "default")
        found = await seen(api, asked("volcano"))
        [engines] = found["engines"]
        assert (engines.ok, "volcano (only the CRDs" in engines.found) == (
            False, True,
        )  # fmt: skip

    play(story, machines=0)


def test_how_many_nodes_short_and_of_what() -> None:
    async def story(_it: FakeCluster, api: Api) -> None:
        found = await seen(api, asked(nodes={"count": 4, "spares": 1}, resources={"gpus": 8}))
        [check] = found["machines"]
        assert not check.ok
        assert check.found.startswith("capacity for 3 of 4 + 1 nodes")
        assert "2 nodes short" in check.found
        found = await seen(api, asked(resources={"gpus": 9}))
        assert (
            "1 node short: 3 machines have insufficient nvidia.com/gpu"
            in found["machines"][0].found
        )

    play(story, machines=3)


def test_a_quota_that_is_too_small_is_told_with_numbers() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        spec = {"hard": {"requests.nvidia.com/gpu": "8", "pods": "2"}}
        body = {"metadata": {"name": "team"}, "spec": spec, "status": {**spec, "used": {}}}
        it.store.create(QUOTAS, "default", body)
        found = await seen(api, asked(nodes=2, resources={"gpus": 8}))
        assert bad(found) == {"quota"}
        assert found["quota"][0].found == (
            "team: requests.nvidia.com/gpu 8 free of 8, 16 required; pods 2 free of 2, 3 required"
        )

    play(story, machines=3)


NAMES: dict[str, Any] = {
    "secrets": [{"name": "wandb", "all_env": True}],
    "datasets": [{"name": "d", "path": "/d", "pvc": "data"}],
    "checkpoints": {"shared": {"pvc": "ckpt", "storage_class": "nfs"}},
    "scheduling": {"priority_class": "high", "spare_priority_class": "low"},
    "access": {"service_account": "trainer"},
    "nodes": {"count": 2, "spares": 1},
}


def test_every_name_that_does_not_exist_is_found() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        found = await seen(api, asked(**NAMES))
        told = {c.found for checks in found.values() for c in checks if not c.ok}
        assert told == {
            f"{name} does not exist" for name in ("wandb", "data", "nfs", "high", "low", "trainer")
        }
        it.store.create(SECRETS, "default", {"metadata": {"name": "wandb"}})
        it.store.create(STORAGE_CLASSES, "", {"metadata": {"name": "nfs"}})
        found = await seen(api, asked(**NAMES))
        assert "Secret" not in bad(found) and "StorageClass" not in bad(found)

    play(story, machines=3)


@pytest.mark.parametrize(
    ("mode", "class_", "told"),
    [
        ("ReadWriteMany", None, None),
        ("ReadWriteOnce", None, "data can be mounted on one machine only (ReadWriteOnce)"),
        ("ReadWriteMany", "gone", "data is Pending: it is not bound to a volume"),
    ],
)
def test_a_claim_must_have_a_volume_that_all_nodes_can_mount(
    mode: str, class_: str | None, told: str | None
) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        spec: dict[str, Any] = {"accessModes": [mode]}
        spec |= {"storageClassName": class_} if class_ else {}
        it.store.create(CLAIMS, "default", {"metadata": {"name": "data"}, "spec": spec})
        phase = "Pending" if class_ else "Bound"
        await it.until(
            lambda: it.store.get(CLAIMS, "default", "data").get("status", {}).get("phase") == phase
        )
        data = [{"name": "d", "path": "/d", "pvc": "data"}]
        found = (await seen(api, asked(nodes=2, datasets=data)))[CLAIMS.kind]
        assert [c.found for c in found if not c.ok] == ([] if told is None else [told])

    play(story, machines=2)


def test_a_claim_that_waits_for_its_first_pod_is_fine() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        late = {"metadata": {"name": "late"}, "volumeBindingMode": "WaitForFirstConsumer"}
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "late"}
        it.server.access.denied.clear()
        it.store.create(CLAIMS, "default", {"metadata": {"name": "data"}, "spec": spec})
        await it.until(lambda: it.store.get(CLAIMS, "default", "data").get("status"))
        it.store.create(STORAGE_CLASSES, "", late)
        found = await seen(api, asked(datasets=[{"name": "d", "path": "/d", "pvc": "data"}]))
        assert CLAIMS.kind not in bad(found)

    play(story, machines=1)


def test_what_may_not_be_seen_is_no_failure() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.server.access.denied |= {
            ("list", "nodes"), ("get", "namespaces"), ("list", "resourcequotas"),
            ("get", "secrets"),
        }  # fmt: skip
        found = await seen(api, asked(secrets=[{"name": "wandb", "all_env": True}]))
        assert bad(found) <= {"rights"}
        assert found["machines"][0].found == "no permission to list machines"

    play(story, machines=1)


@pytest.mark.parametrize("code", [403, 500])
def test_a_server_that_fails_ends_one_check_and_not_the_visit(code: int) -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        it.faults.add(Fault("list", "nodes", code, times=5))
        found = await seen(api, asked())
        assert {"server", "namespace", "rights", "engines", "machines", "quota"} <= found.keys()

    play(story, machines=1)


def test_a_namespace_that_is_not_there_is_made_by_the_command() -> None:
    async def story(it: FakeCluster, _api: Api) -> None:
        api = it.api("nowhere")
        found = await seen(api, asked())
        assert found["namespace"][0].remedy == "kubectl create namespace nowhere"
        assert "namespace" in bad(found)
        await api.close()

    play(story, machines=1)


def test_an_image_that_cannot_be_pulled_is_found_out_and_its_pod_is_gone() -> None:
    async def story(it: FakeCluster, api: Api) -> None:
        [check] = (await seen(api, asked(), look_at_image=True))["image"]
        assert not check.ok
        assert "not found" in check.found
        await it.until(lambda: not it.pods())

    play(story, machines=1)


def test_versions_are_taken_to_the_nearest_that_is_known() -> None:
    assert nearest("v1.36.2-gke.1") == (1, 36)
    assert nearest("v1.35+") == (1, 35)
    assert nearest("v1.99.0") == (1, 37)
    assert nearest("v1.12.0") == (1, 31)
    assert nearest("") == (1, 37)
