"""Each refusal of an API server is one error with a way out, in the words of Kubernetes."""

import pytest

from holdfast.drivers.kubernetes.cluster import ApiError
from holdfast.drivers.kubernetes.submit_refusals import About, refused

OF = About("JobSet gpt", "jobset.x-k8s.io/v1alpha2", "team", " --context c -n team")

SENTENCES = [
    (403, 'pods "gpt-0" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8,'
          ' used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=4', "quota-exceeded"),
    (403, 'pods "gpt-0" is forbidden: failed quota: q: must specify limits.cpu for: main',
     "quota-exceeded"),
    (403, 'pods "gpt-0" is forbidden: maximum memory usage per Container is 1Gi, but limit is 8Gi',
     "quota-exceeded"),
    (403, 'pods "gpt-0" is forbidden: violates PodSecurity "restricted:latest": host network',
     "admission-refused"),
    (400, 'admission webhook "vjobset.kb.io" denied the request: replicas must be 1',
     "admission-refused"),
    (500, 'Internal error occurred: failed calling webhook "mpod.kb.io": connection refused',
     "webhook-down"),
    (422, "deployments \"x\" is forbidden: ValidatingAdmissionPolicy 'no-root' with binding 'b' "
          "denied request: no", "admission-refused"),
    (403, 'jobsets.jobset.x-k8s.io is forbidden: User "eve" cannot create resource "jobsets" in '
          'API group "jobset.x-k8s.io" in the namespace "team"', "rights-missing"),
    (404, 'namespaces "team" not found', "namespace-missing"),
    (403, 'jobs.batch "x" is forbidden: unable to create new content in namespace team because it '
          "is being terminated", "namespace-missing"),
    (404, "the server could not find the requested resource", "engine-missing"),
    (404, "404 page not found", "engine-missing"),
    (404, 'configmaps "gpt-job" not found', "cluster-refused"),
    (422, 'Job.batch "gpt" is invalid: spec.template: field is immutable', "manifest-refused"),
    (400, 'strict decoding error: unknown field "spec.foo"', "manifest-refused"),
    (503, "apiserver is shutting down", "cluster-unreachable"),
    (0, "All connection attempts failed", "cluster-unreachable"),
    (500, "etcdserver: leader changed", "cluster-refused"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "message", "slug"), SENTENCES)
def test_a_refusal_is_told_by_its_cause_and_keeps_the_words(
    status: int, message: str, slug: str
) -> None:
    error = refused(ApiError(status, "Reason", message), OF)
    assert error.slug == slug
    assert message in error.why
    assert error.help


@pytest.mark.parametrize(("status", "message", "slug"), SENTENCES)
def test_commands_in_the_help_name_the_same_cluster(status: int, message: str, slug: str) -> None:
    text = refused(ApiError(status, "Reason", message), OF).help
    if "--on kubernetes" in text:
        assert "--on kubernetes --context c -n team" in text, slug


def test_a_missing_kind_says_what_to_install() -> None:
    error = refused(ApiError(404, "NotFound", "the server could not find it"), OF)
    assert "JobSet" in error.what
    assert "jobset.sigs.k8s.io" in error.help
    assert "--engine" in error.help
