"""An overlay reaches every corner of a pod template, and nothing else changes."""

import copy
from typing import Any

import pytest

from holdfast.drivers.kubernetes.manifests.overlay import merged

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "containers": [
            {
                "name": "pytorch",
                "image": "x",
                "env": [{"name": "A", "value": "1"}],
                "ports": [{"containerPort": 80, "name": "web"}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }
        ],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [{"key": "a"}],
    },
}


@pytest.mark.parametrize(
    ("overlay", "path", "expected"),
    [
        ({"metadata": {"labels": {"b": "2"}}}, "metadata.labels", {"a": "1", "b": "2"}),
        ({"metadata": {"labels": {"a": None}}}, "metadata.labels", {}),
        ({"spec": {"hostPID": True}}, "spec.hostPID", True),
        ({"spec": {"tolerations": [{"key": "b"}]}}, "spec.tolerations", [{"key": "b"}]),
        (
            {"spec": {"volumes": [{"name": "w", "emptyDir": {}}]}},
            "spec.volumes",
            [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}],
        ),
        ({"spec": {"volumes": [{"name": "v", "$patch": "delete"}]}}, "spec.volumes", []),
        (
            {"spec": {"containers": [{"name": "main", "image": "y"}]}},
            "spec.containers.0.image",
            "y",
        ),
        (
            {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "2"}]}]}},
            "spec.containers.0.env",
            [{"name": "A", "value": "2"}],
        ),
        (
            {"spec": {"containers": [{"name": "side", "image": "z"}]}},
            "spec.containers.1",
            {"name": "side", "image": "z"},
        ),
        (
            {"spec": {"securityContext": {"$patch": "replace", "runAsUser": 0}}},
            "spec.securityContext",
            {"runAsUser": 0},
        ),
    ],
)
def test_the_overlay_is_merged(overlay: dict[str, Any], path: str, expected: object) -> None:
    before = copy.deepcopy(TEMPLATE)
    found: Any = merged(TEMPLATE, overlay, main="pytorch")
    for step in path.split("."):
        found = found[int(step)] if step.isdigit() else found[step]
    assert found == expected
    assert before == TEMPLATE, "the template itself is not touched"


def test_a_star_stands_for_every_container() -> None:
    template = {
        "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "c"}]}
    }
    overlay = {
        "spec": {"containers": [{"name": "*", "image": "x"}, {"name": "main", "image": "y"}]}
    }
    spec = merged(template, overlay, main="a")["spec"]
    assert spec["containers"] == [{"name": "a", "image": "y"}, {"name": "b", "image": "x"}]
    assert spec["initContainers"] == [{"name": "c", "image": "x"}]


def test_no_overlay_changes_nothing() -> None:
    assert merged(TEMPLATE, {}, main="main") == TEMPLATE
