"""The definition of TrainingJob: structural as Kubernetes demands, and the model's equal."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft4Validator

from holdfast.cli import main
from holdfast.operator.definition import (
    COLUMNS,
    CONDITIONS,
    STATUS,
    as_yaml,
    definition,
    job_spec,
)
from holdfast.operator.structural import EITHER, OPEN, structural
from holdfast.spec import Job, job_from_dict
from tests import quick_yaml
from tests.operator.asking import defaulted, golden_specs, spec
from tests.tidy.source import ROOT

Schema = dict[str, Any]

KNOWN = {
    "type", "description", "required", "enum", "pattern", "minimum", "maximum", "minLength",
    "maxLength", "minItems", "maxItems", "maxProperties", "exclusiveMinimum", "default",
    "properties", "additionalProperties", "items", "format", OPEN, EITHER,
    "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
}  # fmt: skip
FILE = ROOT / "deploy" / "crd" / "trainingjob.yaml"
TYPES = {"object", "array", "string", "integer", "number", "boolean"}


@cache
def whole() -> Schema:
    schema: Schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def places(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema in a schema."""
    yield path, schema
    for key, inner in schema.get("properties", {}).items():
        yield from places(inner, f"{path}.{key}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from places(schema[key], f"{path}[]")


def unstructural(path: str, schema: Schema) -> list[str]:
    """What the API server would say against one schema."""
    found = [f"{path}: {key} is unknown" for key in schema.keys() - KNOWN]
    typed = schema.get("type")
    if typed is None and not (schema.get(OPEN) or schema.get(EITHER)):
        found.append(f"{path}: no type")
    if typed is not None and (typed not in TYPES or schema.get(EITHER)):
        found.append(f"{path}: type {typed}")
    if "properties" in schema and "additionalProperties" in schema:
        found.append(f"{path}: properties and additionalProperties")
    if typed == "array" and "items" not in schema:
        found.append(f"{path}: no items")
    if "default" in schema and schema["default"] is None:
        found.append(f"{path}: null as default")
    if not isinstance(schema.get("exclusiveMinimum", True), bool):
        found.append(f"{path}: exclusiveMinimum is a flag here")
    return found


def problems(value: Any) -> list[str]:
    """What a schema of this dialect, which is draft 4's, says against a spec."""
    schema = strict()
    return [str(e.message) for e in Draft4Validator(schema).iter_errors(defaulted(value, schema))]


@cache
def of_specs() -> Schema:
    return job_spec()


@cache
def strict() -> Schema:
    """The schema of specs, without room for unknown keys."""
    return closed(of_specs())


def closed(schema: Schema) -> Schema:
    """Unknown keys as errors, as `fieldValidation=Strict` has it, and int-or-string as a choice."""
    made = dict(schema)
    if made.get(EITHER):
        made["type"] = ["integer", "string"]
    if "properties" in made:
        made["properties"] = {k: closed(v) for k, v in made["properties"].items()}
        made["additionalProperties"] = False
    if isinstance(made.get("items"), dict):
        made["items"] = closed(made["items"])
    return made


def test_every_part_is_structural() -> None:
    assert [told for place in places(whole()) for told in unstructural(*place)] == []


def test_the_check_finds_what_is_not_structural() -> None:
    wrongs: tuple[Schema, ...] = (
        {"anyOf": []}, {}, {"type": "null"}, {"type": "array"}, {"type": "string", EITHER: True},
        {"type": "number", "exclusiveMinimum": 0}, {"type": "string", "default": None},
        {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
    )  # fmt: skip
    for wrong in wrongs:
        assert unstructural("x", wrong), wrong


def test_a_default_is_right_by_its_own_schema() -> None:
    for path, schema in places(closed(whole())):
        if "default" in schema:
            filled = defaulted(schema["default"], schema)
            assert not list(Draft4Validator(schema).iter_errors(filled)), path


def test_bounds_are_numbers_that_an_api_server_compares_exactly() -> None:
    """It holds them as float64, where 2^63 - 1 becomes 2^63, which is no integer of its any more:
    the whole definition was refused for that."""
    bounds = [
        (path, key, part[key])
        for path, part in places(whole())
        for key in ("minimum", "maximum")
        if isinstance(part.get(key), int)
    ]
    assert bounds
    assert [(path, key) for path, key, bound in bounds if abs(bound) >= 2**53] == []


def test_every_key_of_the_job_file_is_in_the_spec_but_those_of_other_places() -> None:
    keys = set(of_specs()["properties"])
    assert set(Job.model_fields) - keys <= {"name", "clusters"}
    assert "namespace" not in of_specs()["properties"]["kubernetes"]["properties"]


def test_defaults_are_those_of_the_model() -> None:
    bare = {**spec(), "name": "run"}
    filled = {**defaulted(spec(), of_specs()), "name": "run"}
    assert job_from_dict(filled, where="crd") == job_from_dict(bare, where="file")


@pytest.mark.parametrize("name", golden_specs())
def test_job_files_are_good_specs(name: str) -> None:
    assert problems(golden_specs()[name]) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodez": 1},
        {"nodes": {"count": 0}},
        {"nodes": 2},
        {"workers_per_node": "some"},
        {"workers_per_node": 0},
        {"recovery": {"window_s": 0}},
        {"image": {"name": "x", "root": "perhaps"}},
        {"resources": {"cpu": "many"}},
        {"resources": {"shm": "lots"}},
        {"resources": {"hugepages": {"3Mi": "1Gi"}}},
        {"kubernetes": {"engine": "slurm"}},
    ],
)
def test_wrong_values_are_refused(wrong: Schema) -> None:
    assert problems(spec(**wrong))


@pytest.mark.parametrize(
    "right",
    [
        {"workers_per_node": "auto"},
        {"workers_per_node": 8},
        {"resources": {"cpu": 8, "memory": "1.5Gi", "shm": "auto"}},
        {"image": {"name": "x", "root": False}},
        {"image": {"name": "x", "root": "auto"}},
        {"overlay": {"spec": {"anything": [1, {"x": None}]}}},
        {"recovery": {"window_s": 0.5}},
    ],
)
def test_right_values_are_taken(right: Schema) -> None:
    assert problems(spec(**right)) == []


def test_what_has_no_structural_form_is_an_error_and_not_left_out() -> None:
    with pytest.raises(ValueError, match="no structural schema"):
        structural({"anyOf": [{"type": "array"}, {"type": "string"}]}, {})
    with pytest.raises(ValueError, match="no type"):
        structural({"description": "anything"}, {})


def test_columns_show_what_the_status_has() -> None:
    shown = [path.removeprefix(".status.") for _, _, path, _ in COLUMNS if ".status." in path]
    assert set(shown) <= set(STATUS)
    assert [name for name, _, _, priority in COLUMNS if not priority] == [
        "Phase", "Nodes", "Step", "ETTR", "Restarts", "Age",
    ]  # fmt: skip
    assert CONDITIONS == ("Accepted", "Running", "Recovering", "Suspended", "Complete", "Failed")


def test_the_file_that_is_deployed_is_current() -> None:
    assert FILE.read_text() == as_yaml(), "run `make docs`"


def test_holdfast_schema_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--crd"]) == 0
    assert capsys.readouterr().out == FILE.read_text()
    assert main(["schema", "--crd", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == quick_yaml.load(FILE.read_text())


def test_it_fits_into_the_annotation_that_kubectl_apply_makes() -> None:
    assert len(json.dumps(quick_yaml.load(FILE.read_text()))) < 256 * 1024
