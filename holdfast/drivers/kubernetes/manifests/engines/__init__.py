"""One module per kind of engine: from a request to the objects that make its pods."""

from collections.abc import Callable

from holdfast.drivers.kubernetes.manifests.engines import (
    cronjob,
    job,
    jobset,
    kubeflow,
    mpijob,
    pods,
    rayjob,
    trainjob,
    volcano,
)
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.spec.cluster import Engine

ENGINES: dict[Engine, Callable[[Request], list[Body]]] = {
    "pods": pods.bodies,
    "job": job.bodies,
    "cronjob": cronjob.bodies,
    "jobset": jobset.bodies,
    "pytorchjob": kubeflow.bodies,
    "tfjob": kubeflow.bodies,
    "jaxjob": kubeflow.bodies,
    "xgboostjob": kubeflow.bodies,
    "paddlejob": kubeflow.bodies,
    "mpijob": mpijob.bodies,
    "rayjob": rayjob.bodies,
    "trainjob": trainjob.bodies,
    "volcano": volcano.bodies,
}
"""The objects that make the pods, in the order in which to apply them."""
