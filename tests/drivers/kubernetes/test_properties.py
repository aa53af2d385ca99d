"""Whatever a job file says, every engine renders it to sound manifests, or refuses it by name.

A job is drawn from the settings of `settings.py`, several at once, on a random engine, mode and
version. What is rendered passes the strict schemas and our own checks, twice the same text, which
reads back as the same data; it has its pods, and its names fit DNS.
"""

import os
from collections.abc import Sequence
from functools import reduce
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from holdfast.drivers.kubernetes.lint import lint
from holdfast.drivers.kubernetes.lint.look import labels, name
from holdfast.drivers.kubernetes.lint.spots import File
from holdfast.drivers.kubernetes.manifests import checks
from holdfast.drivers.kubernetes.manifests.checks import frameworks, limits
from holdfast.drivers.kubernetes.manifests.names import JOB, LONGEST, ROLE
from holdfast.drivers.kubernetes.manifests.render import as_text, render, requested
from holdfast.drivers.kubernetes.manifests.request import NEWEST, Body, Request
from holdfast.errors import SLUGS, Error
from holdfast.spec import job_from_dict
from holdfast.spec.cluster import ENGINES, Engine, Mode
from tests.drivers.kubernetes.schemas import problems
from tests.drivers.kubernetes.settings import SETTINGS, with_value
from tests.more import examples, thinned

Keys = dict[str, Any]
MODES: tuple[Mode, ...] = ("managed", "plain")
VERSIONS = ((1, 33), (1, 35), (1, 36), NEWEST)
TRAINS = ("node", "spare", "chief")  # roles of pods that are nodes
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
FILE = {"url": "https://example.org/a.tar", "sha256": "0" * 64, "unpack": True}
OTHERS: dict[str, list[Any]] = {
    "datasets": [
        [{"name": "d", "path": "/data", "host_path": "/cache", "writable": True}],
        [{"name": "d", "path": "/data", "download": [FILE], "size": "1Ti"}],
        [{"name": "d", "path": "/data", "host_path": "/cache", "download": [FILE]}],
        [{"name": "d", "path": "/data", "url": "s3://bucket/data"}],
    ],
    "secrets": [[{"name": "s", "path": "/secrets"}], [{"name": "s", "all_env": True}]],
    "env": [{"NO": "no", "EMPTY": "", "LINES": "a: b\n- c\n", "BLANKS": " x "}],
    "args": [["--text", "it's: {a} #b", "yes", "1e3", "on"]],
    "metadata.annotations": [{"example.org/a": "true", "b": "1", "c": "two\nlines\n"}],
    "resources.claims": [[{"name": "g", "template": "eight"}]],
    "resources.hugepages": [{"1Gi": "4Gi"}],
    "resources.gpu_resource": ["nvidia.com/mig-3g.40gb"],
    "network.profile": ["tcp", "infiniband"],
    "mpi.implementation": ["MPICH", "OpenMPI"],
    "scheduling.gang": ["volcano", "coscheduling"],
    "scheduling.kueue": [{"queue": "a", "topology": "rack", "priority": "p", "partial": True}],
    "scheduling.spread": [[{"key": "zone", "required": True}, {"key": "rack", "max_skew": 2}]],
    "elasticity": [{"min_nodes": 1, "max_nodes": 12}],
    "overlay": [
        {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "b"}]}]}},
        {"metadata": {"annotations": {"a": "b"}}, "spec": {"hostIPC": True}},
    ],
}
quick = settings(
    max_examples=int(os.environ.get("HOLDFAST_EXAMPLES", examples(200))),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="HOLDFAST_EXAMPLES" not in os.environ,
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A request whose settings the engine knows; together they may still be refused."""
    engine: Engine = draw(st.sampled_from(ENGINES))
    mode: Mode = draw(st.sampled_from(MODES))
    version = draw(st.sampled_from(VERSIONS))
    known = [path for path in sorted(SETTINGS) if limits.honours(path, engine, mode)]
    paths = draw(st.lists(st.sampled_from(known), max_size=6, unique=True))
    values = [draw(st.sampled_from([SETTINGS[p].value, *OTHERS.get(p, ())])) for p in paths]
    chosen = zip(paths, values, strict=True)
    keys = reduce(lambda found, one: _with(found, *one), chosen, _start(draw, engine, mode))
    try:
        job = job_from_dict(keys, where="test")
    except Error:
        assume(False)
        raise
    return requested(job, engine=engine, mode=mode, namespace="team", version=version)


def _start(draw: st.DrawFn, engine: Engine, mode: Mode) -> Keys:
    """The least that this engine can do with."""
    spares = draw(st.integers(0, 3)) if mode == "managed" and engine != "rayjob" else 0
    found: Keys = {
        "name": draw(st.from_regex("[a-z]([-a-z0-9]{0,18}[a-z0-9])?", fullmatch=True)),
        "script": "train.py",
        "image": {"name": "registry.example/train:1.4"},
        "nodes": {"count": draw(st.integers(1, 12)), "spares": spares},
        "framework": draw(st.sampled_from(frameworks.known(engine, mode))),
    }
    return found | ({"schedule": {"cron": "@daily"}} if engine == "cronjob" else {})


def _with(keys: Keys, path: str, value: Any) -> Keys:
    around = {k: v for k, v in SETTINGS[path].around.items() if k != "framework"}
    return with_value(_merged(keys, around), path, value)


def _merged(keys: Keys, more: Keys) -> Keys:
    both = {k: _merged(keys[k], v) for k, v in more.items() if _sections(keys.get(k), v)}
    return {**keys, **more, **both}


def _sections(one: object, other: object) -> bool:
    return isinstance(one, dict) and isinstance(other, dict)


def asked(engine: Engine, mode: Mode, keys: Keys) -> Request:
    """The simplest request with these keys."""
    whole: Keys = {"name": "run", "script": "train.py", "image": {"name": "img:1"}, "nodes": 4}
    whole |= {"framework": frameworks.known(engine, mode)[0]}
    whole |= {"schedule": {"cron": "@daily"}} if engine == "cronjob" else {}
    job = job_from_dict(_merged(whole, keys), where="test")
    return requested(job, engine=engine, mode=mode, namespace="team")


def sound(request: Request) -> list[Body]:
    """What is rendered, after all that can be said against any manifests."""
    bodies = render(request)
    version = f"{request.version[0]}.{request.version[1]}"
    wrong = [f"{b['kind']}: {line}" for b in _unlike(bodies) for line in problems(b, version)]
    assert not wrong
    assert not [f for f in lint(bodies, request.version) if f.level == "error"]
    return bodies


def sound_or_refused(request: Request, *slugs: str) -> list[Body] | None:
    """What is rendered, None where it is refused, for one of these reasons if any is given."""
    refused = checks.problems(request)
    if not refused:
        return sound(request)
    assert {error.slug for error in refused} <= set(slugs or SLUGS)
    return None


def _unlike(bodies: Sequence[Body]) -> list[Body]:
    """All objects, but of the pods only the first of each role: they differ in their names."""
    seen: dict[object, Body] = {}
    for index, body in enumerate(bodies):
        pod = body["kind"] == "Pod"
        seen.setdefault(labels(body).get(ROLE) if pod else index, body)
    return list(seen.values())


MPI_TRAINED = asked(
    "trainjob",
    "plain",
    {
        "framework": "mpi",
        "resources": {"gpus": 8},
        "mpi": {"options": ["--verbose"], "slots_per_node": 4, "launcher_memory": "3Gi"},
        "secrets": [{"name": "s", "env": {"A": "a"}, "path": "/secrets"}],
        "scheduling": {"kueue": {"queue": "a", "topology": "rack"}, "separate": "rack"},
        "lifetime": {"time_limit_s": 3600, "suspend": True},
    },
)


@quick
@given(requests())
@example(MPI_TRAINED)
def test_whatever_is_rendered_is_sound_or_it_is_refused_by_name(request: Request) -> None:
    bodies = sound_or_refused(request)
    if bodies is None:
        return
    text = as_text(bodies)
    assert text == as_text(render(request))
    assert list(yaml.load_all(text, Loader=_Loader)) == bodies
    _agrees(request, bodies)


def _agrees(request: Request, bodies: list[Body]) -> None:
    """Names, labels, namespaces and the number of pods."""
    for body in bodies:
        wide = body["kind"] in ("ClusterRole", "ClusterRoleBinding")
        assert wide or (len(name(body)) <= LONGEST and body["metadata"]["namespace"] == "team")
        assert request.name in name(body) or body["kind"] == "PersistentVolumeClaim"
        assert labels(body)[JOB] == request.name
    found = [pod for pod in File(bodies).pods if labels(pod.body).get(ROLE) in TRAINS]
    assert sum(pod.pods for pod in found) == _expected(request)


def _expected(request: Request) -> int:
    if request.engine == "cronjob" and request.managed:
        return 0  # it submits the job that makes them
    return request.job.sweep.parallel if request.job.sweep else request.pods


@pytest.mark.parametrize(
    ("engine", "mode", "framework"),
    [(e, m, f) for e in ENGINES for m in MODES for f in frameworks.known(e, m)],
)
def test_every_engine_renders_the_simplest_job_of_every_framework_that_it_knows(
    engine: Engine, mode: Mode, framework: str
) -> None:
    program = {"script": None, "command": ["./run"]} if framework == "command" else {}
    request = asked(engine, mode, {"framework": framework, **program})
    _agrees(request, sound(request))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_managed_job_has_no_trap_at_all(engine: Engine) -> None:
    """Warnings included; stock manifests have weaknesses, which is why there is managed mode."""
    for nodes in (4, {"count": 4, "spares": 2 * (engine != "rayjob")}, 1):
        request = asked(engine, "managed", {"nodes": nodes, "resources": {"gpus": 8}})
        assert lint(render(request), request.version) == []


def test_a_stock_job_has_only_the_traps_of_its_kind() -> None:
    found = {
        (engine, finding.slug)
        for engine in ENGINES
        for finding in lint(render(asked(engine, "plain", {"resources": {"gpus": 8}})))
    }
    operators = ("pytorchjob", "tfjob", "jaxjob", "xgboostjob", "paddlejob")
    assert found == {
        ("cronjob", "cronjob-embeds-training"),
        *((engine, "kubeflow-restarts-in-place") for engine in operators),
    }


@pytest.mark.parametrize("path", thinned(SETTINGS, 3))
def test_every_setting_is_rendered_soundly(path: str) -> None:
    """On the engines that honour it, one after the other over all settings."""
    places = sorted(place for place in limits.EVERYWHERE if limits.honours(path, *place))
    turn = sorted(SETTINGS).index(path)
    chosen = [places[(turn + k) % len(places)] for k in range(3)]
    found = [
        sound_or_refused(asked(*place, _with({}, path, SETTINGS[path].value))) for place in chosen
    ]
    assert any(found) or len(places) > len(set(chosen))


def test_names_of_the_longest_job_fit_or_are_refused() -> None:
    places = [(engine, mode) for engine in ENGINES for mode in MODES]
    longest = {"name": "x" * 50, "nodes": 512}
    found = [sound_or_refused(asked(*place, longest), "name-invalid") for place in places]
    assert any(found)
    assert None in found
