"""No setting is ever dropped silently: it changes what is rendered, or it is an error.

Every optional setting of the job file is set to something else than its default, for every engine
in both modes; whatever is rendered then is also valid by schema and by lint.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import pytest

from holdfast.drivers.kubernetes.lint import lint
from holdfast.drivers.kubernetes.manifests.checks import frameworks, limits, problems
from holdfast.drivers.kubernetes.manifests.render import unchecked
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.errors import Error
from holdfast.spec import job_from_dict
from holdfast.spec.cluster import ENGINES, Engine, Mode
from tests.drivers.kubernetes import schemas
from tests.drivers.kubernetes.settings import (
    CHOICE,
    ELSEWHERE,
    SETTINGS,
    TABLE,
    WHAT_TO_RUN,
    leaves,
    with_value,
)
from tests.more import thinned

Place = tuple[Engine, Mode]
PLACES = sorted(limits.EVERYWHERE)
FROM_FILE = frozenset(
    ("args", "env", "image.python", "workers_per_node", "warm", "snapshots", "recovery", "logs",
     "instrument", "integrate", "progress", "parallel", "resources.state", "cost",
     "notify", "track", "otlp", "monitoring.port", "monitoring.profile_slowdown",
     "network.ports.stores", "network.ports.storage", "elasticity", "clusters",
     "kubernetes.elastic_jobset",
     "mpi.options", "mpi.implementation", "access.cordon_share",
     "scheduling.replacement_priority_class",
     "checkpoints.start_from", "checkpoints.fresh", "checkpoints.take_over",
     *(f"checkpoints.{tier}.{key}" for tier in ("local", "shared", "archive")
       for key in ("every_s", "keep", "max_bytes_per_s")), "checkpoints.archive.golden_every_steps")
)  # fmt: skip
"""Settings that agents, controller or federation read from the job file, so that no manifest shows
them."""


def asked(engine: Engine, mode: Mode, keys: Mapping[str, Any]) -> Request:
    """A request for these keys and whatever else the engine cannot do without."""
    nodes = keys.get("nodes", {})
    whole = {
        "name": "run",
        "script": "train.py",
        **keys,
        "image": {"name": "img:1", **keys.get("image", {})},
        "nodes": {"count": 4, **nodes} if isinstance(nodes, dict) else nodes,
        "framework": _framework(engine, mode, keys),
    }
    if engine == "cronjob":
        whole.setdefault("schedule", {"cron": "@daily"})
    return Request(job_from_dict(whole, where="test"), engine, mode, "team")


def _framework(engine: Engine, mode: Mode, keys: Mapping[str, Any]) -> str:
    known = frameworks.known(engine, mode)
    wanted: str = keys.get("framework", known[0])
    return wanted if wanted in known else known[0]


def _said(bodies: list[Body]) -> list[Body]:
    """The objects without the job file, which says everything and proves nothing."""
    return [body for body in bodies if body["kind"] != "ConfigMap"]


@cache
def without(around: str, engine: Engine, mode: Mode) -> list[Body]:
    """What is rendered without a setting, which many have in common."""
    return _said(unchecked(asked(engine, mode, json.loads(around))))


def with_setting(path: str, engine: Engine, mode: Mode) -> Request:
    """A request with this setting, and what it needs around it."""
    setting = SETTINGS[path]
    value = setting.managed if mode == "managed" and setting.managed is not None else setting.value
    return asked(engine, mode, with_value(setting.around, path, value))


class Made(NamedTuple):
    """A setting in every place, what is wrong with it there, and what is rendered if nothing is."""

    path: str
    requests: dict[Place, Request]
    errors: dict[Place, list[Error]]
    bodies: dict[Place, list[Body]]

    def outcome(self, place: Place) -> str:
        """What becomes of the setting: `error`, `changes`, `file` or `dropped`."""
        if self.errors[place]:
            return "error"
        around = json.dumps(dict(SETTINGS[self.path].around))
        if _said(self.bodies[place]) != without(around, *place):
            return "changes"
        engine, mode = place
        return "file" if mode == "managed" and _from_file(self.path, engine) else "dropped"


@pytest.fixture(scope="module", params=thinned(SETTINGS, 3))
def made(request: pytest.FixtureRequest) -> Made:
    """Each setting, once for all tests: making it takes longer than looking at it."""
    requests = {place: with_setting(request.param, *place) for place in PLACES}
    errors = {place: problems(asked) for place, asked in requests.items()}
    bodies = {place: unchecked(requests[place]) for place in PLACES if not errors[place]}
    return Made(request.param, requests, errors, bodies)


def _from_file(path: str, engine: Engine) -> bool:
    above = {path[:end] for end, sign in enumerate(path) if sign == "."} | {path}
    return engine == "cronjob" or bool(above & FROM_FILE)


def test_a_setting_is_honoured_or_refused_by_every_engine_as_the_table_says(made: Made) -> None:
    """What the table allows may still need another setting, which only some engines have."""
    found = {place: made.outcome(place) for place in PLACES}
    assert [place for place, what in found.items() if what == "dropped"] == []
    assert set(found.values()) != {"error"}, "nobody can use it"
    refused = {place for place, what in found.items() if what == "error"}
    wrong = {place for place in PLACES if not limits.honours(made.path, *place)}
    assert wrong <= refused
    assert limits.told(limits.EVERYWHERE - wrong)


def test_what_a_setting_renders_to_is_valid_and_sound(made: Made) -> None:
    for place, bodies in made.bodies.items():
        told = [line for body in bodies for line in schemas.problems(body)]
        errors = [finding for finding in lint(bodies) if finding.level == "error"]
        assert (told, errors) == ([], []), made.requests[place]


def test_there_is_a_value_for_every_optional_setting() -> None:
    named = set(SETTINGS) | WHAT_TO_RUN | CHOICE | TABLE | ELSEWHERE
    missing = set(leaves()) - named
    assert not missing


def test_a_managed_cronjob_honours_what_the_pods_that_it_submits_do() -> None:
    own = {"schedule", "lifetime.keep_s"}
    for path in set(SETTINGS) - own:
        if not path.startswith("schedule."):
            assert limits.honours(path, "cronjob", "managed") == limits.honours(
                path, "pods", "managed"
            ), path


def test_every_limit_is_of_a_setting_that_exists() -> None:
    sections = {path[:end] for path in leaves() for end, sign in enumerate(path) if sign == "."}
    assert set(limits.LIMITS) <= sections | set(leaves())
    assert {engine for engine, _ in limits.EVERYWHERE} == set(ENGINES)
