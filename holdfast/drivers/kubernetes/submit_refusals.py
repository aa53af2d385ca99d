"""What a cluster's refusal means, as an error with a way out. Pure.

The API server has few status codes and puts the rest into sentences: a 403 may be a missing right,
a full quota or a policy. The sentences told apart here are those of Kubernetes 1.31 to 1.37; one
that is not known is shown as it is.
"""

import re
from dataclasses import dataclass

from holdfast.drivers.kubernetes.cluster import ApiError
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.errors import Error

INSTALL = {
    "jobset.x-k8s.io": "JobSet (https://jobset.sigs.k8s.io)",
    "kubeflow.org": "Kubeflow's training operator, or for MPIJob v2beta1 the MPI operator",
    "trainer.kubeflow.org": "Kubeflow Trainer 2 (https://trainer.kubeflow.org)",
    "ray.io": "KubeRay (https://docs.ray.io/en/latest/cluster/kubernetes/index.html)",
    "batch.volcano.sh": "Volcano (https://volcano.sh)",
    "scheduling.volcano.sh": "Volcano (https://volcano.sh)",
    "scheduling.x-k8s.io": "the coscheduling plugin of scheduler-plugins",
    "scheduling.k8s.io": "Kubernetes with the feature gates of gang scheduling",
    "monitoring.coreos.com": "the Prometheus operator, or remove `monitoring.enabled`",
    "snapshot.storage.k8s.io": "the snapshot controller of your storage",
    "resource.k8s.io": "Kubernetes 1.34 or newer, for resources.claims",
}
ADMISSION = (
    "admission webhook",
    "violates podsecurity",
    "validatingadmissionpolicy",
    "denied request",
    "denied the request",
)


WEBHOOK = re.compile(r'webhook "([^"]+)"')
SERVED = re.compile(r"https://[^./]+\.([^./]+)\.svc")


@dataclass(frozen=True)
class About:
    """What was asked of the cluster: the object, and the words that name the cluster."""

    what: str  # as in `JobSet gpt`
    api: str
    namespace: str
    words: str = ""  # " --context c -n ns", to be added to commands


def about(body: Body, namespace: str, words: str = "") -> About:
    """The object of a manifest."""
    what = f"{body['kind']} {body['metadata']['name']}"
    return About(what, str(body["apiVersion"]), namespace, words)


def refused(error: ApiError, of: About) -> Error:
    """The refusal of a call as an error for a person."""
    found = spoken(error.message, of)
    if found is not None:
        return found
    match error.status:
        case 0 | 429 | 502 | 503 | 504:
            return _silent(error, of)
        case 401:
            return _rights(error.message, of)
        case 403:
            return _rights(error.message, of)
        case 404 if not error.message.endswith('" not found'):
            return _no_kind(error.message, of)
        case 400 | 422:
            return _wrong(error.message, of)
        case _:
            return _other(str(error), of)


def spoken(message: str, of: About) -> Error | None:
    """What a sentence of the API server says whatever its status is; None if it is not known."""
    low = message.lower()
    if "exceeded quota" in low or "must specify limits" in low or "failed quota" in low:
        return _quota(message, of)
    if "failed calling webhook" in low:
        return _webhook(message, of)
    if any(mark in low for mark in ADMISSION):
        return _admission(message, of)
    if (low.startswith("namespaces ") and "not found" in low) or "being terminated" in low:
        return _namespace(message, of)
    if "maximum" in low and "usage per" in low:  # of a LimitRange
        return _quota(message, of)
    return None


def _quota(message: str, of: About) -> Error:
    return Error(
        "quota-exceeded",
        f"the quota of namespace {of.namespace} does not allow {of.what}",
        why=message,
        help=f"request less, stop other jobs (holdfast list --on kubernetes{of.words}), or have "
        f"the quota raised: kubectl describe quota -n {of.namespace}",
    )


def _admission(message: str, of: About) -> Error:
    return Error(
        "admission-refused",
        f"an admission rule of the cluster rejects {of.what}",
        why=message,
        help="change the job file accordingly; `holdfast render job.yaml` shows the manifests",
    )


def _webhook(message: str, of: About) -> Error:
    """No rule has judged: whoever should does not answer, and is asked before anything is done."""
    name, where = WEBHOOK.search(message), SERVED.search(message)
    place = f"-n {where[1]}" if where is not None else "-A"
    return Error(
        "webhook-down",
        f"webhook {name[1] if name else 'of the cluster'} does not respond, and without it "
        f"{of.what} can be neither created nor changed",
        why=message,
        help=f"kubectl get pods {place}   (the pods that serve it must be running; then retry)",
    )


def _namespace(message: str, of: About) -> Error:
    return Error(
        "namespace-missing",
        f"{of.what} cannot be created in namespace {of.namespace}",
        why=message,
        help=f"kubectl create namespace {of.namespace}   (or use another namespace with -n)",
    )


def _rights(message: str, of: About) -> Error:
    return Error(
        "rights-missing",
        f"you lack the permission for {of.what}",
        why=message,
        help=f"holdfast doctor --on kubernetes{of.words} job.yaml   (lists what is missing)",
    )


def _no_kind(message: str, of: About) -> Error:
    group = of.api.rpartition("/")[0]
    return Error(
        "engine-missing",
        f"this cluster does not serve {of.what} ({of.api})",
        why=message,
        help=f"install {INSTALL.get(group, group or of.api)}; or choose another --engine: holdfast "
        f"doctor --on kubernetes{of.words} lists the usable ones",
    )


def _wrong(message: str, of: About) -> Error:
    return Error(
        "manifest-refused",
        f"the API server rejects {of.what}",
        why=message,
        help="holdfast render job.yaml   (shows it; an unknown field indicates another version of "
        f"{of.api}, an immutable field an older job: --replace)",
    )


def _silent(error: ApiError, of: About) -> Error:
    return Error(
        "cluster-unreachable",
        f"the API server did not respond to a request for {of.what}",
        why=str(error),
        help="retry: completed steps are not repeated",
    )


def _other(message: str, of: About) -> Error:
    return Error(
        "cluster-refused",
        f"the API server failed on {of.what}",
        why=message,
        help=f"holdfast doctor --on kubernetes{of.words}",
    )
