"""The rules of the API server against the model: what one refuses, the other refuses too."""

from functools import cache
from typing import Any

import pytest

from holdfast.drivers.kubernetes.manifests.checks import problems
from holdfast.drivers.kubernetes.manifests.render import requested
from holdfast.errors import Error
from holdfast.operator.definition import job_spec
from holdfast.operator.rules import RULES
from holdfast.spec import job_from_dict
from tests.operator.asking import Body, defaulted, golden_specs, spec
from tests.operator.expressions import holds

PLAIN = {"mode": "plain", "engine": "job"}
CRON = {"kubernetes": {"engine": "cronjob"}, "schedule": {"cron": "@daily"}}

WRONG: list[tuple[str, int, Body]] = [
    ("", 0, {"image": {"name": "x"}}),
    ("", 0, spec(module="m", script="s")),
    ("", 1, spec(kubernetes=PLAIN, nodes={"spares": 1})),
    ("", 2, spec(kubernetes={"engine": "cronjob"})),
    ("", 2, spec(schedule={"cron": "@daily"})),
    ("", 3, spec(sweep={"trials": 2})),
    ("", 3, spec(kubernetes={"mode": "plain", "engine": "pods"}, sweep={"trials": 2})),
    ("", 4, spec(kubernetes=PLAIN, sweep={"trials": 2}, nodes={"count": 2})),
    ("", 5, spec(nodes={"count": 2}, elasticity={"min_nodes": 3})),
    ("", 6, spec(nodes={"count": 5}, elasticity={"min_nodes": 1, "max_nodes": 3})),
    ("sweep", 0, spec(kubernetes=PLAIN, sweep={"trials": 1, "parallel": 2})),
    ("secrets[]", 0, spec(secrets=[{"name": "s"}])),
    ("resources.claims[]", 0, spec(resources={"claims": [{"name": "c"}]})),
    ("datasets[]", 0, spec(datasets=[{"name": "d", "path": "/d", "pvc": "p", "host_path": "/h"}])),
    ("datasets[]", 1, spec(datasets=[{"name": "d", "path": "/d"}])),
    ("datasets[]", 1, spec(datasets=[{"name": "d", "source": "s3://b", "url": "s3://b"}])),
    ("datasets[]", 2, spec(datasets=[{"name": "d", "path": "/d", "source": "s3://b"}])),
    ("datasets[]", 2, spec(datasets=[{"name": "d", "pvc": "p"}])),
    ("datasets[]", 3, spec(datasets=[{"name": "d", "path": "/d", "pvc": "p", "manifest": "M"}])),
    (
        "datasets[].cache",
        0,
        spec(
            datasets=[{"name": "d", "source": "/s", "cache": {"folder": "/c", "volume_class": "x"}}]
        ),
    ),
    ("datasets[]", 1, spec(datasets=[{"name": "d", "path": "/d", "pvc": "p", "url": "s3://b"}])),
    ("checkpoints.local", 0, spec(checkpoints={"local": {}})),
    ("checkpoints.shared", 0, spec(checkpoints={"shared": {}})),
]
RIGHT: dict[str, Body] = {
    "bare": spec(),
    "cron": spec(**CRON),
    "sweep": spec(kubernetes=PLAIN, sweep={"trials": 2}),
    "elastic": spec(nodes={"count": 2}, elasticity={"min_nodes": 1, "max_nodes": 3}),
    "secret": spec(secrets=[{"name": "s", "env": {"A": "a"}}]),
    "data": spec(datasets=[{"name": "d", "path": "/d", "download": [{"url": "https://x/y"}]}]),
    "local": spec(checkpoints={"local": {"host_path": "/x"}}),
    **golden_specs(),
}


@cache
def schema() -> Body:
    return job_spec()


def broken(said: Body) -> list[tuple[str, int]]:
    """The rules that a spec breaks."""
    whole = defaulted(said, schema())
    return [
        (path, number)
        for path, rules in RULES.items()
        for number, rule in enumerate(rules)
        for value in values(whole, path)
        if not holds(rule.rule, value)
    ]


def values(whole: Any, path: str) -> list[Any]:
    """The sections at a path."""
    found = [whole]
    for step in path.split(".") if path else ():
        found = [one[step.removesuffix("[]")] for one in found if step.removesuffix("[]") in one]
        found = [item for one in found for item in one] if step.endswith("[]") else found
    return found


def refused(said: Body) -> bool:
    """Whether the model, or a check of manifests, refuses it."""
    try:
        job = job_from_dict({**said, "name": "run"}, where="test")
    except Error:
        return True
    return bool(problems(requested(job, namespace="default")))


@pytest.mark.parametrize(("path", "number", "wrong"), WRONG)
def test_a_rule_refuses_what_the_model_refuses(path: str, number: int, wrong: Body) -> None:
    assert (path, number) in broken(wrong)
    assert refused(wrong)


def test_every_rule_has_a_case() -> None:
    assert {(path, number) for path, number, _ in WRONG} == {
        (path, number) for path, rules in RULES.items() for number in range(len(rules))
    }


@pytest.mark.parametrize("name", RIGHT)
def test_the_rules_let_pass_what_is_right(name: str) -> None:
    assert broken(RIGHT[name]) == []
