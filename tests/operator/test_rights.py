"""The operator's rights: enough for every job there is, and no more than jobs need."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from holdfast.drivers.kubernetes.cluster import kind_of
from holdfast.operator.rights import MOVING, SUPPORT, as_yaml, rules
from holdfast.operator.wanted import Wanted, wanted
from holdfast.spec.cluster import ENGINES
from tests import quick_yaml
from tests.operator.asking import Body, golden_specs, spec, training_job
from tests.tidy.source import ROOT

Right = tuple[str, str, str]  # API group, resource, verb
UID = "00000000-0000-0000-0000-000000000000"


def rights(rules: Iterable[Body]) -> set[Right]:
    """Rules, one right at a time."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


SPECS: dict[str, Body] = {
    **golden_specs(),
    **{engine: spec(kubernetes={"engine": engine}) for engine in ENGINES if engine != "cronjob"},
}
CORDON = ROOT / "deploy" / "rbac" / "cordon" / "cordon.yaml"


@cache
def all_rights() -> set[Right]:
    """With those that come with the component for machines."""
    extra = quick_yaml.load_all(CORDON.read_text())[0]
    return rights([*rules(), *extra["rules"]])


@cache
def asked(name: str) -> Wanted:
    body = training_job("run")
    body["spec"] = SPECS[name]
    body["metadata"]["uid"] = UID
    return wanted(body, (1, 37))


def place(body: Body) -> tuple[str, str]:
    kind = kind_of(body)
    group, _, version = kind.api.rpartition("/")
    return (group if version else "", kind.plural)


@pytest.mark.parametrize("name", SPECS)
def test_they_are_enough_to_make_and_clear_every_job(name: str) -> None:
    have, job = all_rights(), asked(name)
    for body in job.objects:
        assert {(*place(body), verb) for verb in ("get", "create", "patch")} <= have
    for body in job.moving:
        assert (*place(body), "delete") in have


@pytest.mark.parametrize("name", SPECS)
def test_they_include_all_that_is_handed_on(name: str) -> None:
    """Kubernetes refuses a role with a right that its maker does not have."""
    roles = [body for body in asked(name).objects if body["kind"] in ("Role", "ClusterRole")]
    assert rights(rule for role in roles for rule in role["rules"]) <= all_rights()


def test_they_have_no_wildcards_and_nothing_that_gives_any_right() -> None:
    flat = {word for right in rights(rules()) for word in right}
    assert not flat & {"*", "escalate", "bind", "impersonate", "clusterroles"}
    assert not {r for r in rights(rules()) if r[1] == "secrets"} - {
        ("", "secrets", verb) for verb in ("get", "create", "patch")
    }


def test_every_kind_in_the_tables_is_made_by_some_job() -> None:
    made = {place(body) for name in SPECS for body in asked(name).objects}
    tables: dict[str, Any] = {**SUPPORT}
    named = {(g, r) for table in (tables, MOVING) for g, found in table.items() for r in found}
    assert named - made <= {("", "pods")}


def test_the_file_that_is_deployed_is_current() -> None:
    said = (ROOT / "deploy" / "rbac" / "role.yaml").read_text()
    assert said == as_yaml(), "run `make docs`"
