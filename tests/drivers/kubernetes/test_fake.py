"""The cluster of the tests keeps the promises of a real one that others rely on."""

import asyncio
import os
import signal
from typing import Any

import httpx2
import psutil
import pytest
import yaml

from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    ConflictError,
    DeniedError,
    InvalidError,
    Kind,
    NotFoundError,
)
from tests.drivers.kubernetes.cluster import rbac
from tests.drivers.kubernetes.cluster.addresses import Network
from tests.drivers.kubernetes.cluster.conditions import is_true
from tests.drivers.kubernetes.cluster.engines import jobs
from tests.drivers.kubernetes.cluster.fake import FakeCluster, cluster, in_thread
from tests.drivers.kubernetes.cluster.pace import Pace
from tests.drivers.kubernetes.cluster.processes import MARK
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.cluster.store import Store
from tests.drivers.kubernetes.playing import playing
from tests.drivers.kubernetes.test_api import pod


def phase(it: FakeCluster, name: str = "a") -> str:
    found = it.store.find(PODS, "default", name)
    return "" if found is None else str(found["status"].get("phase"))


def condition(it: FakeCluster, type_: str, name: str = "a") -> Body:
    told = it.store.get(PODS, "default", name)["status"].get("conditions", [])
    return next((c for c in told if c["type"] == type_), {})


def waiting(it: FakeCluster, name: str = "a") -> str:
    """Why the container of a pod waits."""
    told = it.store.get(PODS, "default", name)["status"].get("containerStatuses") or [{}]
    return str(told[0].get("state", {}).get("waiting", {}).get("reason", ""))


# ── the API ───────────────────────────────────────────────────────────────────────────────────


def test_a_write_from_an_old_version_is_a_conflict() -> None:
    async def act(_: FakeCluster, api: Api) -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
        old = (await api.create(body))["metadata"]["resourceVersion"]
        await api.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}})
        late = {"metadata": {"resourceVersion": old}, "data": {"x": "2"}}
        with pytest.raises(ConflictError, match="has been modified"):
            await api.patch(CONFIG_MAPS, "a", late)

    playing(act)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("POST", "/api/v1/namespaces/default/namespaces", 404),
        ("POST", "/api/v1/configmaps", 405),
        ("POST", "/api/v1/namespaces/default/configmaps/a", 405),
        ("GET", "/api/v1/pods/a", 404),
        ("GET", "/api/v1/namespaces/default/nodes", 404),
        ("GET", "/api/v1/namespaces/default/configmaps/a/status", 404),
        ("GET", "/api/v1/namespaces/default/pods/a/scale", 404),
        ("GET", "/apis/apps/v1/namespaces/default/deployments/a/log", 404),
        ("GET", "/api/v1/namespaces/default/pods/a/log/main", 404),
        ("GET", "/api/v1/pods", 200),
    ],
)
def test_only_the_paths_of_a_real_server_are_served(method: str, path: str, code: int) -> None:
    async def act(it: FakeCluster, _: Api) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new"}}
        headers = {"Authorization": f"Bearer {rbac.ADMIN}"}
        async with httpx2.AsyncClient(base_url=it.url, headers=headers, trust_env=False) as client:
            json = body if method == "POST" else None
            assert (await client.request(method, path, json=json)).status_code == code

    playing(act)


def test_a_namespace_goes_with_all_that_is_in_it_and_takes_nothing_new() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new"}})
        there = it.api("new")
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
        await there.create({**config, "metadata": {"name": "a", "finalizers": ["test/holds"]}})
        await api.delete(NAMESPACES, "new")
        with pytest.raises(DeniedError, match="because it is being terminated"):
            await there.create({**config, "metadata": {"name": "b"}})
        await there.patch(CONFIG_MAPS, "a", {"metadata": {"finalizers": None}})
        await it.until(lambda: it.store.find(NAMESPACES, "", "new") is None)
        assert it.store.all(CONFIG_MAPS, "new") == []
        await there.close()

    playing(act)


def test_status_changes_only_through_its_own_path() -> None:
    async def act(_: FakeCluster, api: Api) -> None:
        await api.create(pod())
        told = await api.patch(PODS, "a", {"status": {"phase": "Failed"}})
        assert told["status"]["phase"] == "Pending"
        told = await api.patch(PODS, "a", {"status": {"phase": "Failed"}}, part="status")
        assert told["status"]["phase"] == "Failed"

    playing(act)


def test_a_pod_cannot_become_another() -> None:
    async def act(_: FakeCluster, api: Api) -> None:
        await api.create(pod())
        with pytest.raises(InvalidError, match="may not change fields"):
            await api.patch(PODS, "a", {"spec": {"hostname": "b"}})

    playing(act)


def test_a_finalizer_holds_an_object_that_is_deleted() -> None:
    async def act(_: FakeCluster, api: Api) -> None:
        meta = {"name": "a", "finalizers": ["x.io/y"]}
        await api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
        await api.delete(CONFIG_MAPS, "a")
        assert "deletionTimestamp" in (await api.get(CONFIG_MAPS, "a"))["metadata"]
        await api.patch(CONFIG_MAPS, "a", {"metadata": {"finalizers": None}})
        with pytest.raises(NotFoundError):
            await api.get(CONFIG_MAPS, "a")

    playing(act)


def test_what_belongs_to_something_goes_with_it_in_the_foreground_first() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.apply(deployment("sleep", "60"))
        await it.until(lambda: [p for p in it.pods() if p["status"]["phase"] == "Running"])
        await api.delete(DEPLOYMENTS, "a", foreground=True)
        assert it.store.find(DEPLOYMENTS, "default", "a") is not None
        await it.until(lambda: it.store.find(DEPLOYMENTS, "default", "a") is None)
        assert it.pods() == []

    playing(act, machines=1)


def deployment(*command: str) -> Body:
    labels = {"l": "x"}
    container = {"name": "main", "image": "i", "command": list(command)}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    kind = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}}
    return {**kind, "spec": {**spec, "replicas": 1, "strategy": {"type": "Recreate"}}}


def test_a_pod_needs_its_account_and_room_in_the_quota() -> None:
    async def act(_: FakeCluster, api: Api) -> None:
        body = pod()
        body["spec"]["serviceAccountName"] = "nobody"
        with pytest.raises(DeniedError, match='serviceaccount "nobody" not found'):
            await api.create(body)
        meta, hard = {"name": "q"}, {"spec": {"hard": {"pods": "1"}}}
        await api.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, **hard})
        await api.create(pod("a"))
        with pytest.raises(DeniedError, match="exceeded quota: q, requested: pods=1"):
            await api.create(pod("b"))

    playing(act)


def test_a_definition_makes_a_kind_with_its_own_validation() -> None:
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    }
    version = {"name": "v1", "served": True, "storage": True}
    spec = {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": "Poodle", "plural": "poodles"},
        "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
    }
    poodle = {"apiVersion": "example.com/v1", "kind": "Poodle", "metadata": {"name": "a"}}

    async def act(_: FakeCluster, api: Api) -> None:
        with pytest.raises(NotFoundError):
            await api.create({**poodle, "spec": {"x": 1}})
        api_ = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        await api.create({**api_, "metadata": {"name": "poodles.example.com"}, "spec": spec})
        with pytest.raises(InvalidError, match="'y' was unexpected"):
            await api.create({**poodle, "spec": {"y": 1}})
        with pytest.raises(InvalidError, match="not of type 'integer'"):
            await api.create({**poodle, "spec": {"x": "1"}})
        await api.create({**poodle, "spec": {"x": 1}})
        assert await api.get(Kind("example.com/v1", "Poodle", "poodles"), "a")

    playing(act)


def test_a_question_about_rights_is_answered() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        it.server.access.denied.add(("create", "jobs"))
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        for resource, allowed in (("jobs", False), ("pods", True)):
            asked = {"verb": "create", "resource": resource, "group": ""}
            told = await api.create(
                {**body, "metadata": {"name": ""}, "spec": {"resourceAttributes": asked}}
            )
            assert told["status"]["allowed"] is allowed

    playing(act)


def test_the_clock_of_the_server_can_be_wrong() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        it.server.skew_s = -40 * 365 * 86400.0
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
        assert (await api.create(body))["metadata"]["creationTimestamp"] < "2000"

    playing(act)


# ── pods ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("requests", "why"),
    [
        ({"nvidia.com/gpu": "9"}, "0/2 nodes are available: 2 Insufficient nvidia.com/gpu"),
        ({"cpu": "1000"}, "2 Insufficient cpu"),
    ],
)
def test_a_pod_that_fits_nowhere_says_what_is_missing(requests: Body, why: str) -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        body = pod()
        body["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": requests}
        await api.create(body)
        await it.until(lambda: condition(it, "PodScheduled"))
        assert condition(it, "PodScheduled")["reason"] == "Unschedulable"
        assert why in condition(it, "PodScheduled")["message"]

    playing(act, machines=2)


def test_a_claim_that_is_not_bound_holds_its_pod() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "none-such",
            "resources": {"requests": {"storage": "1Gi"}},
        }
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}}
        await api.create({**claim, "spec": spec})
        body = pod()
        source = {"persistentVolumeClaim": {"claimName": "c"}}
        body["spec"]["volumes"] = [{"name": "v", **source}]
        await api.create(body)
        await it.until(lambda: condition(it, "PodScheduled"))
        assert "unbound immediate" in condition(it, "PodScheduled")["message"]

    playing(act, machines=1)


def test_a_pod_waits_for_its_secret_and_finds_it_where_it_is_mounted() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        body = pod("a", "sh", "-c", 'cat "$WHERE/key"; echo " $NAME $SECRET"; test -e /x/key')
        container = body["spec"]["containers"][0]
        ref = {"secretKeyRef": {"name": "s", "key": "key"}}
        container["env"] = [
            {"name": "WHERE", "value": "/x"},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "SECRET", "valueFrom": ref},
        ]
        container["volumeMounts"] = [{"name": "v", "mountPath": "/x"}]
        body["spec"]["volumes"] = [{"name": "v", "secret": {"secretName": "s"}}]
        await api.create(body)
        await it.until(lambda: waiting(it) == "ContainerCreating")
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
        await api.create({**secret, "stringData": {"key": "value"}})
        await it.until(lambda: phase(it) == "Failed")
        assert it.output(it.store.get(PODS, "default", "a")) == "value a value\n"

    playing(act, machines=1)


def test_a_secret_can_be_read_by_its_group_and_by_nobody_else() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
        await api.create({**secret, "stringData": {"key": "value"}})
        volume = {"name": "v", "secret": {"secretName": "s", "defaultMode": 0o440}}
        for name, context in (("a", {}), ("b", {"fsGroup": 1000})):
            body = pod(name, "cat", "/x/key")
            body["spec"] |= {"volumes": [volume], "securityContext": context}
            body["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/x"}]
            await api.create(body)
        await it.until(lambda: (phase(it), phase(it, "b")) == ("Failed", "Succeeded"))
        assert "Permission denied" in it.output(it.store.get(PODS, "default", "a"))

    playing(act, machines=1)


def test_an_image_that_cannot_be_pulled_is_waited_for() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(pod())
        await it.until(lambda: waiting(it) == "ImagePullBackOff")
        assert phase(it) == "Pending"

    playing(act, machines=1, images={"good": None})


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
def test_a_container_that_fails_is_restarted_with_growing_pauses(policy: str) -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        body = pod("a", "sh", "-c", "echo life; exit 3")
        body["spec"]["restartPolicy"] = policy
        await api.create(body)
        await it.until(lambda: waiting(it) == "CrashLoopBackOff")
        told = it.store.get(PODS, "default", "a")["status"]["containerStatuses"][0]
        assert told["lastState"]["terminated"]["exitCode"] == 3
        assert phase(it) == "Running"

    playing(act, machines=1)


def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace_with_all_it_started() -> None:
    script = "trap '' TERM; (trap '' TERM; sleep 60) & echo ready; sleep 60; sleep 60"

    async def act(it: FakeCluster, api: Api) -> None:
        body = pod("a", "sh", "-c", script)
        body["spec"]["terminationGracePeriodSeconds"] = 1
        await api.create(body)
        await it.until(lambda: phase(it) == "Running")
        found = it.store.get(PODS, "default", "a")
        await it.until(lambda: it.output(found) == "ready\n")
        await api.delete(PODS, "a")
        assert phase(it) == "Running"  # it takes its time
        await it.until(lambda: it.store.find(PODS, "default", "a") is None)
        assert not _marked(found, it)

    playing(act, machines=1)


def _marked(found: Body, it: FakeCluster) -> list[int]:
    """Processes whose environment names the pod's folder."""
    home = str(it.folder / "pods" / found["metadata"]["uid"][:13])
    left = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.Error:
            continue
        if MARK in environment and environment.get("HOME", "").startswith(home):
            left.append(process.pid)
    return left


def test_a_container_that_is_killed_ends_with_137() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(pod())
        await it.until(lambda: phase(it) == "Running")
        os.kill(it.pid(it.store.get(PODS, "default", "a")), signal.SIGKILL)
        await it.until(lambda: phase(it) == "Failed")
        told = it.store.get(PODS, "default", "a")["status"]["containerStatuses"][0]
        assert told["state"]["terminated"]["exitCode"] == 137

    playing(act, machines=1)


LISTENING = """
import http.server, socketserver, sys
socketserver.TCPServer.allow_reuse_address = True
server = http.server.HTTPServer(("0.0.0.0", 7070), http.server.SimpleHTTPRequestHandler)
server.serve_forever()
"""


def test_pods_that_listen_on_the_same_port_are_two_and_a_service_finds_the_ready_one() -> None:
    probe = {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 5}

    async def act(it: FakeCluster, api: Api) -> None:
        for name in ("a", "b"):
            body = pod(name, "python", "-c", LISTENING, labels={"l": name})
            container = body["spec"]["containers"][0]
            container["ports"] = [{"name": "web", "containerPort": 7070}]
            container["readinessProbe"] = probe
            await api.create(body)
        for name in ("a", "b"):
            await it.until(lambda name=name: is_true(it.store.get(PODS, "default", name), "Ready"))  # type: ignore[misc]
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
        ports = [{"name": "web", "port": 7071, "targetPort": "web"}]
        await api.create({**service, "spec": {"selector": {"l": "a"}, "ports": ports}})
        script = (
            "import os, urllib.request as u; print(u.urlopen('http://' + os.environ['S']).status)"
        )
        asks = pod("c", "python", "-c", script)
        asks["spec"]["containers"][0]["env"] = [{"name": "S", "value": "s:7071"}]
        await it.until(lambda: it.proxy.addresses("default"))
        await api.create(asks)
        await it.until(lambda: phase(it, "c") in ("Succeeded", "Failed"))
        assert it.output(it.store.get(PODS, "default", "c")) == "200\n"

    playing(act, machines=1)


# ── machines ──────────────────────────────────────────────────────────────────────────────────


def tolerant(name: str, seconds: int) -> Body:
    body = pod(name)
    toleration = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
    keys = [f"node.kubernetes.io/{key}" for key in ("not-ready", "unreachable")]
    body["spec"]["tolerations"] = [{"key": key, **toleration} for key in keys]
    return body


def test_a_dead_machine_is_first_silent_then_not_ready_and_its_pods_stay_terminating() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(tolerant("a", 20))
        await it.until(lambda: phase(it) == "Running")
        pid = it.pid(it.store.get(PODS, "default", "a"))
        it.kill_machine("m-0")
        assert phase(it) == "Running"  # nobody knows yet
        await it.until(lambda: not psutil.pid_exists(pid) or _dead(pid))
        await it.until(lambda: condition(it, "DisruptionTarget"))
        assert not is_true(it.store.get(NODES, "", "m-0"), "Ready")
        await it.until(
            lambda: "deletionTimestamp" in it.store.get(PODS, "default", "a")["metadata"]
        )
        assert condition(it, "DisruptionTarget")["reason"] == "DeletionByTaintManager"
        it.revive_machine("m-0")
        await it.until(lambda: it.store.find(PODS, "default", "a") is None)
        await it.until(lambda: is_true(it.store.get(NODES, "", "m-0"), "Ready"))

    playing(act, machines=1)


def _dead(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_on_a_machine_that_is_cut_off_processes_run_on() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(tolerant("a", 20))
        await it.until(lambda: phase(it) == "Running")
        pid = it.pid(it.store.get(PODS, "default", "a"))
        it.partition_machine("m-0")
        await it.until(
            lambda: "deletionTimestamp" in it.store.get(PODS, "default", "a")["metadata"]
        )
        assert not _dead(pid)
        it.revive_machine("m-0")
        await it.until(lambda: it.store.find(PODS, "default", "a") is None)
        assert not psutil.pid_exists(pid) or _dead(pid)

    playing(act, machines=1)


def test_a_drained_machine_gets_no_pods_and_loses_those_it_has() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.apply(deployment("sleep", "60"))
        await it.until(lambda: [p for p in it.pods() if p["status"]["phase"] == "Running"])
        machine = it.pods()[0]["spec"]["nodeName"]
        it.drain(machine)
        await it.until(
            lambda: (
                [p["spec"].get("nodeName") for p in it.pods() if p["status"]["phase"] == "Running"]
                == [f"m-{1 - int(machine[-1])}"]
            )
        )

    playing(act, machines=2)


# ── Jobs ──────────────────────────────────────────────────────────────────────────────────────


def job(script: str, **spec: Any) -> Body:
    container = {"name": "main", "image": "i", "command": ["sh", "-c", script]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    whole = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, **spec}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}}
    return {**body, "spec": {**whole, "template": template}}


def test_the_delay_of_a_job_doubles_with_each_failure_unless_indexes_have_their_own() -> None:
    account = jobs.Account(failures={None: 3, 0: 1}, last={None: 0.0, 0: 0.0})
    it = jobs.Jobs(Store(lambda: 0.0), Pace(scale=1.0))
    together: Body = {"spec": {}}
    apart: Body = {"spec": {"backoffLimitPerIndex": 5}}
    longer = it._delay(together, 0, account) - it._delay(apart, 0, account)
    assert longer == pytest.approx(30.0, abs=0.1)  # 40 s instead of 10
    assert it._delay(apart, 1, account) == 0.0


def test_a_job_fails_after_its_limit_and_by_its_rules_at_once() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(job("exit 1", backoffLimit=1))
        await it.until(lambda: is_true(it.store.get(JOBS, "default", "a"), "Failed"))
        await api.delete(JOBS, "a")
        await it.until(lambda: not it.pods())
        rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [113]}}
        policy = {"rules": [rule]}
        await api.create(job("exit 113", backoffLimit=100, podFailurePolicy=policy))
        await it.until(lambda: is_true(it.store.get(JOBS, "default", "a"), "Failed"))
        told = it.store.get(JOBS, "default", "a")["status"]["conditions"][-1]
        assert told["reason"] == "PodFailurePolicy"

    playing(act, machines=1)


def test_a_job_refuses_what_only_its_own_validation_knows() -> None:
    async def act(_: FakeCluster, api: Api) -> None:
        body = job("true", backoffLimitPerIndex=1)
        body["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
        with pytest.raises(InvalidError, match="restartPolicy"):
            await api.create(body)
        await api.create(job("sleep 60"))
        with pytest.raises(InvalidError, match="in tandem"):
            await api.patch(JOBS, "a", {"spec": {"completions": 3}})

    playing(act)


# ── the cluster as a whole ────────────────────────────────────────────────────────────────────


def test_nothing_is_left_of_a_cluster() -> None:
    kept: list[Any] = []

    async def act(it: FakeCluster, api: Api) -> None:
        await api.create(pod())
        await it.until(lambda: phase(it) == "Running")
        kept.extend((it.folder, it.pid(it.store.get(PODS, "default", "a"))))

    playing(act, machines=1)
    folder, pid = kept
    assert not folder.exists()
    assert not psutil.pid_exists(pid) or _dead(pid)


def test_a_cluster_in_a_thread_serves_those_outside_of_it() -> None:
    with in_thread(machines=1) as it:
        said = yaml.safe_load(it.do(lambda c: c.kubeconfig()).read_text())
        assert said["clusters"][0]["cluster"]["server"] == it.url
        api = it.api()
        asyncio.run(_asked(api))


async def _asked(api: Api) -> None:
    assert await api.ask("/version")
    await api.close()


def test_a_controller_that_dies_fails_the_test() -> None:
    async def whole() -> None:
        async with cluster(machines=0) as it:
            it._run(_dies())
            await asyncio.sleep(0)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(whole())


async def _dies() -> None:
    raise ZeroDivisionError


# ── networks ──────────────────────────────────────────────────────────────────────────────────


def test_clusters_that_run_at_once_share_no_network_and_an_ended_one_leaves_its_own() -> None:
    networks = [Network() for _ in range(20)]
    try:
        assert len({network.pod().split(".")[1] for network in networks}) == len(networks)
    finally:
        for network in networks:
            network.leave()
    again = [Network() for _ in range(200)]
    for network in again:
        network.leave()
