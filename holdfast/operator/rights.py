"""The rights of the operator: what it does itself, and what it hands on to controllers.

Kubernetes lets nobody give a right that he does not have, so the operator has every right of the
controllers it makes; those have them for the objects of their own job only. `make docs` writes
them to deploy/rbac.
"""

from collections.abc import Iterator

import yaml

from holdfast.drivers.kubernetes.manifests.kueue import DOMAIN
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.manifests.support.access import (
    OBJECTS,
    RBAC,
    controller_rules,
    submitter_rules,
)
from holdfast.operator.definition import GROUP, TRAINING_JOBS
from holdfast.spec import job_from_dict
from holdfast.spec.cluster import ENGINES, Engine

MAKE = ("get", "create", "patch")
REMOVE = (*MAKE, "delete")
WATCH = ("list", "watch")

SUPPORT: dict[str, tuple[str, ...]] = {  # API group: what a job needs beside what makes its pods
    "": ("serviceaccounts", "services", "persistentvolumeclaims"),
    RBAC: ("roles", "rolebindings"),
    "networking.k8s.io": ("networkpolicies",),
    "policy": ("poddisruptionbudgets",),
    "resource.k8s.io": ("resourceclaimtemplates",),
    "monitoring.coreos.com": ("podmonitors", "servicemonitors", "prometheusrules"),
    "snapshot.storage.k8s.io": ("volumesnapshots",),
}
MOVING: dict[str, tuple[str, ...]] = {  # what goes while a job is suspended
    "": ("configmaps", "pods"),
    "apps": ("deployments",),
    "batch": ("cronjobs",),
    "trainer.kubeflow.org": ("trainingruntimes",),
    "scheduling.k8s.io": ("workloads", "podgroups"),
    "scheduling.volcano.sh": ("podgroups",),
    "scheduling.x-k8s.io": ("podgroups",),
}

Rules = dict[tuple[str, str], set[str]]


def rules() -> list[Body]:
    """All of them, one for each API group and set of verbs."""
    found: Rules = {}
    for (group, resource), verbs in [*_own(), *_made(), *_handed()]:
        found.setdefault((group, resource), set()).update(verbs)
    return _grouped(found)


def _own() -> Iterator[tuple[tuple[str, str], tuple[str, ...]]]:
    """The operator's own business."""
    yield (GROUP, TRAINING_JOBS.plural), ("get", *WATCH, "delete")
    yield (GROUP, f"{TRAINING_JOBS.plural}/status"), ("patch",)
    yield (GROUP, f"{TRAINING_JOBS.plural}/finalizers"), ("update",)  # to be an owner that blocks
    yield ("apps", "deployments"), WATCH
    yield ("", "configmaps"), WATCH
    yield ("", "events"), ("create",)
    yield ("", "secrets"), ("get", "patch")  # owner of NAME-token
    yield ("", "pods"), ("patch",)  # owner of pods that a controller has made
    yield ("coordination.k8s.io", "leases"), (*MAKE, "list")  # those of other operators
    yield (DOMAIN, "workloads"), ("list",)  # why Kueue holds a job back


def _made() -> Iterator[tuple[tuple[str, str], tuple[str, ...]]]:
    for group, resources in SUPPORT.items():
        yield from (((group, resource), MAKE) for resource in resources)
    for group, resources in MOVING.items():
        yield from (((group, resource), REMOVE) for resource in resources)
    yield from ((place, REMOVE) for place in OBJECTS.values())


def _handed() -> Iterator[tuple[tuple[str, str], tuple[str, ...]]]:
    """What controllers may, and whoever submits the jobs of a CronJob."""
    for engine in ENGINES:
        for rule in _rules_of(engine):
            for resource in rule["resources"]:
                yield (rule["apiGroups"][0], resource), tuple(rule["verbs"])


def _rules_of(engine: Engine) -> list[Body]:
    found = []
    for gang in ("none", "native", "volcano", "coscheduling"):
        scheduling = {"gang": gang}
        keys = {"name": "any", "script": "train.py", "image": "any", "scheduling": scheduling}
        request = Request(job_from_dict(keys, where="rights"), engine, "managed")
        found += controller_rules(request)
        found += submitter_rules(request) if engine == "cronjob" else []
    return found


ORDER = ("get", "list", "watch", "create", "update", "patch", "delete")


def _grouped(found: Rules) -> list[Body]:
    """Resources of one group with the same verbs share a rule."""
    shared: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, resource), verbs in sorted(found.items()):
        ordered = tuple(verb for verb in ORDER if verb in verbs)
        shared.setdefault((group, ordered), []).append(resource)
    return [
        {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
        for (group, verbs), resources in shared.items()
    ]


def role() -> Body:
    """As a ClusterRole; deploy/namespaced makes a Role of it."""
    meta = {"name": "holdfast-operator", "labels": {"app.kubernetes.io/name": "holdfast-operator"}}
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": meta, "rules": rules()}


def as_yaml() -> str:
    """As a file of deploy/rbac."""
    head = "# Written by `make docs`. Change holdfast/operator/rights.py, not this.\n"
    return head + yaml.safe_dump(role(), sort_keys=False, default_flow_style=None, width=100)
