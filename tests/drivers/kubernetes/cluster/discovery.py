"""Which groups, versions and kinds the server has, as clients ask for it."""

from tests.drivers.kubernetes.cluster.kinds import ONLY_CREATED, PLAIN, Kinds
from tests.drivers.kubernetes.cluster.refusal import Body

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def described(kinds: Kinds, path: str) -> Body | None:
    """The answer to `/api`, `/apis`, `/apis/GROUP` or a list of resources; None if unknown."""
    match path.strip("/").split("/"):
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            names = dict.fromkeys(api.partition("/")[0] for api in _apis(kinds) if "/" in api)
            groups = [_group(kinds, name) for name in names]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["apis", group] if any(api.startswith(f"{group}/") for api in _apis(kinds)):
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(kinds, group)}
        case ["api", version] | ["apis", _, version]:
            api = path.strip("/").partition("/")[2]
            return _resources(kinds, api) if version and api in _apis(kinds) else None
        case _:
            return None


def _apis(kinds: Kinds) -> list[str]:
    return list(dict.fromkeys(kind.api for kind in kinds))


def _group(kinds: Kinds, name: str) -> Body:
    apis = [api for api in _apis(kinds) if api.startswith(f"{name}/")]
    versions = [{"groupVersion": api, "version": api.partition("/")[2]} for api in apis]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resources(kinds: Kinds, api: str) -> Body:
    found: list[Body] = []
    for kind in kinds:
        if kind.api == api:
            said = {"name": kind.plural, "singularName": kind.kind.lower(), "kind": kind.kind}
            verbs = ["create"] if kind.plural in ONLY_CREATED else VERBS
            found.append({**said, "namespaced": kind.namespaced, "verbs": verbs})
            if kind.plural not in PLAIN | ONLY_CREATED:
                part = {
                    **said,
                    "name": f"{kind.plural}/status",
                    "verbs": ["get", "patch", "update"],
                }
                found.append({**part, "namespaced": kind.namespaced})
    return {"kind": "APIResourceList", "groupVersion": api, "resources": found}
