"""The manifests and rights in docs/guides/security.md are those of the code."""

import re

import yaml

from holdfast.drivers.kubernetes.manifests.render import as_text, render, requested
from holdfast.drivers.kubernetes.manifests.support.services import METRICS_PORT
from holdfast.operator.rights import rules
from holdfast.spec import job_from_dict
from tests.tidy.source import ROOT

GUIDE = (ROOT / "docs" / "guides" / "security.md").read_text()
BLOCKS = re.findall(r"```yaml (job|rendered)\n(.*?)```", GUIDE, re.DOTALL)
ROW = re.compile(r"^\| (.*`[a-z/]+`.*) \| ([a-z, ]+) \| .* \|$", re.MULTILINE)


def test_every_manifest_of_the_guide_is_rendered_for_the_job_above_it() -> None:
    rendered: list[str] = []
    for kind, text in BLOCKS:
        if kind == "job":
            job = job_from_dict(yaml.safe_load(text), where="guide")
            rendered = as_text(render(requested(job))).split("---\n")
        else:
            assert text in rendered
    assert [kind for kind, _ in BLOCKS].count("rendered") == 2


def test_there_is_no_manifest_that_nobody_checks() -> None:
    assert GUIDE.count("```yaml") == len(BLOCKS)


def test_the_ports_of_the_guide_are_those_of_the_code() -> None:
    agent = job_from_dict({"name": "x", "script": "y"}, where="test").network.ports.agent
    assert f"{agent} and {METRICS_PORT}" in GUIDE


def test_the_guide_names_every_right_of_the_operator_and_no_other() -> None:
    _, table = GUIDE.split("a test compares it with this table:")
    told = {
        (resource, verb)
        for resources, verbs in ROW.findall(table.partition("deploy/rbac/cordon")[0])
        for resource in re.findall(r"`([a-z/]+)`", resources)
        for verb in verbs.split(", ")
    }
    has = {(name, verb) for rule in rules() for name in rule["resources"] for verb in rule["verbs"]}
    assert told == has
