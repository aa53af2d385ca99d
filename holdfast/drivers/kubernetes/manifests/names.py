"""Names, labels and metadata of everything that belongs to a job.

One label selects the pods of a job, `holdfast.dev/job`; the others say what a pod is. Labels of the
user never replace these.
"""

from holdfast.drivers.kubernetes.manifests.request import Body, Request

DOMAIN = "holdfast.dev"
JOB = f"{DOMAIN}/job"
IMAGE = f"{DOMAIN}/image"  # which image a pod was made with, if an update has changed it
AVOIDS = f"{DOMAIN}/avoids"  # which machines a pod was kept off when it was made, if any
ROLE = f"{DOMAIN}/role"  # node · spare · launcher · submitter · controller · chief · ps · evaluator
STOP = f"{DOMAIN}/stop"  # annotation on the job's ConfigMap, a wish: now, gently
SCALE = f"{DOMAIN}/scale"  # likewise: how many nodes are to train
LEFT = f"{DOMAIN}/left-machines"  # likewise, of the controller: machines that new pods avoid
UPDATE = f"{DOMAIN}/update"  # likewise: another version, as JSON of `UpdateJob`
UPDATE_SPEC = f"{DOMAIN}/update-spec"  # likewise, from the operator: the spec has changed
SPEC_CODE = f"{DOMAIN}/spec-code"  # on the job's ConfigMap: the `code` of its TrainingJob
STACKS = f"{DOMAIN}/stacks"  # likewise: whoever wrote this word wants stacks
CODE = f"{DOMAIN}/code"  # on a part of a bundle of code: the beginning of its SHA-256
BULK = f"{DOMAIN}/bulk"  # on what is large and useless to whoever lists jobs
MANAGED_BY = "app.kubernetes.io/managed-by"
RECORD_SHARDS, JOURNAL_SHARDS = 20, 24  # ConfigMaps NAME-record-1 and so on, at most
UPDATE_PARTS = 24  # ConfigMaps NAME-update-1 and so on, with the code of updates
LONGEST = 63  # characters of a DNS label, and so of a pod's host name


def token_name(job: str) -> str:
    """Name of the Secret with the job's token."""
    return f"{job}-token"


def update_parts(job: str) -> list[str]:
    """Names of the ConfigMaps that the code of updates may take."""
    return [f"{job}-update-{number}" for number in range(1, UPDATE_PARTS + 1)]


def metadata(request: Request, name: str) -> Body:
    """`metadata` of an object of this job."""
    user = request.job.metadata
    found: Body = {"name": name}
    if request.namespace is not None:
        found["namespace"] = request.namespace
    found["labels"] = {**user.labels, **own_labels(request)}
    if user.annotations:
        found["annotations"] = dict(user.annotations)
    return found


def own_labels(request: Request) -> dict[str, str]:
    """Labels of every object of the job."""
    return {JOB: request.name, MANAGED_BY: "holdfast"}


def pod_labels(request: Request, role: str) -> dict[str, str]:
    """Labels of a pod with this role."""
    return {**request.job.metadata.labels, **own_labels(request), ROLE: role}


def selector(request: Request, *roles: str) -> Body:
    """A label selector for the job's pods, of these roles if any are given."""
    found: Body = {"matchLabels": {JOB: request.name}}
    if roles:
        found["matchExpressions"] = [{"key": ROLE, "operator": "In", "values": list(roles)}]
    return found
