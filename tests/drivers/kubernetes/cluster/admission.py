"""What happens to an object on its way in: defaults, and checks that a schema cannot make."""

import base64
import hashlib
from collections.abc import Iterable

from holdfast.drivers.kubernetes.cluster import (
    JOBS,
    NAMESPACES,
    PODS,
    PRIORITIES,
    QUOTAS,
    SERVICE_ACCOUNTS,
    Kind,
)
from tests.drivers.kubernetes import schemas
from tests.drivers.kubernetes.cluster import pod_security
from tests.drivers.kubernetes.cluster.quantities import number
from tests.drivers.kubernetes.cluster.refusal import (
    Body,
    RefusalError,
    copied,
    forbidden,
    invalid,
    missing,
)
from tests.drivers.kubernetes.cluster.store import Store

CONFIG_MAP_BYTES = 1 << 20
EVICTING = ("not-ready", "unreachable")
UNTOLD = ("no schema for", "kubeflow-trainer-api")
IMMUTABLE = ("completionMode", "selector", "template")  # of a Job that is not suspended
MUTABLE = ("activeDeadlineSeconds", "tolerations", "schedulingGates", "containers", "nodeName")
JOB_SET = "jobset.sigs.k8s.io/jobset-name"  # its webhook makes a label of the priority


def validate(body: Body, *, strict: bool) -> None:
    """Raises `RefusalError` for what the schema of the kind does not allow."""
    kind, name = str(body.get("kind")), str(body.get("metadata", {}).get("name", ""))
    found = [p for p in schemas.problems(body) if not p.startswith(UNTOLD)]
    found = [p for p in found if not p.endswith(": is null")]
    unknown = [p for p in found if "unexpected" in p]
    wrong = [p for p in found if p not in unknown]
    if unknown and strict:
        said = ", ".join(f'unknown field "{problem}"' for problem in unknown)
        version = str(body.get("apiVersion")).rpartition("/")[2]
        what = f'{kind} in version "{version}" cannot be handled as a {kind}'
        raise RefusalError(400, f"{what}: strict decoding error: {said}")
    if wrong:
        raise invalid(kind, name, "; ".join(wrong))
    if kind == "ConfigMap" and content_bytes(body) > CONFIG_MAP_BYTES:
        raise invalid(kind, name, f"[]: Too long: may not be more than {CONFIG_MAP_BYTES} bytes")


def content_bytes(config_map: Body) -> int:
    """What a ConfigMap holds, as the API server counts it: binary data without base64."""
    data, binary = config_map.get("data") or {}, config_map.get("binaryData") or {}
    plain = sum(len(value.encode()) for value in data.values())
    return plain + sum(len(base64.b64decode(value)) for value in binary.values())


def admit(store: Store, kind: Kind, namespace: str, body: Body) -> Body:
    """A new object with its defaults. Raises `RefusalError`."""
    if kind.namespaced:
        home = store.find(NAMESPACES, "", namespace)
        if home is None:
            raise missing("namespaces", namespace)
        if "deletionTimestamp" in home["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being"
            raise forbidden(kind.plural, body["metadata"].get("name", ""), f"{why} terminated")
    made = copied(body)
    match (kind.api, kind.kind):
        case ("v1", "Pod"):
            pod(store, namespace, made)
        case ("batch/v1", "Job"):
            job(made)
        case ("apps/v1", "Deployment"):
            made["spec"].setdefault("replicas", 1)
        case ("v1", "Secret"):
            plain = made.pop("stringData", {})
            coded = {k: base64.b64encode(v.encode()).decode() for k, v in plain.items()}
            made["data"] = {**made.get("data", {}), **coded}
        case _:
            pass
    return made


# ── pods ──────────────────────────────────────────────────────────────────────────────────────


def pod(store: Store, namespace: str, body: Body) -> None:
    """Defaults of a pod, its priority, its account, the quota. Raises `RefusalError` (403)."""
    spec, name = body["spec"], body["metadata"].get("name", "")
    pod_defaults(spec)
    account = spec.setdefault("serviceAccountName", "default")
    if store.find(SERVICE_ACCOUNTS, namespace, account) is None:
        why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}"'
        raise forbidden("pods", name, f"{why} not found")
    if "priorityClassName" in spec:
        spec["priority"] = _priority(store, spec["priorityClassName"], name)
    if JOB_SET in body["metadata"].get("labels", {}) and spec["priority"] < 0:
        why = "a valid label must be an empty string or consist of alphanumeric characters"
        raise invalid("Pod", name, f"metadata.labels: {spec['priority']}: {why}")
    _check_affinity(spec, name)
    pod_security.check(store.find(NAMESPACES, "", namespace), body)
    body["status"] = {"phase": "Pending", "qosClass": "Burstable"}
    _within_quota(store, namespace, body)


def _check_affinity(spec: Body, name: str) -> None:
    """A field of a machine, which is its name, is compared with one value."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms", []):
        for one in term.get("matchFields", []):
            if one["key"] != "metadata.name" or len(one["values"]) != 1:
                why = "must be only one value when `operator` is 'In' or 'NotIn'"
                raise invalid("Pod", name, f"spec.affinity.nodeAffinity.matchFields: {why}")


def pod_defaults(spec: Body) -> None:
    """What Kubernetes fills in, as far as somebody here reads it."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("priority", 0)
    tolerations = spec.setdefault("tolerations", [])
    for key in (f"node.kubernetes.io/{name}" for name in EVICTING):
        if not any(t.get("key") in (None, key) for t in tolerations):
            more = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            tolerations.append({"key": key, **more})


def _priority(store: Store, name: str, pod_name: str) -> int:
    found = store.find(PRIORITIES, "", name)
    if found is None:
        raise forbidden("pods", pod_name, f"no PriorityClass with name {name} was found")
    return int(found["value"])


def _within_quota(store: Store, namespace: str, body: Body) -> None:
    for quota in store.all(QUOTAS, namespace):
        hard = quota["spec"].get("hard", {})
        used = usage(p for p in store.all(PODS, namespace) if _counted(p))
        more = usage([body])
        over = [k for k in hard if used.get(k, 0) + more.get(k, 0) > number(str(hard[k]))]
        if over:
            sums = [f"{text}: {_told(amounts, over)}" for text, amounts in _sums(used, more, hard)]
            why = f"exceeded quota: {quota['metadata']['name']}, {', '.join(sums)}"
            raise forbidden("pods", body["metadata"].get("name", ""), why)


def _sums(used: Body, more: Body, hard: Body) -> list[tuple[str, Body]]:
    return [("requested", more), ("used", used), ("limited", hard)]


def _told(amounts: Body, keys: list[str]) -> str:
    return ",".join(f"{key}={amounts.get(key, 0)}" for key in keys)


def _counted(body: Body) -> bool:
    return body.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def usage(pods: Iterable[Body]) -> dict[str, float]:
    """What pods ask for, by the names that a quota has for it."""
    found: dict[str, float] = {}
    for body in pods:
        found["pods"] = found.get("pods", 0) + 1
        for side in ("requests", "limits"):
            for key, amount in asked(body, side).items():
                whole = f"{side}.{key}"
                found[whole] = found.get(whole, 0) + amount
    return found


def asked(body: Body, side: str = "requests") -> dict[str, float]:
    """Resources of all containers of a pod; a limit is a request where none is named."""
    found: dict[str, float] = {}
    for container in body["spec"]["containers"]:
        said = container.get("resources", {})
        limits = said.get("limits", {})
        amounts = limits if side == "limits" else {**limits, **said.get("requests", {})}
        for key, amount in amounts.items():
            found[key] = found.get(key, 0) + number(str(amount))
    return found


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────


def job(body: Body) -> None:
    """Defaults of a Job, and what only its own validation knows. Raises `RefusalError`."""
    spec, name = body["spec"], body["metadata"].get("name", "")
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("parallelism", 1)
    if spec["completionMode"] == "Indexed" and "completions" not in spec:
        raise invalid("Job.batch", name, "spec.completions: Required value")
    if "completions" not in spec and body["spec"]["parallelism"] == 1:
        spec["completions"] = 1
    per_index = "backoffLimitPerIndex" in spec
    spec.setdefault("backoffLimit", 2**31 - 1 if per_index else 6)
    spec.setdefault("suspend", False)
    rules = "podFailurePolicy" in spec
    spec.setdefault("podReplacementPolicy", "Failed" if rules else "TerminatingOrFailed")
    restart = spec["template"]["spec"].get("restartPolicy")
    if restart not in ("Never", "OnFailure"):
        why = f'Required value: valid values: "OnFailure", "Never"; found {restart}'
        raise invalid("Job.batch", name, f"spec.template.spec.restartPolicy: {why}")
    if (rules or per_index) and restart != "Never":
        raise invalid("Job.batch", name, "spec.template.spec.restartPolicy: must be Never")
    if rules and spec["podReplacementPolicy"] != "Failed":
        raise invalid("Job.batch", name, "spec.podReplacementPolicy: must be Failed")


def mark_job(body: Body) -> None:
    """Labels that bind pods to their Job: they carry its UID, so they come last."""
    meta, uid = body["metadata"], body["metadata"]["uid"]
    labels = body["spec"]["template"].setdefault("metadata", {}).setdefault("labels", {})
    for prefix in ("", "batch.kubernetes.io/"):
        labels |= {f"{prefix}controller-uid": uid, f"{prefix}job-name": meta["name"]}
    body["spec"]["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}


# ── changes ───────────────────────────────────────────────────────────────────────────────────


def check_change(kind: Kind, old: Body, new: Body) -> None:
    """Raises `RefusalError` (422) for a change of what cannot change."""
    for path, why in schemas.immutable(kind.kind, kind.api):
        if _changed(old, new, path):
            raise invalid(kind.kind, new["metadata"]["name"], f"{'.'.join(path)}: {why}")
    if kind == PODS:
        _check_pod(old, new)
    if kind == JOBS:
        _check_job(old, new)
    if kind.kind == "TrainJob" and old["spec"].get("trainer") != new["spec"].get("trainer"):
        raise invalid("TrainJob", new["metadata"]["name"], "spec.trainer: field is immutable")


def _changed(old: object, new: object, path: tuple[str, ...]) -> bool:
    """Whether what is there before and after differs; what comes or goes is no such change."""
    first, *rest = path
    if not isinstance(old, dict) or not isinstance(new, dict):
        return False
    if first not in old or first not in new:
        return False
    return _changed(old[first], new[first], tuple(rest)) if rest else old[first] != new[first]


def _check_pod(old: Body, new: Body) -> None:
    fixed = [k for k in {*old["spec"], *new["spec"]} if k not in MUTABLE]
    changed = [k for k in fixed if old["spec"].get(k) != new["spec"].get(k)]
    if changed:
        why = "spec: Forbidden: pod updates may not change fields other than image, tolerations"
        raise invalid("Pod", new["metadata"]["name"], f"{why}: {', '.join(changed)}")


def _check_job(old: Body, new: Body) -> None:
    before, after, name = old["spec"], new["spec"], new["metadata"]["name"]
    for key in IMMUTABLE:
        if before.get(key) != after.get(key) and not (key == "template" and before["suspend"]):
            raise invalid("Job.batch", name, f"spec.{key}: field is immutable")
    resized = before.get("completions") != after.get("completions")
    if resized and after.get("completions") != after.get("parallelism"):
        why = "field is immutable: can only be modified in tandem with spec.parallelism"
        raise invalid("Job.batch", name, f"spec.completions: {why}")


def digest(body: object) -> str:
    """A short name for the content of a template."""
    return hashlib.sha256(repr(body).encode()).hexdigest()[:9]
