"""The CustomResourceDefinition of TrainingJob: its spec is the job file.

Made from the model of the job file, so that a new key is in both at once. Three keys are missing:
`name` is that of the object, the namespace is where the object is, and `clusters` is for `holdfast
federate`, which is above clusters. `code`, a folder beside the job file, is here the ConfigMap that
has such a folder, packed.
Short forms (`nodes: 2`, `image: x`) are written out, as Kubernetes wants one type for each key.
"""

from typing import Any

import yaml

from holdfast.drivers.kubernetes.cluster import Kind
from holdfast.operator.rules import ROOT, ruled
from holdfast.operator.structural import Schema, structural
from holdfast.spec import Job
from holdfast.spec.described import described

GROUP, VERSION = "holdfast.dev", "v1alpha1"
TRAINING_JOBS = Kind(f"{GROUP}/{VERSION}", "TrainingJob", "trainingjobs")
CONDITIONS = ("Accepted", "Running", "Recovering", "Suspended", "Complete", "Failed")

HISTORY = 10  # runs that are remembered
CODE: Schema = {
    "type": "string",
    "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
    "maxLength": 200,
    "description": "Name of a ConfigMap in this namespace with the code: its folder, packed with "
    "tar and gzip, as code.tar.gz. Every node unpacks it; it is the working directory. Another "
    "name is other code, which a running job takes over by a hot update.",
}

COLUMNS: tuple[tuple[str, str, str, int], ...] = (
    ("Phase", "string", ".status.phase", 0),
    ("Nodes", "string", ".status.nodes", 0),
    ("Step", "integer", ".status.step", 0),
    ("ETTR", "number", ".status.ettr", 0),
    ("Restarts", "integer", ".status.restarts", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Engine", "string", ".spec.kubernetes.engine", 1),
    ("Waiting for", "string", ".status.waitingFor", 1),
)
"""Name, type, path and priority; those of priority 1 are shown by `kubectl get -o wide`."""

STATUS: dict[str, tuple[Schema, str]] = {
    "phase": ({"type": "string"}, "Phase of the job, in one word."),
    "nodes": ({"type": "string"}, "Training nodes and desired nodes, as in `7/8`."),
    "step": ({"type": "integer", "format": "int64"}, "Last known step."),
    "ettr": ({"type": "number"}, "Productive time over wall time."),
    "restarts": ({"type": "integer", "format": "int32"}, "Restarts so far."),
    "incidents": ({"type": "integer", "format": "int32"}, "Incidents so far."),
    "attempt": ({"type": "integer", "format": "int64"}, "Number of the attempt."),
    "waitingFor": ({"type": "string"}, "What the job waits for."),
    "why": ({"type": "string"}, "Why it is in this phase, in one sentence."),
    "outcome": ({"type": "string"}, "Outcome of the job."),
    "startTime": ({"type": "string", "format": "date-time"}, "Start time."),
    "completionTime": (
        {"type": "string", "format": "date-time"},
        "Time at which the end of the job was observed.",
    ),
    "startedSpec": (
        {"type": "string"},
        "Digest of the spec that the running job was created from.",
    ),
    "observedGeneration": (
        {"type": "integer", "format": "int64"},
        "Generation of the spec that the status was computed from.",
    ),
}


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition."""
    served = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(*column) for column in COLUMNS],
        "schema": {"openAPIV3Schema": _whole()},
    }
    names = {
        "kind": TRAINING_JOBS.kind,
        "listKind": f"{TRAINING_JOBS.kind}List",
        "plural": TRAINING_JOBS.plural,
        "singular": "trainingjob",
        "shortNames": ["tj"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{TRAINING_JOBS.plural}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [served]},
    }


def as_yaml() -> str:
    """The definition as a file, as it is in deploy/crd."""
    head = "# Written by `make docs`. Change the model of the job file, not this.\n"
    return head + yaml.dump(
        definition(), Dumper=_Plain, sort_keys=False, width=100, allow_unicode=True
    )


class _Plain(yaml.SafeDumper):
    """Writes out what is there twice, instead of a reference that people trip over."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the library's signature
        return True


def job_spec() -> Schema:
    """Schema of `spec`."""
    model = described(Job.model_json_schema())
    keys = model["properties"]
    for name in ("name", "clusters"):
        keys.pop(name, None)
    keys["code"] = CODE
    kubernetes = model["$defs"]["Kubernetes"]
    kubernetes["properties"].pop("namespace")
    needed = {"type": "object", "properties": keys, "required": ["image"]}
    return ruled(structural(needed, model["$defs"]))


def _whole() -> Schema:
    return {
        "type": "object",
        "description": "A fault-tolerant training job run by Holdfast.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {**job_spec(), "description": "The job file, without its name."},
            "status": _status(),
        },
        "x-kubernetes-validations": [ROOT._asdict()],
    }


def _status() -> Schema:
    keys = {name: {**schema, "description": text} for name, (schema, text) in STATUS.items()}
    listed = {
        "type": "array",
        "description": f"Conditions: {', '.join(CONDITIONS)}.",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": _condition(),
    }
    return {"type": "object", "properties": {**keys, "conditions": listed, "history": _history()}}


def _history() -> Schema:
    """Of each run what its status said at the end."""
    names = ("startTime", "outcome", "step", "ettr", "restarts", "incidents", "why")
    keys = {name: STATUS[name][0] for name in names}
    return {
        "type": "array",
        "description": "Previous runs that were suspended, the newest last.",
        "x-kubernetes-list-type": "atomic",
        "maxItems": HISTORY,
        "items": {
            "type": "object",
            "required": ["startTime"],
            "properties": {**keys, "endTime": STATUS["startTime"][0]},
        },
    }


def _condition() -> Schema:
    text = {"type": "string"}
    keys = {
        "type": text,
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": text,
        "message": text,
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "observedGeneration": {"type": "integer", "format": "int64"},
    }
    needed = ["type", "status", "reason", "lastTransitionTime"]
    return {"type": "object", "required": needed, "properties": keys}


def _column(name: str, kind: str, path: str, priority: int) -> Schema:
    column: Schema = {"name": name, "type": kind, "jsonPath": path}
    return {**column, "priority": priority} if priority else column
