"""TrainingJobs for tests."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.operator.definition import TRAINING_JOBS
from tests import quick_yaml

Body = dict[str, Any]
GOLDEN = Path(__file__).parents[1] / "drivers" / "kubernetes" / "golden"


def spec(**keys: Any) -> Body:
    """A spec with an image and a script, unless said otherwise."""
    program = {} if {"command", "module"} & keys.keys() else {"script": "train.py"}
    return {"image": {"name": "img:1"}, **program, **keys}


def training_job(name: str = "run", namespace: str = "default", **keys: Any) -> Body:
    """A TrainingJob as a person would apply it."""
    return {
        "apiVersion": TRAINING_JOBS.api,
        "kind": TRAINING_JOBS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec(**keys),
    }


@cache
def golden_specs() -> dict[str, Body]:
    """Every golden job file, written out as the spec of a TrainingJob."""
    found = {}
    for path in sorted(GOLDEN.glob("*.job.yaml")):
        text = path.read_text()
        said = quick_yaml.load(text)
        said.pop("name")
        engine, _, mode = text.split()[2].partition("@")[0].partition(".")  # `# renders: job.plain`
        said["kubernetes"] = {**said.get("kubernetes", {}), "engine": engine, "mode": mode}
        found[path.name.removesuffix(".job.yaml")] = long_form(said)
    return found


def long_form(said: Body) -> Body:
    """Without the short forms of job files, and without the namespace."""
    made = dict(said)
    if isinstance(made.get("nodes"), int):
        made["nodes"] = {"count": made["nodes"]}
    if isinstance(made.get("image"), str):
        made["image"] = {"name": made["image"]}
    if "kubernetes" in made:
        made["kubernetes"] = {k: v for k, v in made["kubernetes"].items() if k != "namespace"}
    return made


def defaulted(value: Any, schema: Mapping[str, Any]) -> Any:
    """As the API server fills defaults in: from the top, before anything is checked."""
    match value:
        case dict() if "properties" in schema:
            keys = schema["properties"]
            filled = {k: s["default"] for k, s in keys.items() if "default" in s} | value
            return {k: defaulted(v, keys[k]) if k in keys else v for k, v in filled.items()}
        case list() if "items" in schema:
            return [defaulted(item, schema["items"]) for item in value]
        case other:
            return other
