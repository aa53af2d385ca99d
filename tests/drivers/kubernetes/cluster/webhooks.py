"""Webhooks of those who extend a cluster: asked about each change of their kinds, whoever makes it.

They fail closed: while one is down, nobody can create or change what it looks after, not even the
collector that takes a finalizer off.
"""

from dataclasses import dataclass, field

from holdfast.drivers.kubernetes.cluster import Kind
from tests.drivers.kubernetes.cluster.engines.runtimes import runtime
from tests.drivers.kubernetes.cluster.kinds import TRAIN_JOBS
from tests.drivers.kubernetes.cluster.refusal import Body, RefusalError
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


@dataclass
class Webhooks:
    """What they say. `down`: groups whose webhook does not answer."""

    store: Store
    down: set[str] = field(default_factory=set)

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
