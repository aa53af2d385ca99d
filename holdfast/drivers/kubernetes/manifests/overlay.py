"""Strategic merge of the user's overlay into a pod template.

Mappings are merged key by key, `null` removes a key. Lists whose items have a merge key in
Kubernetes (containers by name, ports by containerPort, ...) are merged item by item; an item with
`$patch: delete` removes its namesake. Other lists are replaced. The main container may be called
`main` whatever the engine calls it, and `*` stands for every container of the pod, init containers
too, so that one overlay fits every engine and every pod.
"""

from typing import Any

from holdfast.drivers.kubernetes.manifests.request import Body

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "claims": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "topologySpreadConstraints": "topologyKey",
    "hostAliases": "ip",
    "schedulingGates": "name",
}
MAIN, EVERY = "main", "*"
LISTS = ("containers", "initContainers")
PATCH = "$patch"


def merged(template: Body, overlay: Body, *, main: str) -> Body:
    """`template` with `overlay` merged in; `main` is the name of its main container."""
    return _mapping(template, _named(overlay, template, main)) if overlay else template


def _named(overlay: Body, template: Body, main: str) -> Body:
    """The overlay with the containers of this template in place of `main` and `*`."""
    spec = overlay.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
        return overlay
    given = [c for c in spec["containers"] if isinstance(c, dict)]
    every = [c for c in given if c.get("name") == EVERY]
    named = [{**c, "name": main} if c.get("name") == MAIN else c for c in given if c not in every]
    merged: Body = {**spec, "containers": named}
    for key in LISTS if every else ():
        there = [container["name"] for container in template.get("spec", {}).get(key, [])]
        spread = [{**c, "name": name} for c in every for name in there]
        if spread or key in merged:
            merged[key] = [*spread, *merged.get(key, [])]
    return {**overlay, "spec": merged}


def _mapping(old: Body, new: Body) -> Body:
    if new.get(PATCH) == "replace":
        return {key: value for key, value in new.items() if key != PATCH}
    found = dict(old)
    for key, value in new.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _value(key, old.get(key), value)
    return found


def _value(key: str, old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return _mapping(old, new)
    by = MERGE_KEYS.get(key)
    keyed = by is not None and isinstance(old, list) and isinstance(new, list)
    if keyed and all(isinstance(item, dict) and by in item for item in new):
        return _items(old, new, str(by))
    return _bare(new)


def _items(old: list[Body], new: list[Body], by: str) -> list[Body]:
    found = {item[by]: item for item in old}
    for item in new:
        if item.get(PATCH) == "delete":
            found.pop(item[by], None)
        else:
            found[item[by]] = _mapping(found.get(item[by], {}), item)
    return list(found.values())


def _bare(value: Any) -> Any:
    """A new value without the words of the merge itself."""
    match value:
        case dict():
            return {k: _bare(v) for k, v in value.items() if k != PATCH and v is not None}
        case list():
            return [_bare(item) for item in value]
        case _:
            return value
