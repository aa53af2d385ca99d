"""Webhooks of those who extend a cluster: asked about each change of their kinds, whoever makes it.

They fail closed: while one is down, nobody can create or change what it looks after, not even the
collector that takes a finalizer off.
"""

from dataclasses import dataclass, field

from holdfast.drivers.kubernetes.cluster import Kind
from tests.drivers.kubernetes.cluster.engines.runtimes import runtime
from tests.drivers.kubernetes.cluster.kinds import JOB_SETS, TRAIN_JOBS
from tests.drivers.kubernetes.cluster.refusal import Body, RefusalError, copied, invalid
from tests.drivers.kubernetes.cluster.store import Store

WHOSE = {  # group → webhook and where it is served
    "trainer.kubeflow.org": (
        "validator.trainjob.trainer.kubeflow.org",
        "kubeflow-trainer-controller-manager.kubeflow-system.svc:443/validate-trainer-"
        "kubeflow-org-v1alpha1-trainjob",
    ),
    "jobset.x-k8s.io": (
        "vjobset.kb.io",
        "jobset-webhook-service.jobset-system.svc:443/validate-jobset-x-k8s-io-v1alpha2-jobset",
    ),
    "batch": ("mjob.kb.io", "kueue-webhook-service.kueue-system.svc:443/mutate-batch-v1-job"),
}


ELASTIC = "ElasticJobSet"  # alpha feature gate of JobSet 0.12
COUNTS = ("parallelism", "completions")
SCHEDULED = ("nodeSelector", "tolerations", "schedulingGates")  # by Kueue, while it is suspended


@dataclass
class Webhooks:
    """What they say. `down`: groups whose webhook does not answer; `gates`: those of features that
    are off by default."""

    store: Store
    down: set[str] = field(default_factory=set)
    gates: set[str] = field(default_factory=set)

    def check_change(self, kind: Kind, old: Body, new: Body) -> None:
        """Raises `RefusalError` for a change that is not possible."""
        if kind == JOB_SETS:
            _check_job_set(old, new, elastic=ELASTIC in self.gates)

    def check(self, kind: Kind, namespace: str, body: Body) -> None:
        """Of a new or a changed object. Raises `RefusalError`."""
        group = kind.api.rpartition("/")[0]
        if group in self.down:
            raise self._unreachable(*WHOSE[group])
        if kind == TRAIN_JOBS:
            runtime(self.store, {**body, "metadata": {**body["metadata"], "namespace": namespace}})

    def _unreachable(self, name: str, where: str) -> RefusalError:
        why = f'failed to call webhook: Post "https://{where}?timeout=10s"'
        refused = "dial tcp 10.96.71.2:443: connect: connection refused"
        said = f'Internal error occurred: failed calling webhook "{name}": {why}: {refused}'
        return RefusalError(500, said)


def _check_job_set(old: Body, new: Body, *, elastic: bool) -> None:
    """As the webhook of 0.12: nothing of the Jobs changes but what is allowed is masked first."""
    before = {job["name"]: job["template"]["spec"] for job in old["spec"]["replicatedJobs"]}
    masked = copied(new["spec"]["replicatedJobs"])
    pending = old["spec"].get("suspend") or new["spec"].get("suspend")
    for index, job in enumerate(masked):
        spec, was = job["template"]["spec"], before.get(job["name"])
        if was is None:
            continue
        if elastic and spec.get("completionMode") == "Indexed":
            _check_counts(new, index, spec, was)
            spec |= {key: was[key] for key in COUNTS}
        if pending:
            spec["template"]["metadata"] = copied(was["template"].get("metadata", {}))
            _mask(spec["template"]["spec"], was["template"]["spec"])
    if masked != old["spec"]["replicatedJobs"]:
        said = f"Invalid value: {new['spec']['replicatedJobs']}: field is immutable"
        raise invalid("JobSet.jobset.x-k8s.io", _name(new), f"spec.replicatedJobs: {said}")


def _mask(spec: Body, was: Body) -> None:
    for key in SCHEDULED:
        spec.pop(key, None)
        if key in was:
            spec[key] = copied(was[key])


def _check_counts(new: Body, index: int, spec: Body, was: Body) -> None:
    counts = [int(spec[key]) for key in COUNTS]
    if counts == [was[key] for key in COUNTS]:
        return
    path = f"spec.replicatedJobs[{index}].template.spec"
    status = new.get("status", {}).get("conditions", [])
    ended = [c for c in status if c["type"] in ("Completed", "Failed") and c["status"] == "True"]
    why = ""
    if ended:
        why = f"{path}: Forbidden: Cannot mutate parallelism or completions when JobSet is in a"
    elif min(counts) < 1:
        why = f"{path}.completions: Invalid value: {counts[1]}: completions must be >= 1"
    elif counts[0] != counts[1]:
        why = f"{path}.completions: Invalid value: {counts[1]}: completions must be equal to"
    if why:
        raise invalid("JobSet.jobset.x-k8s.io", _name(new), why)


def _name(body: Body) -> str:
    return str(body["metadata"]["name"])
