"""The controller of a managed job, another one that stands by, and the job file they read.

Both are small pods of one Deployment; a lease says which of them is the controller, and only that
one listens and so is ready: the Service leads to it alone. On machines of their own, if there are
any, they are not lost together, nor with a node. Without the second one a new pod would be made
only once the cluster has given up the machine, a minute later. They train nothing, so they are in
no gang and ask for no GPU; nor are they in a budget, which would count the one that is ready only
and never let its machine be drained.

Losing the controller stops nobody: agents train on until the next one has read its journal.
"""

import base64

from holdfast.drivers.kubernetes.manifests import network, placement, pod, security, storage
from holdfast.drivers.kubernetes.manifests.names import ROLE, metadata, pod_labels, selector
from holdfast.drivers.kubernetes.manifests.overlay import merged
from holdfast.drivers.kubernetes.manifests.part import Part
from holdfast.drivers.kubernetes.manifests.placement import HOSTNAME
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.manifests.support.services import METRICS_PORT
from holdfast.spec import Job
from holdfast.spec.load import as_given
from holdfast.spec.notify import URL_VARIABLE
from holdfast.spec.otlp import HEADERS_VARIABLE

HOME = "/var/lib/holdfast"
JOURNALS = "/var/lib/holdfast-journals"  # where the claim for journals is, if there is one
SMALL = Part(role="controller", small=True)
COMMAND = ["holdfast", "controller", "--on", "kubernetes"]
RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "256Mi"}}

READY = {"tcpSocket": {"port": "controller"}, "periodSeconds": 1, "failureThreshold": 30}


def configuration(request: Request) -> list[Body]:
    """The ConfigMap with the job file, which the controller and the agents read."""
    if not request.managed:
        return []
    made = metadata(request, f"{request.name}-job")
    job = request.job
    if job.code is not None:  # it is the working folder there
        job = job.model_copy(update={"code": "."})
    data = {"job.yaml": as_given(job)}
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": made, "data": data}]


def code(request: Request) -> list[Body]:
    """The ConfigMaps with the code that is shipped."""
    if request.job.code is None:
        return []
    maps = storage.code_maps(request).items()
    return [_part(request, name, file, i) for i, (name, file) in enumerate(maps)]


def _part(request: Request, name: str, file: str, number: int) -> Body:
    start = number * storage.PART_BYTES
    part = request.code[start : start + storage.PART_BYTES]
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(request, name)}
    return {**body, "immutable": True, "binaryData": {file: base64.b64encode(part).decode()}}


def deployment(request: Request, run: str = "") -> list[Body]:
    """The Deployment; a CronJob has none, because each submission starts its own, called `run`."""
    if not request.managed or request.engine == "cronjob":
        return []
    chosen = {**selector(request)["matchLabels"], ROLE: "controller"}
    spec = {
        "replicas": replicas(request.job),
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": chosen},
        "template": merged(
            {"metadata": _metadata(request), "spec": _spec(request, run)},
            request.job.overlay,
            main="controller",
        ),
    }
    made = metadata(request, f"{request.name}-controller")
    return [{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": made, "spec": spec}]


def replicas(job: Job) -> int:
    """The controller and one that stands by; that could not mount a claim that one machine has."""
    journal = job.kubernetes.journal
    return 2 if journal is None or journal.access_mode == "ReadWriteMany" else 1


def _metadata(request: Request) -> Body:
    found: Body = {"labels": pod_labels(request, "controller")}
    annotations = {**request.job.metadata.annotations, **network.mesh(request.job)}
    return {**found, "annotations": annotations} if annotations else found


def _spec(request: Request, run: str) -> Body:
    placed = placement.pod(request, SMALL)
    found = {
        "serviceAccountName": f"{request.name}-controller",
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "priorityClassName": placed.get("priorityClassName"),
        "affinity": _apart(request),
        "tolerations": placed["tolerations"],
        "securityContext": security.pod(request),
        "imagePullSecrets": [{"name": name} for name in pod.image(request.job).pull_secrets],
        "containers": [_container(request, run)],
        "volumes": [
            {"name": "job", "configMap": {"name": f"{request.name}-job"}},
            {"name": "home", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            *_journals(request, {"persistentVolumeClaim": {"claimName": _claim(request)}}),
        ],
    }
    return {key: value for key, value in found.items() if value not in (None, [], {})}


def _apart(request: Request) -> Body:
    """Rather not where the other one is, nor where anything of the job is."""
    job = selector(request)["matchLabels"]
    wishes = [_away_from(100, {**job, ROLE: "controller"}), _away_from(50, job)]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wishes}}


def _away_from(weight: int, labels: Body) -> Body:
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": HOSTNAME}
    return {"weight": weight, "podAffinityTerm": term}


def _claim(request: Request) -> str | None:
    journal = request.job.kubernetes.journal
    return None if journal is None else journal.pvc


def _journals(request: Request, content: Body) -> list[Body]:
    """A part of the pod that is there with the claim only."""
    return [] if _claim(request) is None else [{"name": "journals", **content}]


def _container(request: Request, run: str) -> Body:
    image = pod.image(request.job)
    found = {
        "name": "controller",
        "image": request.job.kubernetes.controller_image or image.name,
        "imagePullPolicy": image.pull,
        "command": COMMAND,
        "ports": [
            {"name": "controller", "containerPort": pod.CONTROLLER_PORT},
            {"name": "metrics", "containerPort": METRICS_PORT},
        ],
        "env": _env(request, run),
        "resources": RESOURCES,
        "volumeMounts": [
            {"name": "job", "mountPath": storage.JOB, "readOnly": True},
            {"name": "home", "mountPath": HOME},
            {"name": "tmp", "mountPath": "/tmp"},
            *_journals(request, {"mountPath": JOURNALS}),
        ],
        "readinessProbe": READY,
        "securityContext": security.container(request, frozen=True),
    }
    return {key: value for key, value in found.items() if value}


def _env(request: Request, run: str) -> list[Body]:
    said = {
        "HOLDFAST_JOB": request.name,
        "HOLDFAST_JOB_FILE": f"{storage.JOB}/job.yaml",
        "HOLDFAST_ENGINE": request.engine,
        "HOLDFAST_HOME": HOME,
    }
    if request.job.code is not None:
        said["HOLDFAST_CODE"] = storage.code_name(request)
    if _claim(request) is not None:
        said["HOLDFAST_JOURNALS"] = JOURNALS
    if run:
        said["HOLDFAST_RUN"] = run
    receivers = enumerate(request.job.notify)
    keys = {URL_VARIABLE.format(i): rule.url_secret for i, rule in receivers if rule.url_secret}
    if request.job.otlp is not None and request.job.otlp.headers_secret is not None:
        keys[HEADERS_VARIABLE] = request.job.otlp.headers_secret
    own = {"HOLDFAST_NAMESPACE": "metadata.namespace", "HOLDFAST_POD": "metadata.name"}
    return [
        *({"name": name, "value": value} for name, value in said.items()),
        *({"name": n, "valueFrom": {"fieldRef": {"fieldPath": path}}} for n, path in own.items()),
        *(
            {"name": n, "valueFrom": {"secretKeyRef": {"name": one.name, "key": one.key}}}
            for n, one in keys.items()
        ),
    ]
