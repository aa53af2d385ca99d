"""A JSON schema as pydantic writes it, made into the structural schema that Kubernetes demands.

Structural means: one type for every value, no references, no choices between types. References are
resolved and `null` is dropped, since a key that says nothing is left out. A whole number or text
becomes Kubernetes' own `int-or-string`, and so do quantities, which people write both ways. Only a
choice between true, false and a word has no type that fits; there an enumeration says it all.

Patterns of keys are lost, because the dialect has no word for them: the operator, which reads every
spec with the model itself, tells of those.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.spec.section import QUANTITY_PATTERN

Schema = dict[str, Any]

KEPT = (
    "type", "description", "required", "enum", "pattern", "minimum", "maximum", "minLength",
    "maxLength", "minItems", "maxItems",
)  # fmt: skip
OPEN = "x-kubernetes-preserve-unknown-fields"
EITHER = "x-kubernetes-int-or-string"


def structural(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """The same schema in Kubernetes' dialect. Raises `ValueError` where there is no such thing."""
    if "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        named = definitions[schema["$ref"].rpartition("/")[2]]
        return structural({**named, **rest}, definitions)
    if "anyOf" in schema:
        return structural(_one_of(schema), definitions)
    found = {key: schema[key] for key in KEPT if key in schema}
    found |= _exclusive(schema)
    found |= {key: schema[key] for key in (OPEN, EITHER) if key in schema}
    match found.get("type"):
        case "object":
            found |= _object(schema, definitions)
        case "array":
            found["items"] = structural(schema["items"], definitions)
        case "string" if found.get("pattern") == QUANTITY_PATTERN:
            found = {EITHER: True, **{k: v for k, v in found.items() if k != "type"}}
        case None if not (OPEN in found or EITHER in found):
            raise ValueError(f"no type in {schema}")
        case _:
            pass
    return found | _default(schema)


def _default(schema: Schema) -> Schema:
    """Sections are empty by default: their own keys have the defaults."""
    default = schema.get("default")
    if default is None:
        return {}
    filled = "properties" in schema and isinstance(default, dict)
    return {"default": {} if filled else default}


def _exclusive(schema: Schema) -> Schema:
    """Here a flag beside the bound, there a bound of its own."""
    if "exclusiveMinimum" not in schema:
        return {}
    return {"minimum": schema["exclusiveMinimum"], "exclusiveMinimum": True}


def _object(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    if "properties" in schema:
        inner = schema["properties"]
        return {"properties": {key: structural(inner[key], definitions) for key in inner}}
    values = _values(schema)
    if values is True:
        return {OPEN: True}
    made = structural(values, definitions)
    if "propertyNames" in schema:
        return {"properties": dict.fromkeys(schema["propertyNames"]["enum"], made)}
    return {"additionalProperties": made}


def _values(schema: Schema) -> Any:
    """The schema of an object's values, whatever its keys."""
    if "patternProperties" in schema:
        return next(iter(schema["patternProperties"].values()))
    return schema.get("additionalProperties", True)


def _one_of(schema: Schema) -> Schema:
    """One schema for a choice."""
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    choices = [choice for choice in schema["anyOf"] if choice != {"type": "null"}]
    if len(choices) == 1:
        return {**choices[0], **rest}
    types = {choice.get("type") for choice in choices}
    if types <= {"integer", "string"}:
        bounds = {k: v for c in choices if c["type"] == "integer" for k, v in c.items()}
        texts = [_pattern(choice) for choice in choices if choice["type"] == "string"]
        bounds.pop("type", None)
        return {**rest, EITHER: True, **bounds, "pattern": "|".join(texts)}
    if types == {"boolean", "string"}:
        words = [c["const"] for c in choices if c["type"] == "string"]
        return {**rest, OPEN: True, "enum": [True, False, *words]}
    raise ValueError(f"no structural schema for {schema}")


def _pattern(choice: Schema) -> str:
    return str(choice["pattern"]) if "pattern" in choice else f"^{choice['const']}$"
