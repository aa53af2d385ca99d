"""Accounts and rights: none for the pods that train, the fewest that do for the controller.

Rights are those of the job's own namespace, limited to objects of its name wherever Kubernetes can
limit them: `create`, `list` and a selection by label it cannot. Machines belong to the cluster, so
rights on them need a ClusterRole, which is made only when the job asks for `access.cordon`.
"""

from collections.abc import Sequence

from holdfast.drivers.kubernetes.manifests.names import (
    JOURNAL_SHARDS,
    RECORD_SHARDS,
    metadata,
    token_name,
    update_parts,
)
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.spec.cluster import Engine

RBAC = "rbac.authorization.k8s.io"
RECORDS = ("record", "journal", "logs", "stacks")
OWN_MAPS = (
    "job",
    *RECORDS,
)  # the job file, with the wish to stop; the record and what belongs to it

OBJECTS: dict[Engine, tuple[str, str]] = {  # API group and resource of the engine's main object
    "job": ("batch", "jobs"),
    "jobset": ("jobset.x-k8s.io", "jobsets"),
    "pytorchjob": ("kubeflow.org", "pytorchjobs"),
    "tfjob": ("kubeflow.org", "tfjobs"),
    "jaxjob": ("kubeflow.org", "jaxjobs"),
    "xgboostjob": ("kubeflow.org", "xgboostjobs"),
    "paddlejob": ("kubeflow.org", "paddlejobs"),
    "mpijob": ("kubeflow.org", "mpijobs"),
    "rayjob": ("ray.io", "rayjobs"),
    "trainjob": ("trainer.kubeflow.org", "trainjobs"),
    "volcano": ("batch.volcano.sh", "jobs"),
}


def objects(request: Request) -> list[Body]:
    """ServiceAccounts, Roles and bindings, in the order to apply."""
    return [*_pods(request), *_controller(request), *_submitter(request)]


def _pods(request: Request) -> list[Body]:
    """The account of the pods that train: nothing but a name, for clouds that lend rights to it."""
    access = request.job.access
    return [] if access.service_account else [_account(request, request.name, access.annotations)]


def _controller(request: Request) -> list[Body]:
    if not request.managed:
        return []
    name = f"{request.name}-controller"
    return [*_allowed(request, name, controller_rules(request)), *_machines(request, name)]


def _submitter(request: Request) -> list[Body]:
    """Who submits at the times of a CronJob."""
    if not (request.managed and request.engine == "cronjob"):
        return []
    return _allowed(request, f"{request.name}-submit", submitter_rules(request))


def _allowed(request: Request, name: str, rules: Sequence[Body]) -> list[Body]:
    """An account with a role of its own."""
    role = {"apiGroup": RBAC, "kind": "Role", "name": name}
    return [
        _account(request, name, {}),
        _object(request, "Role", name, rules=list(rules)),
        _object(request, "RoleBinding", name, roleRef=role, subjects=[_subject(name)]),
    ]


def controller_rules(request: Request) -> list[Body]:
    """What a controller may do in its namespace."""
    makes_pods = request.engine in ("pods", "cronjob")
    pods = ["get", "list", "watch", *(["create"] if makes_pods else []), "delete"]
    return [
        _rule("", ["pods"], pods),
        _rule("", ["pods/eviction"], ["create"]),
        _rule("", ["pods/log"], ["get"]),
        _rule("", ["secrets"], ["create"]),
        _rule("", ["secrets"], ["get"], [token_name(request.name)]),
        _rule("", ["events"], ["create", "patch"]),
        _rule("", ["configmaps"], ["create"]),
        _rule("", ["configmaps"], ["get", "patch"], [f"{request.name}-{x}" for x in OWN_MAPS]),
        _rule("", ["configmaps"], ["list", "watch"], [f"{request.name}-job"]),
        _rule("", ["configmaps"], ["get", "patch", "delete"], _shards(request)),
        _rule("", ["configmaps"], ["get"], update_parts(request.name)),
        _rule("coordination.k8s.io", ["leases"], ["create"]),
        _rule("coordination.k8s.io", ["leases"], ["get", "patch"], [f"{request.name}-controller"]),
        _rule("apps", ["deployments/scale"], ["patch"], [f"{request.name}-controller"]),
        *_engine_rules(request),
    ]


def _shards(request: Request) -> list[str]:
    """Names of the ConfigMaps that what is too large for one is written to."""
    pools = (("record", RECORD_SHARDS), ("journal", JOURNAL_SHARDS))
    return [f"{request.name}-{x}-{n}" for x, count in pools for n in range(1, count + 1)]


def _engine_rules(request: Request) -> list[Body]:
    """Watch, suspend and delete the one object that makes the pods."""
    if request.engine not in OBJECTS:
        return []
    group, resource = OBJECTS[request.engine]
    return [_rule(group, [resource], ["get", "watch", "patch", "delete"], [request.name])]


def submitter_rules(request: Request) -> list[Body]:
    """What a submission may do: clear away what the last one left, start a controller."""
    name = f"{request.name}-controller"
    return [
        _rule("apps", ["deployments"], ["create"]),
        _rule("apps", ["deployments"], ["get", "watch", "delete"], [name]),
        _rule("", ["pods"], ["get", "list", "watch", "delete"]),
        _rule("", ["configmaps"], ["get", "patch"], [f"{request.name}-job"]),
        _rule("", ["configmaps"], ["get", "delete"], [f"{request.name}-{x}" for x in RECORDS]),
        *_gang_rules(request),
    ]


def _gang_rules(request: Request) -> list[Body]:
    """A submission makes the gang of its pods."""
    verbs = ["create", "get", "delete"]
    match request.job.scheduling.gang:
        case "native":
            return [_rule("scheduling.k8s.io", ["workloads", "podgroups"], verbs)]
        case "volcano":
            return [_rule("scheduling.volcano.sh", ["podgroups"], verbs)]
        case "coscheduling":
            return [_rule("scheduling.x-k8s.io", ["podgroups"], verbs)]
        case _:
            return []


def _machines(request: Request, account: str) -> list[Body]:
    """Rights on machines; the names carry the namespace because they belong to the cluster."""
    if not request.job.access.cordon:
        return []
    name = machine_role(request.namespace, account)
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
    subject = {**_subject(account), "namespace": request.namespace}
    rules = [_rule("", ["nodes"], ["get", "list", "watch", "patch"])]
    made = [
        _object(request, "ClusterRole", name, rules=rules),
        _object(request, "ClusterRoleBinding", name, roleRef=role, subjects=[subject]),
    ]
    for body in made:
        body["metadata"].pop("namespace", None)
    return made


def machine_role(namespace: str | None, account: str) -> str:
    """Name of the ClusterRole of an account, and of its binding."""
    return f"holdfast-{namespace}-{account}"


def _account(request: Request, name: str, annotations: dict[str, str]) -> Body:
    made = metadata(request, name)
    if annotations:
        made["annotations"] = {**made.get("annotations", {}), **annotations}
    kind = {"apiVersion": "v1", "kind": "ServiceAccount"}
    return {**kind, "metadata": made, "automountServiceAccountToken": False}


def _object(request: Request, kind: str, name: str, **content: object) -> Body:
    made = {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata(request, name)}
    return {**made, **content}


def _subject(name: str) -> Body:
    return {"kind": "ServiceAccount", "name": name}


def _rule(group: str, resources: list[str], verbs: list[str], names: Sequence[str] = ()) -> Body:
    rule: Body = {"apiGroups": [group], "resources": resources}
    if names:
        rule["resourceNames"] = list(names)
    return {**rule, "verbs": verbs}
