"""Every trap is found in its wrong form, and not in the right one; anything can be looked at."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.drivers.kubernetes.lint import CHECKS, lint
from holdfast.errors import SLUGS
from tests import quick_yaml
from tests.drivers.kubernetes import engine_forms as engines
from tests.drivers.kubernetes import forms
from tests.drivers.kubernetes.forms import Form, files, pod
from tests.more import examples

FORMS: dict[str, Form] = {
    **forms.RESOURCES,
    **forms.PODS,
    **forms.JOBS,
    **forms.BESIDE,
    **forms.MANAGED,
    **engines.KUBEFLOW,
    **engines.MPI,
    **engines.TRAINER,
    **engines.JOBSET,
    **engines.VOLCANO,
    **engines.GANGS,
    **engines.ADMISSION,
}


def found(text: str, version: tuple[int, int] | None = None) -> set[str]:
    """Slugs of what is found in a file."""
    bodies = [body for body in quick_yaml.load_all(text) if body]
    return {finding.slug for finding in lint(bodies, version)}


@pytest.mark.parametrize("slug", FORMS)
def test_the_wrong_form_is_found(slug: str) -> None:
    form = FORMS[slug]
    assert slug in found(form.text.replace("@@", form.wrong))


@pytest.mark.parametrize("slug", FORMS)
def test_the_right_form_is_not_found(slug: str) -> None:
    form = FORMS[slug]
    assert slug not in found(form.text.replace("@@", form.right))


def test_every_check_has_its_forms() -> None:
    assert set(FORMS) == set(CHECKS)


def test_every_check_says_why_and_what_helps() -> None:
    for slug, check in CHECKS.items():
        assert len(check.why.split()) > 5, slug
        assert check.help.strip() == check.help != "", slug
        assert check.at, slug
        assert slug not in SLUGS, "an error of a command and a finding have one name"


@pytest.mark.parametrize(
    ("version", "api", "good"),
    [
        ((1, 37), "v1beta1", True),
        ((1, 37), "v1alpha2", False),
        ((1, 36), "v1alpha2", True),
        ((1, 35), "v1alpha1", True),
        ((1, 34), "v1alpha1", False),
    ],
)
def test_gangs_of_kubernetes_are_judged_by_the_version(
    version: tuple[int, int], api: str, good: bool
) -> None:
    assert ("native-gang-version" not in found(engines.workload(api), version)) is good


@pytest.mark.parametrize(
    ("version", "field", "good"),
    [
        ((1, 35), "workloadRef", True),
        ((1, 35), "schedulingGroup", False),
        ((1, 36), "schedulingGroup", True),
        ((1, 36), "workloadRef", False),
        ((1, 33), "schedulingGroup", False),
    ],
)
def test_the_gang_of_a_pod_is_judged_by_the_version(
    version: tuple[int, int], field: str, good: bool
) -> None:
    assert ("native-gang-field" not in found(pod(f"{field}: {{}}"), version)) is good


@pytest.mark.parametrize(
    "item",
    [
        "name: WANDB_API_KEY, value: 0123abcd",
        "name: DB, value: 'postgres://me:hunter2@db/x'",
        "name: AWS_SECRET_ACCESS_KEY, value: abc",
        "name: X, value: hf_abcdefghijklmnopqrstuvwxyz",
    ],
)
def test_secrets_are_known_by_name_and_by_look(item: str) -> None:
    assert "secret-in-plain-sight" in found(forms.main(f"env: [{{{item}}}]"))


@pytest.mark.parametrize(
    "item",
    [
        "name: HOLDFAST_TOKEN_FILE, value: /var/run/token",
        "name: TOKENIZERS_PARALLELISM, value: 'false'",
        "name: MAX_TOKENS, value: '2048'",
        "name: PAD_TOKEN, value: '0'",
        "name: API_KEY, value: $(KEY)",
        "name: URL, value: 'https://example.org/a'",
    ],
)
def test_what_only_looks_like_a_secret_is_left_alone(item: str) -> None:
    assert "secret-in-plain-sight" not in found(forms.main(f"env: [{{{item}}}]"))


def test_a_file_without_pods_says_nothing_about_selectors() -> None:
    assert "selects-nothing" not in found(forms.kind("v1", "Service", "selector: {app: a}"))


def test_a_finding_says_where() -> None:
    text = files(pod(""), engines.jobset("failurePolicy: {}", child="parallelism: 2", name="set"))
    (finding,) = [f for f in lint(quick_yaml.load_all(text)) if f.slug.endswith("off-limit")]
    assert (finding.kind, finding.name, finding.level) == ("JobSet", "set", "warning")
    assert finding.path == "spec.replicatedJobs[0].template.spec.backoffLimit"


def _mangled(value: Any, draw: Any) -> Any:
    """The same data with one part of it replaced by something of another shape."""
    odd: st.SearchStrategy[Any] = st.sampled_from(
        [None, [], {}, "x", 7, True, [None], [[]], {"name": []}, 0.5]
    )
    if not value or draw(st.integers(0, 4)) == 0:
        return draw(odd)
    if isinstance(value, dict):
        key = draw(st.sampled_from(sorted(value, key=str)))
        return {**value, key: _mangled(value[key], draw)}
    if isinstance(value, list):
        index = draw(st.integers(0, len(value) - 1))
        return [*value[:index], _mangled(value[index], draw), *value[index + 1 :]]
    return draw(odd)


@given(st.data())
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_that_anybody_writes_makes_it_raise(data: Any) -> None:
    form = data.draw(st.sampled_from(list(FORMS.values())))
    bodies = [b for b in quick_yaml.load_all(form.text.replace("@@", form.wrong)) if b]
    mangled = [_mangled(body, data.draw) for body in bodies]
    lint([body for body in mangled if isinstance(body, dict)])
