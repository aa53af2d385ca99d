"""The API client against a real HTTP server: what is asked, what is retried, what is told."""

import asyncio
import time
from typing import Any

import httpx2
import msgspec
import pytest

from holdfast.drivers.kubernetes import api as client
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import (
    BUDGETS,
    CONFIG_MAPS,
    NODES,
    PODS,
    ApiError,
    ConflictError,
    DeniedError,
    GoneError,
    InvalidError,
    Kind,
    NotFoundError,
)
from tests.drivers.kubernetes.cluster.conditions import is_true
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.playing import playing
from tests.patience import PATIENCE_S


class Meta(msgspec.Struct):
    name: str


class Named(msgspec.Struct):
    metadata: Meta


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE_S", 0.001)


def config(name: str = "a", **data: str) -> Body:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name: str = "a", *command: str, **meta: Any) -> Body:
    container = {"name": "main", "image": "i", "command": list(command) or ["sleep", "60"]}
    spec = {"restartPolicy": "Never", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **meta}, "spec": spec}


# ── reading and writing ───────────────────────────────────────────────────────────────────────


def test_an_object_is_created_read_patched_and_deleted() -> None:
    async def act(_: FakeCluster, api: Api) -> None:
        made = await api.create(config(x="1"))
        assert (await api.get(CONFIG_MAPS, "a")) == made
        patched = await api.patch(CONFIG_MAPS, "a", {"data": {"x": None, "y": "2"}})
        assert patched["data"] == {"y": "2"}
        await api.delete(CONFIG_MAPS, "a", uid=made["metadata"]["uid"])
        with pytest.raises(NotFoundError, match='configmaps "a" not found'):
            await api.get(CONFIG_MAPS, "a")

    playing(act)


def test_a_list_comes_in_pages_and_holds_only_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "PAGE", 2)

    async def act(it: FakeCluster, api: Api) -> None:
        for name in "abcde":
            await api.create(config(name))
        before = len(it.server.calls)
        found = await api.listed(CONFIG_MAPS, Named)
        assert [item.metadata.name for item in found.items] == list("abcde")
        assert len(it.server.calls) - before == 3
        assert int(found.version) == it.store.version

    playing(act)


def test_a_list_whose_next_page_is_gone_is_asked_for_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "PAGE", 1)

    async def act(it: FakeCluster, api: Api) -> None:
        for name in "ab":
            await api.create(config(name))
        it.faults.add(Fault("list", delay_s=0.0))  # the first page passes
        it.faults.add(Fault("list", code=410))
        assert len((await api.listed(CONFIG_MAPS, Named)).items) == 2

    playing(act)


def test_labels_choose_and_a_namespace_may_be_any() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        it.namespace("other")
        for name, namespace, label in (("a", "default", "x"), ("b", "other", "y")):
            body = config(name)
            body["metadata"] |= {"namespace": namespace, "labels": {"l": label}}
            await api.create(body)
        assert len((await api.listed(CONFIG_MAPS, Named, namespace="")).items) == 2
        only = await api.listed(CONFIG_MAPS, Named, labels="l in (y)", namespace="")
        assert [item.metadata.name for item in only.items] == ["b"]
        assert len((await api.listed(CONFIG_MAPS, Named)).items) == 1

    playing(act)


def test_an_unknown_field_is_refused_in_every_kind_of_write() -> None:
    async def act(_: FakeCluster, api: Api) -> None:
        wrong: Body = {**config(), "date": {}}
        for write in (api.create(wrong), api.apply(wrong)):
            with pytest.raises(InvalidError, match="date"):
                await write
        await api.create(config())
        with pytest.raises(InvalidError, match="date"):
            await api.patch(CONFIG_MAPS, "a", {"date": {}})

    playing(act)


def test_applying_twice_changes_nothing_and_applying_less_takes_back() -> None:
    async def act(_: FakeCluster, api: Api) -> None:
        first = await api.apply(config(x="1", y="2"))
        assert (await api.apply(config(x="1", y="2"))) == first
        assert (await api.apply(config(x="1")))["data"] == {"x": "1"}

    playing(act)


def test_a_field_of_another_writer_is_only_taken_by_force() -> None:
    async def act(_: FakeCluster, api: Api) -> None:
        await api.create(config(x="1"))  # as `holdfast`, but not by applying
        with pytest.raises(ConflictError, match='conflict with "holdfast"'):
            await api.apply(config(x="2"), force=False)
        assert (await api.apply(config(x="2")))["data"] == {"x": "2"}

    playing(act)


def test_a_dry_run_is_validated_and_changes_nothing() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        told = await api.apply(config(x="1"), dry_run=True)
        assert told["data"] == {"x": "1"}
        with pytest.raises(InvalidError):
            await api.apply({**config(), "date": {}}, dry_run=True)
        assert it.store.all(CONFIG_MAPS) == []

    playing(act)


# ── deletion and eviction ─────────────────────────────────────────────────────────────────────


def test_what_is_gone_or_another_is_as_good_as_deleted() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.delete(CONFIG_MAPS, "a")
        await api.create(config())
        await api.delete(CONFIG_MAPS, "a", uid="00000000-0000-0000-0000-000000000000")
        assert it.store.find(CONFIG_MAPS, "default", "a") is not None

    playing(act)


def test_an_eviction_takes_only_the_pod_that_was_meant() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        uid = (await api.create(pod()))["metadata"]["uid"]
        assert await api.evict("a", uid="00000000-0000-0000-0000-000000000000")
        assert it.store.find(PODS, "default", "a") is not None
        assert await api.evict("a", uid=uid)
        assert it.store.find(PODS, "default", "a") is None
        assert await api.evict("a", uid=uid)

    playing(act)


def budget(name: str, least: int) -> Body:
    """A disruption budget of pods with the label l=x."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"l": "x"}}},
    }


def test_a_disruption_budget_is_told_at_once_and_not_retried() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(budget("b", 1))
        uid = (await api.create(pod(labels={"l": "x"})))["metadata"]["uid"]
        await it.until(lambda: is_true(it.store.get(PODS, "default", "a"), "Ready"))
        before = len(it.server.calls)
        assert not await api.evict("a", uid=uid)
        assert len(it.server.calls) == before + 1
        await api.delete(BUDGETS, "b")
        assert await api.evict("a", uid=uid)

    playing(act, machines=1)


@pytest.mark.parametrize(
    ("code", "page", "kind", "told"),
    [
        (404, b"404 page not found\n", NotFoundError, "could not find the requested resource"),
        (404, b"default backend - 404", ApiError, "404 from a proxy: default backend - 404"),
        (404, b"", ApiError, "404 from a proxy: Not Found"),
        (502, b"<html><style>p {}</style><h1>502 Bad\nGateway</h1><p>nginx</html>", ApiError,
         "502 Bad Gateway nginx"),
        (403, b"<html><body>Log in first</body></html>", DeniedError, "Log in first"),
    ],
)  # fmt: skip
def test_what_a_proxy_says_in_place_of_the_server_means_nothing_is_gone(
    code: int, page: bytes, kind: type[ApiError], told: str
) -> None:
    error = client._refused(httpx2.Response(code, content=page), page).error
    assert type(error) is kind and told in error.message
    assert error.transient == (kind is ApiError)


def test_two_budgets_of_one_pod_forbid_its_eviction_for_ever() -> None:
    """A platform gives every namespace one. Kubernetes says 500, as when it stumbles."""

    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(budget("a", 0))
        await api.create(budget("b", 0))
        uid = (await api.create(pod(labels={"l": "x"})))["metadata"]["uid"]
        before = len(it.server.calls)
        assert not await api.evict("a", uid=uid)
        assert len(it.server.calls) == before + 1
        it.faults.add(Fault("create", code=500, times=client.TRIES))
        with pytest.raises(ApiError, match="asked for"):
            await api.evict("a", uid=uid)

    playing(act, machines=1)


# ── trouble ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", [429, 500, 503, 504])
def test_a_busy_server_is_asked_again(code: int) -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(config())
        it.faults.add(Fault("get", code=code, times=client.TRIES - 1))
        assert (await api.get(CONFIG_MAPS, "a"))["kind"] == "ConfigMap"

    playing(act)


def test_a_server_that_stays_busy_is_given_up() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        it.faults.add(Fault("get", code=500, times=100))
        before = len(it.server.calls)
        with pytest.raises(ApiError, match="asked for") as caught:
            await api.get(CONFIG_MAPS, "a")
        assert caught.value.transient
        assert len(it.server.calls) - before == client.TRIES

    playing(act)


def test_a_connection_that_breaks_is_made_again() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        it.faults.add(Fault("patch", cut=True))
        assert (await api.apply(config(x="1")))["data"] == {"x": "1"}

    playing(act)


def test_the_server_says_how_long_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE_MAX_S", 0.2)

    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(config())
        it.faults.add(Fault("get", code=429, retry_after_s=3_600))
        began = asyncio.get_running_loop().time()
        await asyncio.wait_for(api.get(CONFIG_MAPS, "a"), PATIENCE_S)
        assert asyncio.get_running_loop().time() - began >= 0.2

    playing(act)


def test_a_creation_that_may_have_worked_is_not_made_again() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        it.faults.add(Fault("create", code=500, done=True))
        with pytest.raises(ApiError) as caught:
            await api.create(config())
        assert caught.value.status == 500
        assert it.store.find(CONFIG_MAPS, "default", "a") is not None

    playing(act)


def test_a_creation_that_was_turned_away_is_made_again() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        it.faults.add(Fault("create", code=429))
        await api.create(config())

    playing(act)


@pytest.mark.parametrize(
    ("code", "error"),
    [(403, DeniedError), (409, ConflictError), (410, GoneError), (422, InvalidError)],
)
def test_other_refusals_are_told_by_their_class(code: int, error: type[ApiError]) -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        it.faults.add(Fault("get", code=code, message="because"))
        with pytest.raises(error, match="because"):
            await api.get(CONFIG_MAPS, "a")

    playing(act)


def test_a_kind_that_is_not_there_is_not_found() -> None:
    async def act(_: FakeCluster, api: Api) -> None:
        with pytest.raises(NotFoundError, match="could not find the requested resource"):
            await api.listed(Kind("example.com/v1", "Poodle", "poodles"), Named)

    playing(act)


def test_a_server_that_is_away_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TRIES", 2)

    async def act(it: FakeCluster, api: Api) -> None:
        await it.http.stop()
        with pytest.raises(ApiError) as caught:
            await api.get(CONFIG_MAPS, "a")
        assert (caught.value.status, caught.value.transient) == (0, True)

    playing(act)


def test_an_answer_that_is_no_answer_is_an_error_of_the_api() -> None:
    class Odd(msgspec.Struct):
        metadata: int

    async def act(_: FakeCluster, api: Api) -> None:
        await api.create(config())
        with pytest.raises(ApiError, match="cannot be read"):
            await api.listed(CONFIG_MAPS, Odd)

    playing(act)


def test_an_account_may_do_what_its_role_says_and_nothing_else() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        rbac, meta = "rbac.authorization.k8s.io", {"name": "reader"}
        rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]}]
        await api.create(
            {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": rules}
        )
        ref = {"apiGroup": rbac, "kind": "Role", "name": "reader"}
        subject = {"kind": "ServiceAccount", "name": "default"}
        await api.create(
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "RoleBinding",
                "metadata": meta,
                "roleRef": ref,
                "subjects": [subject],
            }
        )
        await api.create(config())
        account = it.api(account="default")
        assert await account.get(CONFIG_MAPS, "a")
        with pytest.raises(DeniedError, match='cannot delete resource "configmaps"'):
            await account.delete(CONFIG_MAPS, "a")
        with pytest.raises(DeniedError):
            await account.listed(NODES, Named)
        assert (await account.apply(config(x="1")))["data"] == {"x": "1"}
        await api.delete(CONFIG_MAPS, "a")
        with pytest.raises(DeniedError, match="cannot create"):  # what makes it takes both rights
            await account.apply(config(x="1"))
        await account.close()

    playing(act)


# ── logs and anything else ────────────────────────────────────────────────────────────────────


def test_a_log_is_followed_to_the_end_of_the_container() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        gate = it.folder / "gate"
        script = f"echo one; while [ ! -e {gate} ]; do sleep 0.02; done; echo two"
        await api.create(pod("a", "sh", "-c", script))
        await it.until(lambda: it.store.get(PODS, "default", "a")["status"]["phase"] == "Running")
        heard = []
        async for line in api.log("a", container="main", follow=True):
            heard.append(line)
            gate.touch()
        assert heard == ["one", "two"]
        assert [line async for line in api.log("a", container="main", tail=1)] == ["two"]
        for since, expected in ((time.time() - 600, ["one", "two"]), (time.time() + 600, [])):
            said = api.log("a", container="main", since=since)
            assert [line async for line in said] == expected

    playing(act, machines=1)


def test_the_log_of_a_container_that_waits_says_why() -> None:
    async def act(_: FakeCluster, api: Api) -> None:
        await api.create(pod())
        with pytest.raises(InvalidError, match="is waiting to start"):
            await anext(api.log("a", container="main"))

    playing(act)


def test_any_path_can_be_asked_for() -> None:
    async def act(_: FakeCluster, api: Api) -> None:
        assert (await api.ask("/version"))["gitVersion"].startswith("v1.")
        groups = [group["name"] for group in (await api.ask("/apis"))["groups"]]
        assert {"batch", "jobset.x-k8s.io", "kubeflow.org"} <= set(groups)
        found = await api.ask("/apis/batch/v1")
        assert "jobs" in {resource["name"] for resource in found["resources"]}

    playing(act)
