"""What `kubectl apply -k deploy` installs: whole, strict, and as restricted as our own pods."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import quick_yaml
from tests.drivers.kubernetes.schemas import problems
from tests.tidy.source import ROOT

DEPLOY = ROOT / "deploy"
OURS = ("crd", "rbac", "operator", "spares", "dashboard")
FOLDERS = [DEPLOY, DEPLOY / "namespaced", DEPLOY / "rbac" / "cordon", *(DEPLOY / n for n in OURS)]
Body = dict[str, Any]


@cache
def bodies() -> list[Body]:
    """The objects in our files."""
    paths = [path for name in OURS for path in sorted((DEPLOY / name).rglob("*.yaml"))]
    found: list[Body] = []
    for path in [DEPLOY / "namespace.yaml", *paths]:
        if path.name != "kustomization.yaml":
            found += quick_yaml.load_all(path.read_text())
    return found


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_kustomization_names_what_is_there(folder: Path) -> None:
    said = quick_yaml.load((folder / "kustomization.yaml").read_text())
    for name in said["resources"]:
        assert (folder / name).exists(), name


def test_every_object_is_what_a_strict_server_takes() -> None:
    for body in bodies():
        if body["kind"] != "CustomResourceDefinition":
            assert problems(body, "1.37") == [], body["metadata"]["name"]


@pytest.mark.parametrize("name", ["holdfast-operator", "holdfast-dashboard"])
def test_our_pods_meet_the_restricted_standard(name: str) -> None:
    made = (b for b in bodies() if b["kind"] == "Deployment")
    deployment = next(b for b in made if b["metadata"]["name"] == name)
    spec = deployment["spec"]["template"]["spec"]
    container = spec["containers"][0]["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["allowPrivilegeEscalation"] is False
    assert container["readOnlyRootFilesystem"] is True
    assert container["capabilities"] == {"drop": ["ALL"]}
    namespace = next(b for b in bodies() if b["kind"] == "Namespace")
    label = "pod-security.kubernetes.io/enforce"
    assert namespace["metadata"]["labels"][label] == "restricted"


def test_the_page_can_only_read() -> None:
    paths = DEPLOY / "dashboard" / "rights.yaml"
    roles = [b for b in quick_yaml.load_all(paths.read_text()) if "rules" in b]
    verbs = {verb for role in roles for rule in role["rules"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "create"}
    created = [r["resources"] for b in roles for r in b["rules"] if "create" in r["verbs"]]
    assert created == [["tokenreviews"], ["subjectaccessreviews"]], (
        "questions, which change nothing"
    )
    secret = [r for b in roles for r in b["rules"] if "secrets" in r["resources"]]
    assert not secret


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize(
    ("folder", "kinds"),
    [
        ("deploy", {"Namespace": 1, "CustomResourceDefinition": 1, "ClusterRole": 3,
                    "ClusterRoleBinding": 1, "ServiceAccount": 1, "Deployment": 1,
                    "PodDisruptionBudget": 1}),
        ("deploy/namespaced", {"Role": 1, "RoleBinding": 1, "ServiceAccount": 1, "Deployment": 1,
                               "PodDisruptionBudget": 1}),
        ("deploy/dashboard", {"ServiceAccount": 1, "Role": 1, "RoleBinding": 1, "ClusterRole": 1,
                              "ClusterRoleBinding": 1, "Deployment": 1, "Service": 1}),
    ],
)  # fmt: skip
def test_kustomize_builds_it(folder: str, kinds: dict[str, int]) -> None:
    built = subprocess.run(
        ["kubectl", "kustomize", ROOT / folder], capture_output=True, text=True, check=True
    ).stdout
    made = [body["kind"] for body in quick_yaml.load_all(built)]
    assert {kind: made.count(kind) for kind in made} == kinds
    assert "image: holdfast\n" not in built, "the image has a place to be named"
