"""The strict validation finds what it is for; everything else here relies on it."""

from typing import Any

import pytest

from tests import quick_yaml
from tests.drivers.kubernetes.schemas import CRDS, NO_CRDS, problems

needs_crds = pytest.mark.skipif(CRDS is None, reason=NO_CRDS)

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: a}
spec:
  completionMode: Indexed
  template: {spec: {restartPolicy: Never, containers: [{name: main, image: i}]}}
"""
PYTORCHJOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: a}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: Never
      template: {spec: {containers: [{name: pytorch, image: i}]}}
"""
TRAINJOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: a}
spec: {runtimeRef: {name: a}, trainer: {numNodes: 2, resourcesPerNode: {limits: {cpu: 2}}}}
"""
VOLCANO = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: a}
spec:
  tasks:
  - {name: node, replicas: 2, template: {spec: {containers: [{name: main, image: i}]}}}
"""


def changed(text: str, old: str, new: str) -> Any:
    assert old in text
    return quick_yaml.load(text.replace(old, new))


@pytest.mark.parametrize("version", ["1.37", "1.33"])
def test_a_good_job_is_good_in_every_version(version: str) -> None:
    assert problems(quick_yaml.load(JOB), version) == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("completionMode", "completionmode", "completionmode"),
        ("image: i", "image: i, imagepull: Always", "imagepull"),
        ("Indexed", "7", "is not of type"),
        ("batch/v1", "batch/v9", "no schema"),
        ("image: i", "image: null", "null"),
        ("metadata: {", "metadata: {lables: {}, ", "lables"),
    ],
)
def test_what_is_wrong_with_a_core_kind_is_told(old: str, new: str, told: str) -> None:
    assert told in "\n".join(problems(changed(JOB, old, new)))


def test_a_field_is_judged_by_the_version() -> None:
    body = changed(JOB, "spec:\n", "spec:\n  scheduling: {}\n")
    assert problems(body, "1.37") == []
    assert "scheduling" in "\n".join(problems(body, "1.33"))


@needs_crds
@pytest.mark.parametrize("text", [PYTORCHJOB, TRAINJOB, VOLCANO])
def test_a_good_object_of_an_engine_is_good(text: str) -> None:
    assert problems(quick_yaml.load(text)) == []


@needs_crds
@pytest.mark.parametrize(
    ("text", "old", "new", "told"),
    [
        (PYTORCHJOB, "replicas: 2", "replica: 2", "'replica' was unexpected"),
        (PYTORCHJOB, "replicas: 2", "replicas: two", "is not of type"),
        (PYTORCHJOB, "kubeflow.org/v1", "kubeflow.org/v2", "no schema"),
        (PYTORCHJOB, "name: a", "name: a, labels: {x: 7}", "metadata.labels.x"),
        (PYTORCHJOB, "image: i", "image: i, resources: {limits: {a: [1]}}", "resources.limits.a"),
        (TRAINJOB, "numNodes", "numnodes", "numnodes"),
        (TRAINJOB, "trainer:", "podTemplateOverrides: [], trainer:", "podTemplateOverrides"),
        (VOLCANO, "image: i", "image: i, ports: [{containerport: 1}]", "containerport"),
        (VOLCANO, "tasks", "taskes", "taskes"),
    ],
)
def test_what_is_wrong_with_an_engines_kind_is_told(
    text: str, old: str, new: str, told: str
) -> None:
    assert told in "\n".join(problems(changed(text, old, new)))


def test_a_kind_that_nobody_knows_is_a_problem() -> None:
    body = {"apiVersion": "v1", "kind": "Poodle", "metadata": {"name": "a"}}
    assert problems(body) == ["no schema for Poodle of v1 in Kubernetes 1.37"]
