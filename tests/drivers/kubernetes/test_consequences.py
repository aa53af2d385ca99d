"""What `holdfast validate` says of an engine that the manifests do not show: for each of them."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.engine_size import NUMBER
from holdfast.drivers.kubernetes.manifests.checks import problems
from holdfast.drivers.kubernetes.manifests.consequences import OWN, consequences
from holdfast.drivers.kubernetes.manifests.kueue import PARTIAL, RUN
from holdfast.spec.cluster import ENGINES, Engine
from tests.drivers.kubernetes.asking import asked
from tests.tidy.source import ROOT

NODES = {"count": 4, "spares": 1}
ELASTIC: dict[str, Any] = {"nodes": NODES, "elasticity": {"min_nodes": 2}}
SCHEDULE = {"schedule": {"cron": "0 3 * * *"}}
GATE: dict[str, Any] = {"kubernetes": {"elastic_jobset": True}}
RESIZED = {*OWN, *NUMBER}
REFUSED: set[Engine] = {"rayjob"}


def told(engine: Engine, gated: bool = True, **keys: Any) -> list[str]:
    schedule: dict[str, Any] = SCHEDULE if engine == "cronjob" else {}
    gate: dict[str, Any] = GATE if engine == "jobset" and "elasticity" in keys and gated else {}
    request = asked(engine, namespace="team", **schedule, **gate, **keys)
    assert problems(request) == []
    return list(consequences(request))


@pytest.mark.parametrize("engine", sorted({*ENGINES} - REFUSED))
def test_of_every_engine_it_is_said_what_another_size_does_to_its_pods(engine: Engine) -> None:
    assert told(engine, nodes=NODES) == []
    (note,) = told(engine, **ELASTIC)
    assert note.startswith(f"elasticity: engine {engine} is ")
    assert ("is not resized" in note) == (engine not in RESIZED)
    assert ("up to 4 nodes" in note) == (engine in RESIZED)
    assert ("it keeps 5 pods" in note) == (engine not in RESIZED)


def test_a_job_set_is_resized_only_where_its_controller_lets_that_be() -> None:
    (note,) = told("jobset", gated=False, **ELASTIC)
    assert "engine jobset is not resized (its controller refuses another number of pods" in note
    assert "feature gate ElasticJobSet and kubernetes.elastic_jobset says so" in note
    more: dict[str, Any] = {"nodes": NODES, "elasticity": {"min_nodes": 2, "max_nodes": 6}}
    (refused,) = problems(asked("jobset", **more))
    assert refused.slug == "engine-unsupported" and "elastic_jobset: true" in (refused.help or "")
    (refused,) = problems(asked("job", **GATE, **more))
    assert refused.what.startswith("kubernetes.elastic_jobset: job in managed mode")
    (refused,) = problems(asked("jobset", **GATE, nodes=NODES))
    assert "elasticity" in refused.what + refused.why + (refused.help or "")


@pytest.mark.parametrize("engine", sorted(RESIZED))
def test_the_most_nodes_are_those_of_the_job_file(engine: Engine) -> None:
    (note,) = told(engine, nodes=NODES, elasticity={"min_nodes": 2, "max_nodes": 6})
    assert "up to 6 nodes" in note


def test_the_engine_that_cannot_be_elastic_refuses_it() -> None:
    for engine in sorted(REFUSED):
        found = problems(asked(engine, nodes=4, elasticity={"min_nodes": 2}))
        assert [p.slug for p in found] == ["engine-unsupported"]


@pytest.mark.parametrize("engine", sorted({*RUN, "pods"} - REFUSED))
def test_a_queue_keeps_an_object_as_it_was_admitted(engine: Engine) -> None:
    (note,) = told(engine, scheduling={"kueue": {"queue": "q"}}, **ELASTIC)
    assert f"engine {engine} in a Kueue queue is not resized (Kueue reserves" in note
    assert "quota allows" not in note


@pytest.mark.parametrize("engine", sorted(PARTIAL))
def test_partial_admission_is_told(engine: Engine) -> None:
    (note,) = told(engine, scheduling={"kueue": {"queue": "q", "partial": True}}, **ELASTIC)
    assert "as many pods as the quota allows" in note


@pytest.mark.parametrize("engine", ENGINES)
def test_which_engines_may_bring_a_pod_to_a_machine_that_goes_is_said(engine: Engine) -> None:
    assert told(engine) == told(engine, recovery={"cloud_notices": "off"}) == []
    found = told(engine, recovery={"cloud_notices": "aws"})
    assert [n.startswith(f"recovery.cloud_notices: engine {engine} ") for n in found] == [
        True for _ in range(engine not in OWN)
    ]


def test_plain_mode_is_the_engines_own_affair() -> None:
    assert list(consequences(asked("job", "plain", nodes=4, elasticity={"min_nodes": 2}))) == []


def test_the_guide_shows_what_is_said() -> None:
    guide = (ROOT / "docs" / "guides" / "elastic.md").read_text()
    shown: tuple[Engine, ...] = ("jobset", "job")
    notes = [note for engine in shown for note in told(engine, gated=False, **ELASTIC)]
    assert [note for note in notes if note not in guide] == []
