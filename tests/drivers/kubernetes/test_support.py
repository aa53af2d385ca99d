"""Objects beside the pods: accounts, rights, services, claims, policies, controller, monitors."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.manifests import checks, support
from holdfast.drivers.kubernetes.manifests.names import JOURNAL_SHARDS, RECORD_SHARDS, update_parts
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.manifests.support import access
from holdfast.drivers.kubernetes.sharded import shard_name
from holdfast.monitoring.alerts import alert_rules
from holdfast.spec import job_from_dict
from holdfast.spec.cluster import Engine, Mode
from tests import quick_yaml
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.schemas import problems

EVERYTHING: dict[str, Any] = {
    "resources": {"claims": [{"name": "gpus", "device_class": "gpu.nvidia.com", "count": 8}]},
    "checkpoints": {
        "shared": {"pvc": "ckpt", "storage_class": "rwx", "volume_snapshot_class": "snap"}
    },
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
    "access": {"cordon": True, "annotations": {"cloud/role": "train"}},
    "nodes": {"count": 8, "spares": 2},
}


def made(engine: Engine = "job", mode: Mode = "managed", **keys: Any) -> dict[str, Body]:
    """Every support object by kind and name."""
    request = asked(engine, mode, **keys)
    bodies = [*support.before(request), *support.after(request)]
    named = {f"{body['kind']}/{body['metadata']['name']}": body for body in bodies}
    assert len(named) == len(bodies)
    return named


@pytest.mark.parametrize("mode", ["managed", "plain"])
@pytest.mark.parametrize("engine", ["pods", "job", "cronjob", "jobset", "volcano"])
def test_every_object_is_valid(engine: Engine, mode: Mode) -> None:
    found = made(engine, mode, namespace="team", **EVERYTHING)
    assert {name: told for name, body in found.items() if (told := problems(body))} == {}


def test_a_plain_job_gets_only_what_its_pods_need() -> None:
    assert list(made(mode="plain")) == [
        "ServiceAccount/run",
        "Service/run",
        "NetworkPolicy/run",
        "PodDisruptionBudget/run",
    ]


def test_a_managed_job_gets_a_controller_after_its_rights_and_its_file() -> None:
    assert list(made()) == [
        "ServiceAccount/run",
        "ServiceAccount/run-controller",
        "Role/run-controller",
        "RoleBinding/run-controller",
        "ConfigMap/run-job",
        "Service/run",
        "Service/run-controller",
        "NetworkPolicy/run",
        "PodDisruptionBudget/run",
        "Deployment/run-controller",
    ]


def test_the_url_of_a_receiver_comes_from_its_secret_and_from_nowhere_else() -> None:
    receivers = [{"url": "https://example.com/a"}, {"url_secret": {"name": "chat", "key": "url"}}]
    pod = made(notify=receivers)["Deployment/run-controller"]["spec"]["template"]["spec"]
    given = {one["name"]: one for one in pod["containers"][0]["env"]}
    secret = given["HOLDFAST_NOTIFY_1"]["valueFrom"]
    assert secret == {"secretKeyRef": {"name": "chat", "key": "url"}}
    assert "HOLDFAST_NOTIFY_0" not in given
    (problem,) = checks.problems(asked("job", notify=[{"url_env": "CHAT"}]))
    assert problem.slug == "settings-conflict" and "notify[0].url_env" in problem.what


def test_headers_of_opentelemetry_come_from_their_secret_and_reach_the_controller_alone() -> None:
    found = made(otlp={"headers_secret": {"name": "otlp", "key": "headers"}})
    pod = found["Deployment/run-controller"]["spec"]["template"]["spec"]
    given = {one["name"]: one for one in pod["containers"][0]["env"]}
    secret = given["OTEL_EXPORTER_OTLP_HEADERS"]["valueFrom"]
    assert secret == {"secretKeyRef": {"name": "otlp", "key": "headers"}}
    names = [name for name, body in found.items() if "OTEL_EXPORTER" in str(body)]
    assert names == ["Deployment/run-controller"]


# ── accounts and rights ───────────────────────────────────────────────────────────────────────


def test_pods_that_train_have_no_rights_and_no_token() -> None:
    account = made(access={"annotations": {"cloud/role": "train"}})["ServiceAccount/run"]
    assert account["automountServiceAccountToken"] is False
    assert account["metadata"]["annotations"] == {"cloud/role": "train"}
    assert "ServiceAccount/run" not in made(access={"service_account": "mine"})
    subjects = made()["RoleBinding/run-controller"]["subjects"]
    assert subjects == [{"kind": "ServiceAccount", "name": "run-controller"}]


def rights(rules: list[Body]) -> set[tuple[str, str, str]]:
    """Resource, verb, and the name the right is limited to."""
    return {
        (resource, verb, name)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", ["*"])
    }


def test_a_controller_writes_and_deletes_no_config_map_but_those_of_its_job() -> None:
    found = rights(access.controller_rules(asked("job")))
    names = {name for resource, _, name in found if resource == "configmaps"} - {"*"}
    shards = {shard_name("run-record", n) for n in range(1, RECORD_SHARDS + 1)}
    shards |= {shard_name("run-journal", n) for n in range(1, JOURNAL_SHARDS + 1)}
    own = {"run-job", "run-record", "run-journal", "run-logs", "run-stacks"} | shards
    assert names == own | set(update_parts("run"))
    verbs = {v for r, v, n in found if r == "configmaps" and n in update_parts("run")}
    assert verbs == {"get"}, "the code of updates is written by whoever updates"
    assert {n for r, verb, n in found if (r, verb) == ("configmaps", "delete")} == shards
    assert {v for r, v, n in found if (r, n) == ("configmaps", "*")} == {"create"}


def test_a_controller_reads_no_secret_but_its_own_token() -> None:
    found = rights(access.controller_rules(asked("job")))
    assert {(v, n) for r, v, n in found if r == "secrets"} == {
        ("create", "*"),
        ("get", "run-token"),
    }
    assert not {"*"} & {part for right in found for part in right[:2]}


def test_a_controller_makes_pods_only_where_no_engine_does() -> None:
    assert ("pods", "create", "*") in rights(access.controller_rules(asked("pods")))
    for engine in access.OBJECTS:
        found = rights(access.controller_rules(asked(engine)))
        assert ("pods", "create", "*") not in found
        resource = access.OBJECTS[engine][1]
        assert {n for r, _, n in found if r == resource} == {"run"}, "no object but the job's own"


def test_rights_on_machines_are_asked_for_only_with_cordon() -> None:
    assert not [name for name in made() if name.startswith("Cluster")]
    found = made(access={"cordon": True}, namespace="team")
    role = found["ClusterRole/holdfast-team-run-controller"]
    assert rights(role["rules"]) == {("nodes", v, "*") for v in ("get", "list", "watch", "patch")}
    assert "namespace" not in role["metadata"]
    subjects = found["ClusterRoleBinding/holdfast-team-run-controller"]["subjects"]
    assert subjects[0]["namespace"] == "team"


def test_a_cronjob_gets_rights_to_submit_and_no_controller_yet() -> None:
    found = made("cronjob")
    assert "Deployment/run-controller" not in found
    allowed = rights(found["Role/run-submit"]["rules"])
    assert ("deployments", "create", "*") in allowed
    assert ("deployments", "delete", "run-controller") in allowed
    assert not [name for name in made("cronjob", "plain") if "submit" in name]


# ── the controller ────────────────────────────────────────────────────────────────────────────


def pod(**keys: Any) -> Body:
    """The pod template's spec of the controller."""
    spec: Body = made(**keys)["Deployment/run-controller"]["spec"]["template"]["spec"]
    return spec


def test_a_controller_meets_the_restricted_standard_and_writes_only_to_its_volumes() -> None:
    spec = pod()
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")} == {
        "/var/lib/holdfast",
        "/tmp",
    }


def test_a_controller_is_a_small_pod_with_its_token_and_the_nodes_priority() -> None:
    keys: dict[str, Any] = {
        "resources": {"gpus": 8, "memory": "512Gi"},
        "scheduling": {"priority_class": "train", "node_selector": {"gpu": "h200"}},
    }
    deployment = made(**keys)["Deployment/run-controller"]["spec"]
    assert deployment["strategy"]["type"] == "Recreate"
    spec = pod(**keys)
    assert spec["automountServiceAccountToken"] is True
    assert spec["priorityClassName"] == "train"
    assert [c["name"] for c in spec["containers"]] == ["controller"]
    assert spec["containers"][0]["resources"]["limits"] == {"memory": "256Mi"}
    assert not {"nodeSelector", "hostNetwork"} & spec.keys()


@pytest.mark.parametrize(
    ("journal", "replicas"),
    [
        (None, 2),
        ({"pvc": "j"}, 1),
        ({"pvc": "j", "access_mode": "ReadWriteOncePod"}, 1),
        ({"pvc": "j", "access_mode": "ReadWriteMany"}, 2),
    ],
)
def test_a_second_controller_stands_by_wherever_it_can_mount_what_it_needs(
    journal: dict[str, Any] | None, replicas: int
) -> None:
    keys: dict[str, Any] = {"kubernetes": {"journal": journal}} if journal else {}
    assert made(**keys)["Deployment/run-controller"]["spec"]["replicas"] == replicas


def test_the_controllers_keep_away_from_each_other_and_from_nodes_if_they_can() -> None:
    apart = pod()["affinity"]["podAntiAffinity"]
    assert apart.keys() == {"preferredDuringSchedulingIgnoredDuringExecution"}, "never required"
    (wishes,) = apart.values()
    weights = {
        wish["podAffinityTerm"]["labelSelector"]["matchLabels"].get("holdfast.dev/role"): wish
        for wish in wishes
    }
    assert weights.keys() == {"controller", None}
    assert weights["controller"]["weight"] > weights[None]["weight"] > 0


def test_the_service_leads_to_the_one_that_listens_and_no_budget_counts_the_other() -> None:
    found = made()
    assert "publishNotReadyAddresses" not in found["Service/run-controller"]["spec"]
    (container,) = pod()["containers"]
    assert container["readinessProbe"]["tcpSocket"] == {"port": "controller"}
    assert container["readinessProbe"]["periodSeconds"] == 1
    (term,) = found["PodDisruptionBudget/run"]["spec"]["selector"]["matchExpressions"]
    assert "controller" not in term["values"]


def test_a_controller_leaves_a_dead_machine_before_nodes_do() -> None:
    seconds = {t.get("tolerationSeconds") for t in pod()["tolerations"]}
    assert seconds == {10}


def test_the_overlay_reaches_the_controller_too() -> None:
    spec = pod(overlay={"spec": {"containers": [{"name": "*", "image": "x:1"}], "hostPID": True}})
    assert spec["containers"][0]["image"] == "x:1"
    assert spec["hostPID"] is True


def test_a_controller_may_have_an_image_of_its_own() -> None:
    assert pod()["containers"][0]["image"] == "img:1"
    own = pod(kubernetes={"controller_image": "ctl:2"})
    assert own["containers"][0]["image"] == "ctl:2"


def test_services_select_the_pods_and_ports_that_are_there() -> None:
    found = made(nodes={"count": 2})
    template = found["Deployment/run-controller"]["spec"]["template"]
    service = found["Service/run-controller"]["spec"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    named = {p["name"]: p["containerPort"] for p in template["spec"]["containers"][0]["ports"]}
    assert {p["targetPort"]: p["port"] for p in service["ports"]} == named
    assert found["Service/run"]["spec"]["publishNotReadyAddresses"] is True
    assert "Service/run" not in made("jobset"), "JobSet makes one of that name itself"


def test_the_file_of_the_configmap_gives_the_same_job_again() -> None:
    request: Request = asked(env={"A": "x: 1"}, nodes={"count": 4, "spares": 1})
    (configuration,) = support.controller.configuration(request)
    text = configuration["data"]["job.yaml"]
    assert job_from_dict(_parsed(text), where="test") == request.job


def _parsed(text: str) -> Any:
    return quick_yaml.load(text)


# ── policies ──────────────────────────────────────────────────────────────────────────────────


def ingress(**keys: Any) -> list[Body]:
    rules: list[Body] = made(**keys)["NetworkPolicy/run"]["spec"]["ingress"]
    return rules


def test_pods_are_reached_by_their_job_and_their_metrics_by_anybody() -> None:
    inside, metrics = ingress()
    assert inside == {"from": [{"podSelector": {"matchLabels": {"holdfast.dev/job": "run"}}}]}
    assert {p["port"] for p in metrics["ports"]} == {7070, 7072}
    assert made()["NetworkPolicy/run"]["spec"]["policyTypes"] == ["Ingress"], "egress stays open"
    assert len(ingress(mode="plain")) == 1
    assert "NetworkPolicy/run" not in made(network={"policy": False})


def test_agents_on_the_hosts_network_still_reach_the_controller() -> None:
    (rule,) = ingress(network={"host": True})
    assert "from" not in rule
    assert 7071 in {p["port"] for p in rule["ports"]}
    assert "NetworkPolicy/run" not in made(mode="plain", network={"host": True})


@pytest.mark.parametrize(
    ("keys", "stay"),
    [
        ({"nodes": 8}, 7),
        ({"nodes": {"count": 8, "spares": 2}}, 8),
        ({"nodes": {"count": 8, "spares": 2}, "disruption": {"max_unavailable": 0}}, 10),
        ({"nodes": 1}, 0),
        ({"nodes": 1, "disruption": {"max_unavailable": 3}}, 0),
        ({"nodes": 8, "engine": "mpijob"}, 8),
        ({"sweep": {"trials": 20, "parallel": 5}, "mode": "plain"}, 4),
    ],
)
def test_a_budget_says_how_many_pods_must_stay(keys: dict[str, Any], stay: int) -> None:
    spec = made(**keys)["PodDisruptionBudget/run"]["spec"]
    assert spec["minAvailable"] == stay
    assert "maxUnavailable" not in spec, "Jobs have no scale that it could be taken from"
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_a_job_without_a_budget_has_none() -> None:
    assert "PodDisruptionBudget/run" not in made(disruption={"budget": False})


# ── claims and monitors ───────────────────────────────────────────────────────────────────────


def test_claims_are_made_only_where_a_class_is_named() -> None:
    assert "PersistentVolumeClaim/ckpt" not in made(checkpoints={"shared": {"pvc": "ckpt"}})
    found = made(**{**EVERYTHING, "access": {}})
    claim = found["PersistentVolumeClaim/ckpt"]["spec"]
    assert claim["accessModes"] == ["ReadWriteMany"]
    assert claim["resources"] == {"requests": {"storage": "1Ti"}}
    source = found["VolumeSnapshot/run-ondemand"]["spec"]["source"]
    assert source == {"persistentVolumeClaimName": "ckpt"}
    devices = found["ResourceClaimTemplate/run-gpus"]["spec"]["spec"]["devices"]["requests"]
    assert devices[0]["exactly"]["count"] == 8


def test_monitors_find_what_they_scrape_and_name_the_job() -> None:
    found = made(monitoring={"enabled": True, "labels": {"release": "p"}, "interval_s": 30})
    service = found["Service/run-controller"]["metadata"]["labels"]
    chosen = found["ServiceMonitor/run-controller"]["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= service.items()
    endpoint = found["PodMonitor/run"]["spec"]["podMetricsEndpoints"][0]
    assert (endpoint["port"], endpoint["interval"]) == ("agent", "30s")
    assert found["PodMonitor/run"]["metadata"]["labels"]["release"] == "p"
    assert not [name for name in made() if "Monitor" in name or "Rule" in name]


def test_alerts_have_the_limits_of_the_job() -> None:
    keys = {"max_restarts": 6, "window_s": 600}
    rule = made(monitoring={"enabled": True}, recovery=keys)["PrometheusRule/run"]
    alerts = {alert["alert"]: alert for alert in rule["spec"]["groups"][0]["rules"]}
    assert set(alerts) == {rule.name for rule in alert_rules()}
    series = 'holdfast_restarts_total{holdfast_dev_job="run"}'
    assert alerts["HoldfastRestartStorm"]["expr"] == f"increase({series}[600s]) > 3"
