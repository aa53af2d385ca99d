"""The runtime of a TrainJob, which has to be there before it."""

from tests.drivers.kubernetes.cluster.kinds import CLUSTER_RUNTIMES, RUNTIMES
from tests.drivers.kubernetes.cluster.refusal import Body, RefusalError
from tests.drivers.kubernetes.cluster.store import Store


def runtime(store: Store, job: Body) -> Body:
    """The runtime that a TrainJob names. Raises `RefusalError`: one is needed from the start."""
    ref, namespace = job["spec"]["runtimeRef"], job["metadata"]["namespace"]
    whole = ref.get("kind", "ClusterTrainingRuntime") == "ClusterTrainingRuntime"
    found = store.find(CLUSTER_RUNTIMES if whole else RUNTIMES, namespace, ref["name"])
    if found is None:
        plural, name = ("ClusterTrainingRuntime" if whole else "TrainingRuntime"), ref["name"]
        why = "specified trainingRuntime must be created before the TrainJob is created"
        said = f'{plural}.trainer.kubeflow.org "{name}" not found: {why}'
        raise RefusalError(
            403,
            'admission webhook "validator.trainjob.trainer.kubeflow.org" denied the request: '
            f"spec.RuntimeRef: Invalid value: {ref}: {said}",
        )
    return found
