"""CronJob: a job at certain times.

Managed: at each time a small pod submits the job as one with pods of its own, and stays until it
has ended, because a CronJob's rule for overlaps sees only its own children. Plain: the child is the
training itself, an Indexed Job whose name ends in the time; its pods learn it from their labels.
"""

from holdfast.drivers.kubernetes.manifests import indexed, kueue, pod, security, storage
from holdfast.drivers.kubernetes.manifests.names import metadata, own_labels, pod_labels
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.spec.cluster import Schedule

SUBMIT = ("holdfast", "submit", f"{storage.JOB}/job.yaml")
OPTIONS = ("--on", "kubernetes", "--engine", "pods", "--wait")
CHILD = storage.RUN  # variable with the name of the child
CHILD_LABEL = "metadata.labels['batch.kubernetes.io/job-name']"
RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "256Mi"}}


def bodies(request: Request) -> list[Body]:
    """The CronJob."""
    schedule = request.job.schedule
    assert schedule is not None, "checked before"
    child = _submission(request) if request.managed else _training(request)
    found: Body = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": metadata(request, request.name),
        "spec": {**_times(request, schedule), "jobTemplate": child},
    }
    return [found]


def _times(request: Request, schedule: Schedule) -> Body:
    found: Body = {
        "schedule": schedule.cron,
        "timeZone": schedule.time_zone,
        "suspend": request.job.lifetime.suspend or None,
        "concurrencyPolicy": schedule.overlap,
        "startingDeadlineSeconds": schedule.late_s,
        "successfulJobsHistoryLimit": schedule.keep_succeeded,
        "failedJobsHistoryLimit": schedule.keep_failed,
    }
    return {key: value for key, value in found.items() if value is not None}


def _training(request: Request) -> Body:
    name: Body = {"name": CHILD, "valueFrom": {"fieldRef": {"fieldPath": CHILD_LABEL}}}
    part = indexed.node(request, f"$({CHILD})-0.{request.name}", env=(name,))
    spec = indexed.spec(request, "node", indexed.template(request, part))
    lifetime = {k: v for k, v in indexed.lifetime(request).items() if k != "suspend"}
    child = {"metadata": {"labels": own_labels(request)}, "spec": {**lifetime, **spec}}
    return kueue.apply(request, child)


def _submission(request: Request) -> Body:
    keep = request.job.lifetime.keep_s
    spec: Body = {} if keep is None else {"ttlSecondsAfterFinished": keep}
    spec["backoffLimit"] = 0  # the job has a failure budget of its own
    labels = pod_labels(request, "submit")
    spec["template"] = {"metadata": {"labels": labels}, "spec": _submitter(request)}
    return {"metadata": {"labels": own_labels(request)}, "spec": spec}


def _code(request: Request) -> list[Body]:
    """Where the code lies that was shipped once, with the CronJob."""
    if request.job.code is None:
        return []
    return [{"name": "HOLDFAST_CODE", "value": storage.code_name(request)}]


def _submitter(request: Request) -> Body:
    image = pod.image(request.job)
    container: Body = {
        "name": "submit",
        "image": request.job.kubernetes.controller_image or image.name,
        "imagePullPolicy": image.pull,
        "command": [*SUBMIT, *OPTIONS],
        "env": _code(request),
        "resources": RESOURCES,
        "volumeMounts": [{"name": "job", "mountPath": storage.JOB, "readOnly": True}],
        "securityContext": security.container(request, frozen=True),
    }
    found: Body = {
        "restartPolicy": "Never",
        "serviceAccountName": f"{request.name}-submit",
        "automountServiceAccountToken": True,
        "securityContext": security.pod(request),
        "imagePullSecrets": [{"name": name} for name in image.pull_secrets],
        "containers": [{key: value for key, value in container.items() if value}],
        "volumes": [{"name": "job", "configMap": {"name": f"{request.name}-job"}}],
    }
    return {key: value for key, value in found.items() if value}
