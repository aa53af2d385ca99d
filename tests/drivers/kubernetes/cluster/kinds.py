"""The kinds of objects that the cluster serves: Kubernetes' own, and those of installed engines.

Every kind here has the subresource `status`, but for those in `PLAIN`, as in Kubernetes; a
CustomResourceDefinition that is created adds its kind, so that our own can be tested as well.
"""

from collections.abc import Iterable, Iterator

from holdfast.drivers.kubernetes.cluster import KINDS, Kind

REPLICA_SETS = Kind("apps/v1", "ReplicaSet", "replicasets")
JOB_SETS = Kind("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets")
MPI_JOBS = Kind("kubeflow.org/v2beta1", "MPIJob", "mpijobs")
RAY_JOBS = Kind("ray.io/v1", "RayJob", "rayjobs")
RAY_CLUSTERS = Kind("ray.io/v1", "RayCluster", "rayclusters")
TRAIN_JOBS = Kind("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs")
RUNTIMES = Kind("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", "trainingruntimes")
CLUSTER_RUNTIMES = Kind(
    "trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime", "clustertrainingruntimes", False
)
VOLCANO_JOBS = Kind("batch.volcano.sh/v1alpha1", "Job", "jobs")
VOLCANO_GROUPS = Kind("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups")
VOLCANO_QUEUES = Kind("scheduling.volcano.sh/v1beta1", "Queue", "queues", namespaced=False)
KUBEFLOW = {
    f"{name.lower()}": Kind("kubeflow.org/v1", name, f"{name.lower()}s")
    for name in ("PyTorchJob", "TFJob", "JAXJob", "XGBoostJob", "PaddleJob")
}

BUILT_IN = (*KINDS, REPLICA_SETS)
ENGINES: dict[str, tuple[Kind, ...]] = {
    "jobset": (JOB_SETS,),
    **{engine: (kind,) for engine, kind in KUBEFLOW.items()},
    "mpijob": (MPI_JOBS,),
    "rayjob": (RAY_JOBS, RAY_CLUSTERS),
    "trainjob": (TRAIN_JOBS, RUNTIMES, CLUSTER_RUNTIMES, JOB_SETS),
    "volcano": (VOLCANO_JOBS, VOLCANO_GROUPS, VOLCANO_QUEUES),
    "coscheduling": (Kind("scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups"),),
    "prometheus": (
        Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors"),
        Kind("monitoring.coreos.com/v1", "ServiceMonitor", "servicemonitors"),
        Kind("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules"),
    ),
}
PLAIN = frozenset(
    ("secrets", "configmaps", "serviceaccounts", "events", "leases", "roles", "rolebindings")
) | {"clusterroles", "clusterrolebindings", "priorityclasses", "storageclasses"}
PARTS = {  # subresources besides `status`
    "pods": ("log", "eviction"),
    "deployments": ("scale",),
    "replicasets": ("scale",),
}
ONLY_CREATED = frozenset(
    ("selfsubjectaccessreviews", "selfsubjectreviews", "subjectaccessreviews", "tokenreviews")
) | {"selfsubjectrulesreviews"}


class Kinds:
    """All kinds that are served now, by group and plural."""

    def __init__(self, engines: Iterable[str]) -> None:
        self._known = {(kind.api, kind.plural): kind for kind in BUILT_IN}
        for engine in engines:
            for kind in ENGINES[engine]:
                self.add(kind)

    def add(self, kind: Kind) -> None:
        """Serve another kind."""
        self._known[kind.api, kind.plural] = kind

    def find(self, api: str, plural: str) -> Kind | None:
        """The kind at a path of the API."""
        return self._known.get((api, plural))

    def named(self, api: str, kind: str) -> Kind | None:
        """The kind that an object says it is of."""
        return next((k for k in self._known.values() if (k.api, k.kind) == (api, kind)), None)

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._known.values())
