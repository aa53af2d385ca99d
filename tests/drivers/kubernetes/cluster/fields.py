"""Who owns which field, and how server-side apply merges: by the list types of the schemas.

A path is a tuple of steps as `managedFields` writes them: `f:name` of a field, `k:{"name":"main"}`
of an item with a key, `v:1` of a member of a set. What has no schema has atomic lists, as a
CustomResourceDefinition that does not say otherwise.
"""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from kubernetes_validate.utils import schema_contents  # type: ignore[import-untyped]

from tests.drivers.kubernetes import schemas
from tests.drivers.kubernetes.cluster.refusal import Body, RefusalError, copied

Path = tuple[str, ...]
UNOWNED = frozenset(
    ("uid", "name", "namespace", "generateName", "resourceVersion", "generation", "managedFields")
) | {"creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"}


@cache
def _definitions() -> Body:
    folder = f"kubernetes-json-schema/v{schemas.NEWEST}.0-local-strict"
    found: Body = schema_contents(f"{folder}/_definitions.json", schemas.NEWEST)["$defs"]
    return found


@cache
def _schema(api: str, kind: str) -> Body:
    """The schema of a kind; an empty one if there is none."""
    core = schemas._core_validator(kind, api, schemas.NEWEST)
    found = core or schemas._custom_validator(kind, api)
    schema: Body = found.schema if found else {}
    meta = {"$ref": f"#/$defs/{schemas.OBJECT_META}"}
    return {**schema, "properties": {**schema.get("properties", {}), "metadata": meta}}


def schema_of(body: Body) -> Body:
    """The schema that an object's lists are merged by."""
    return _schema(str(body.get("apiVersion")), str(body.get("kind")))


def _resolved(schema: Body) -> Body:
    while "$ref" in schema:
        schema = _definitions()[schema["$ref"].rpartition("/")[2]]
    return schema


def _inner(schema: Body, key: str) -> Body:
    found = schema.get("properties", {}).get(key)
    more = schema.get("additionalProperties")
    return _resolved(found or (more if isinstance(more, dict) else {}))


def _atomic(value: Any, schema: Body) -> bool:
    if isinstance(value, dict):
        return schema.get("x-kubernetes-map-type") == "atomic" or not value
    if isinstance(value, list):
        return schema.get("x-kubernetes-list-type") not in ("map", "set")
    return True


def _step(item: Any, schema: Body) -> str:
    """How an item of a list that is not atomic is called."""
    if schema["x-kubernetes-list-type"] == "set":
        return f"v:{json.dumps(item)}"
    items = _resolved(schema.get("items", {}))
    keys = {key: _key(item, key, items) for key in schema["x-kubernetes-list-map-keys"]}
    return f"k:{json.dumps(keys, sort_keys=True, separators=(',', ':'))}"


def _key(item: Body, key: str, items: Body) -> Any:
    return item.get(key, _inner(items, key).get("default", "TCP" if key == "protocol" else None))


def leaves(value: Any, schema: Body, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every path of an object that somebody can own, and what stands there."""
    if at in (("f:apiVersion",), ("f:kind",)):
        return
    if len(at) == 2 and at[0] == "f:metadata" and at[1][2:] in UNOWNED:
        return
    schema = _resolved(schema)
    if _atomic(value, schema):
        if at:
            yield at, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, _inner(schema, key), (*at, f"f:{key}"))
    else:
        for item in value:
            step = (*at, _step(item, schema))
            yield step, None
            if isinstance(item, dict):
                yield from leaves(item, schema.get("items", {}), step)


def merged(live: Any, applied: Any, schema: Body) -> Any:
    """What is applied, laid over what is there."""
    schema = _resolved(schema)
    if isinstance(live, dict) and isinstance(applied, dict) and not _atomic(applied, schema):
        inner = {k: merged(live.get(k), v, _inner(schema, k)) for k, v in applied.items()}
        return {**live, **inner}
    if isinstance(live, list) and isinstance(applied, list) and not _atomic(applied, schema):
        items = schema.get("items", {})
        found = {_step(item, schema): item for item in live}
        for item in applied:
            step = _step(item, schema)
            found[step] = merged(found.get(step), item, items)
        return list(found.values())
    return copied(applied) if applied != {} or not isinstance(live, dict) else live


def without(value: Any, path: Path, schema: Body) -> Any:
    """The object without what stands at a path."""
    schema, step = _resolved(schema), path[0]
    if step.startswith("f:"):
        key = step[2:]
        if not isinstance(value, dict) or key not in value:
            return value
        if len(path) == 1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: without(value[key], path[1:], _inner(schema, key))}
    if not isinstance(value, list):
        return value
    items = schema.get("items", {})
    kept = [v for v in value if len(path) > 1 or _step(v, schema) != step]
    return [without(v, path[1:], items) if _step(v, schema) == step else v for v in kept]


# ── managedFields ─────────────────────────────────────────────────────────────────────────────


def packed(paths: set[Path]) -> Body:
    """Paths as `fieldsV1`."""
    found: Body = {}
    for path in sorted(paths):
        here = found
        for step in path:
            here = here.setdefault(step, {})
        if not path[-1].startswith("f:"):
            here["."] = {}
    return found


def unpacked(fields: Body, at: Path = ()) -> set[Path]:
    """`fieldsV1` as paths."""
    found: set[Path] = {at} if "." in fields or (at and not fields) else set()
    for step, inner in fields.items():
        if step != ".":
            found |= unpacked(inner, (*at, step))
    return found


def _entry(manager: str, operation: str, api: str, part: str, paths: set[Path], at: str) -> Body:
    found: Body = {"manager": manager, "operation": operation, "apiVersion": api, "time": at}
    found |= {"fieldsType": "FieldsV1", "fieldsV1": packed(paths)}
    return {**found, "subresource": part} if part else found


def record_update(old: Body | None, new: Body, manager: str, part: str, at: str) -> None:
    """Give the fields that an update changed to its manager, and take them from the others."""
    schema = schema_of(new)
    before = dict(leaves(old, schema)) if old else {}
    after = dict(leaves(new, schema))
    changed = {path for path, value in after.items() if before.get(path, ...) != value}
    entries = []
    mine: set[Path] = set()
    for entry in new["metadata"].get("managedFields", []):
        paths = unpacked(entry["fieldsV1"]) & after.keys()
        own = (entry["manager"], entry["operation"]) == (manager, "Update")
        if own and entry.get("subresource", "") == part:
            mine |= paths
        elif paths - changed:
            entries.append({**entry, "fieldsV1": packed(paths - changed)})
    if mine | changed:
        entries.append(_entry(manager, "Update", new["apiVersion"], part, mine | changed, at))
    new["metadata"]["managedFields"] = entries


def apply(live: Body, applied: Body, manager: str, *, force: bool, part: str, at: str) -> Body:
    """The object after `manager` has applied its wishes. Raises `RefusalError` on a conflict.

    What it applied before and no longer names goes, unless somebody else owns it too.
    """
    schema = schema_of(live)
    wanted, have = dict(leaves(applied, schema)), dict(leaves(live, schema))
    others, before = [], set()
    conflicts: list[Body] = []
    for entry in live["metadata"].get("managedFields", []):
        paths = unpacked(entry["fieldsV1"])
        if (entry["manager"], entry["operation"]) == (manager, "Apply"):
            before |= paths
            continue
        lost = {p for p in paths & wanted.keys() if have.get(p, ...) != wanted[p]}
        conflicts += [_conflict(entry, path) for path in sorted(lost)]
        if paths - lost:
            others.append({**entry, "fieldsV1": packed(paths - lost)})
    if conflicts and not force:
        raise _conflicting(conflicts)
    kept = {path for entry in others for path in unpacked(entry["fieldsV1"])}
    found = live
    for path in sorted(before - wanted.keys() - kept, key=len, reverse=True):
        found = without(found, path, schema)
    found = merged(found, applied, schema)
    mine = _entry(manager, "Apply", live["apiVersion"], part, set(wanted), at)
    entries = [*others, mine]
    return {**found, "metadata": {**found["metadata"], "managedFields": entries}}


def _conflict(entry: Body, path: Path) -> Body:
    field = "".join(f".{s[2:]}" if s.startswith("f:") else f"[{s[2:]}]" for s in path)
    said = f'conflict with "{entry["manager"]}" using {entry["apiVersion"]}'
    return {"reason": "FieldManagerConflict", "message": said, "field": field}


def _conflicting(conflicts: list[Body]) -> RefusalError:
    count = f"{len(conflicts)} conflict{'s' if len(conflicts) > 1 else ''}"
    first = f"{conflicts[0]['message']}: {conflicts[0]['field']}"
    return RefusalError(409, f"Apply failed with {count}: {first}", causes=conflicts)


# ── patches ───────────────────────────────────────────────────────────────────────────────────


def merge_patched(value: Any, patch: Any) -> Any:
    """RFC 7386: null removes, lists are replaced."""
    if not isinstance(patch, dict):
        return patch
    found = dict(value) if isinstance(value, dict) else {}
    for key, wanted in patch.items():
        if wanted is None:
            found.pop(key, None)
        else:
            found[key] = merge_patched(found.get(key), wanted)
    return found


def json_patched(value: Body, patch: list[Body]) -> Body:
    """RFC 6902, with the operations add, replace, remove and test."""
    root = {"": copied(value)}
    for operation in patch:
        steps = [s.replace("~1", "/").replace("~0", "~") for s in operation["path"].split("/")]
        *way, last = steps
        here: Any = root
        try:
            for step in way:
                here = here[int(step)] if isinstance(here, list) else here[step]
            _operate(here, last, operation)
        except (KeyError, IndexError, ValueError) as exc:
            why = f"the server rejected our request due to an error in our request: {exc!r}"
            raise RefusalError(422, why, reason="Invalid") from exc
    return root[""]


def _operate(here: Any, last: str, operation: Body) -> None:
    place: Any = len(here) if last == "-" else int(last) if isinstance(here, list) else last
    match operation["op"]:
        case "test":
            if here[place] != operation["value"]:
                raise ValueError("test failed")
        case "remove":
            del here[place]
        case "add" if isinstance(here, list):
            here.insert(place, operation["value"])
        case "add":
            here[place] = operation["value"]
        case "replace":
            _ = here[place]
            here[place] = operation["value"]
        case other:
            raise ValueError(other)
