"""Strict validation of manifests: what an API server with `fieldValidation=Strict` would refuse.

Core kinds are checked against the schemas that come with kubernetes-validate; the engines' kinds
against their CustomResourceDefinitions, where the folder with them is present (`CRDS`), with
unknown keys made errors as structural pruning would drop them; every pod or job template inside
them against the core schema of the version as well; and what kubeflow-trainer-api models, by those
models, which must give back what they were given.

We read the schemas ourselves: kubernetes-validate loads two megabytes anew for each object. Whether
something is wrong at all a fast validator says; what it is, one whose messages we know.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml
from jsonschema import Draft4Validator, Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from kubernetes_validate.utils import schema_contents  # type: ignore[import-untyped]
from referencing import Registry, Resource

from tests.tidy.source import ROOT

Body = dict[str, Any]

NEWEST = "1.37"
DEFINITIONS = "/api/_definitions.json#/$defs/"
POD_TEMPLATE, JOB_TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec", "io.k8s.api.batch.v1.JobSpec"
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

_named = os.environ.get("HOLDFAST_CRDS")
_folder = Path(_named) if _named else ROOT.parent / "shared" / "crds"
CRDS = _folder if _folder.is_dir() else None
"""Folder with the engines' CustomResourceDefinitions, None where there is none."""
NO_CRDS = "no folder with CustomResourceDefinitions: set HOLDFAST_CRDS"

MODELS = {
    "TrainJob": "trainer_v1alpha1_train_job.TrainerV1alpha1TrainJob",
    "TrainingRuntime": "trainer_v1alpha1_training_runtime.TrainerV1alpha1TrainingRuntime",
    "JobSet": "jobset_v1alpha2_job_set.JobsetV1alpha2JobSet",
}

NAMES = {"type": "string", "maxLength": 253, "pattern": "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"}
POD: Body = {"$ref": DEFINITIONS + POD_TEMPLATE}
COUNT: Body = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}


def _strictly(required: str, **properties: Body) -> Body:
    """An object of these properties and no others, the `required` ones named."""
    closed = {"type": "object", "additionalProperties": False}
    return {**closed, "properties": properties, "required": required.split()}


RAY_GROUP: Body = {
    "rayStartParams": {"type": "object", "additionalProperties": {"type": "string"}},
    "template": POD,
}
SMALL: dict[tuple[str, str], Body] = {  # kinds without a definition at hand, as their docs say
    ("scheduling.x-k8s.io/v1alpha1", "PodGroup"): {
        "type": "object",
        "properties": {
            "minMember": {"type": "integer", "minimum": 1},
            "minResources": {"type": "object", "additionalProperties": True},
            "scheduleTimeoutSeconds": {"type": "integer", "minimum": 1},
        },
        "additionalProperties": False,
        "required": ["minMember"],
    },
    ("ray.io/v1", "RayJob"): _strictly(
        "entrypoint rayClusterSpec",
        suspend={"type": "boolean"},
        managedBy={"enum": ["ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"]},
        entrypoint={"type": "string"},
        shutdownAfterJobFinishes={"type": "boolean"},
        backoffLimit=COUNT,
        activeDeadlineSeconds={**COUNT, "minimum": 1},
        submitterConfig=_strictly("", backoffLimit=COUNT),
        submitterPodTemplate=POD,
        rayClusterSpec=_strictly(
            "headGroupSpec",
            headGroupSpec=_strictly("template", **RAY_GROUP),
            workerGroupSpecs={
                "type": "array",
                "items": _strictly(
                    "groupName minReplicas maxReplicas template",
                    groupName={"type": "string"},
                    replicas=COUNT,
                    minReplicas=COUNT,
                    maxReplicas=COUNT,
                    **RAY_GROUP,
                ),
            },
        ),
    ),
    ("snapshot.storage.k8s.io/v1", "VolumeSnapshot"): {
        "type": "object",
        "properties": {
            "volumeSnapshotClassName": NAMES,
            "source": {
                "type": "object",
                "properties": {"persistentVolumeClaimName": NAMES},
                "additionalProperties": False,
                "required": ["persistentVolumeClaimName"],
            },
        },
        "additionalProperties": False,
        "required": ["source"],
    },
}


class Checker:
    """One schema, with the definitions of a `version` of Kubernetes; without one it is that of a
    custom kind, where `exclusiveMinimum` is true or false as in OpenAPI 3.0."""

    def __init__(self, schema: Body, version: str | None = None) -> None:
        self.schema, self._version = schema, version
        self._fast: jsonschema_rs.Validator | None = None
        with contextlib.suppress(jsonschema_rs.ValidationError):  # some patterns are only Go's
            if version:
                self._fast = jsonschema_rs.Draft202012Validator(
                    schema, registry=_fast_core(version), offline=True
                )
            else:
                self._fast = jsonschema_rs.Draft4Validator(schema, offline=True)

    @cached_property
    def _telling(self) -> Draft202012Validator | Draft4Validator:
        """Made where something is wrong."""
        if self._version:
            return Draft202012Validator(self.schema, registry=_core(self._version))
        return Draft4Validator(self.schema, registry=Registry[Any]())

    def errors(self, body: object) -> list[ValidationError]:
        """What is wrong with this."""
        if self._fast is not None and self._fast.is_valid(body):
            return []
        found = list(self._telling.iter_errors(body))
        assert found or self._fast is None, f"one validator refuses what another takes: {body}"
        return found


def problems(body: Body, version: str = NEWEST) -> list[str]:
    """Everything that is wrong with this object for this version of Kubernetes."""
    return list(_problems(json.dumps(body, sort_keys=True), version))


@cache
def _problems(text: str, version: str) -> list[str]:
    """What many jobs are rendered to alike is looked at once."""
    body = json.loads(text)
    return [*_own(body, version), *_templates(body, version), *_modelled(body), *_nulls(body, "")]


def _own(body: Body, version: str) -> list[str]:
    """Problems by the schema of its own kind."""
    kind, api = str(body.get("kind")), str(body.get("apiVersion"))
    if (api, kind) in SMALL:
        return _told(_small_validator(api, kind), body)
    core = _core_validator(kind, api, version)
    if core is not None:
        return _told(core, body)
    if CRDS is None and "." in api.partition("/")[0]:
        return _told(_definition_validator(OBJECT_META, version), body.get("metadata"), "metadata")
    custom = _custom_validator(kind, api)
    if custom is None:
        return [f"no schema for {kind} of {api} in Kubernetes {version}"]
    meta = _told(_definition_validator(OBJECT_META, version), body.get("metadata"), "metadata")
    return [*meta, *_told(custom, body)]


def _told(validator: Checker, body: object, under: str = "") -> list[str]:
    return [_line(error, under) for error in validator.errors(body)]


def _line(error: ValidationError, under: str) -> str:
    """Where and what; of alternatives, the one that came closest."""
    deepest = best_match([error]) or error
    path = ".".join(str(step) for step in deepest.absolute_path)
    return f"{'.'.join(filter(None, (under, path)))}: {deepest.message[:300]}"


# ── core kinds ────────────────────────────────────────────────────────────────────────────────


def _all_definitions(version: str) -> Body:
    folder = f"v{version}.0-local-strict"
    found: Body = schema_contents(f"kubernetes-json-schema/{folder}/_definitions.json", version)
    return found


@cache
def _core(version: str) -> "Registry[Any]":
    registry: Registry[Any] = Registry()
    whole: Resource[Any] = Resource.from_contents(_all_definitions(version))
    found: Registry[Any] = registry.with_resource("/api/_definitions.json", whole).crawl()
    return found


@cache
def _fast_core(version: str) -> jsonschema_rs.Registry:
    whole = _all_definitions(version)
    return jsonschema_rs.Registry([("json-schema:///api/_definitions.json", whole)])


@cache
def _core_validator(kind: str, api: str, version: str) -> Checker | None:
    group, _, name = api.rpartition("/")
    short = "-".join(filter(None, (group.partition(".")[0], name)))
    folder = f"kubernetes-json-schema/v{version}.0-local-strict"
    try:
        schema = schema_contents(f"{folder}/{kind.lower()}-{short}.json", version)
    except FileNotFoundError:
        return None
    if api not in schema["properties"].get("apiVersion", {}).get("enum", ()):
        return None
    return Checker(schema, version)


@cache
def _definition_validator(name: str, version: str) -> Checker:
    return Checker({"$ref": DEFINITIONS + name}, version)


def _templates(body: Body, version: str) -> list[str]:
    """Problems of the job and pod templates below an object of a custom kind."""
    if _core_validator(str(body.get("kind")), str(body.get("apiVersion")), version):
        return []
    found = []
    for place, name, part in _parts(body, ""):
        found += _told(_definition_validator(name, version), part, place)
    return found


def _parts(value: object, place: str) -> Iterator[tuple[str, str, object]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _parts(item, f"{place}.{index}")
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        here = f"{place}.{key}".lstrip(".")
        spec = inner.get("spec") if key == "template" and isinstance(inner, dict) else None
        if isinstance(spec, dict) and "containers" in spec:
            yield here, POD_TEMPLATE, inner
        elif isinstance(spec, dict) and "template" in spec and "replicatedJobs" not in spec:
            yield f"{here}.spec", JOB_TEMPLATE, spec
        yield from () if key == "runtimePatches" else _parts(inner, here)


def _nulls(value: object, place: str) -> list[str]:
    """Keys without a value, which say nothing and confuse a merge."""
    if isinstance(value, dict):
        return [line for key, inner in value.items() for line in _nulls(inner, f"{place}.{key}")]
    if isinstance(value, list):
        return [line for i, inner in enumerate(value) for line in _nulls(inner, f"{place}.{i}")]
    return [f"{place.lstrip('.')}: is null"] if value is None else []


# ── custom kinds ──────────────────────────────────────────────────────────────────────────────


@cache
def _custom_validator(kind: str, api: str) -> Checker | None:
    group, _, version = api.partition("/")
    for definition in _definitions(kind):
        spec = definition["spec"]
        if (spec["group"], spec["names"]["kind"]) == (group, kind):
            for served in spec["versions"]:
                if served["name"] == version:
                    return Checker(_closed(served["schema"]["openAPIV3Schema"]))
    return None


@cache
def immutable(kind: str, api: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Paths of an object of a custom kind that by its definition never change, those in lists left
    out: what a transition rule `self == oldSelf` stands at; and what is said of a change."""
    group, _, version = api.partition("/")
    found: list[tuple[tuple[str, ...], str]] = []
    for definition in _definitions(kind):
        spec = definition["spec"]
        for served in spec["versions"] if spec["group"] == group else ():
            if served["name"] == version:
                found += _fixed(served["schema"]["openAPIV3Schema"], ())
    return tuple(found)


def _fixed(schema: Body, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if rule["rule"] == "self == oldSelf":
            yield path, rule["message"]
    for name, inner in schema.get("properties", {}).items():
        yield from _fixed(inner, (*path, name))


def _definitions(kind: str) -> Iterator[Body]:
    for path in sorted(CRDS.glob("*/*.yaml")) if CRDS else ():
        text = path.read_text()
        if f"kind: {kind}\n" in text:
            yield from yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def _small_validator(api: str, kind: str) -> Checker:
    plain = {"apiVersion": {"const": api}, "kind": {"const": kind}}
    meta = {"$ref": DEFINITIONS + OBJECT_META}
    said = {"spec": SMALL[api, kind], "status": {"type": "object"}}
    schema: Body = {
        "properties": {**plain, "metadata": meta, **said},
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": False,
    }
    return Checker(schema, NEWEST)


def _closed(schema: Body, top: bool = True) -> Body:
    """An OpenAPI schema of a definition as a JSON schema that knows no unknown keys.

    Only the structural part is closed (what `anyOf` and the like say is a part of a whole).
    Defaults are filled in before anything is required. `metadata` at the top is Kubernetes' own.
    """
    found = {k: v for k, v in schema.items() if not k.startswith("x-") and k != "format"}
    inner = {name: _closed(field, False) for name, field in schema.get("properties", {}).items()}
    if top:
        inner["metadata"] = {"type": "object"}
    if inner:
        found["properties"] = inner
    if isinstance(schema.get("items"), dict):
        found["items"] = _closed(schema["items"], False)
    if isinstance(schema.get("additionalProperties"), dict):
        found["additionalProperties"] = _closed(schema["additionalProperties"], False)
    elif schema.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found["additionalProperties"] = False
    if "required" in schema:
        given = {name for name, field in schema.get("properties", {}).items() if "default" in field}
        found["required"] = [name for name in schema["required"] if name not in given]
    return found


# ── kubeflow-trainer-api ──────────────────────────────────────────────────────────────────────


def _modelled(body: Body) -> list[str]:
    """Problems by the Trainer's own models: refused, or silently left out."""
    if body.get("kind") not in MODELS:
        return []
    try:
        again = _model(str(body["kind"])).from_dict(body).to_dict()
    except ValueError as exc:
        return [f"kubeflow-trainer-api: {exc}"]
    return [f"kubeflow-trainer-api drops {path}" for path in _missing(body, again, "")]


@cache
def _model(kind: str) -> Any:
    import importlib

    module, _, name = MODELS[kind].partition(".")
    return getattr(importlib.import_module(f"kubeflow_trainer_api.models.{module}"), name)


def _missing(given: object, again: object, path: str) -> Iterator[str]:
    if isinstance(given, dict) and isinstance(again, dict):
        for key, value in given.items():
            if key in again:
                yield from _missing(value, again[key], f"{path}.{key}")
            elif value not in ({}, [], None):
                yield f"{path}.{key}".lstrip(".")
    if isinstance(given, list) and isinstance(again, list):
        for index, (one, other) in enumerate(zip(given, again, strict=False)):
            yield from _missing(one, other, f"{path}.{index}")
