"""Kinds that come with a CustomResourceDefinition created in the cluster: served, and validated."""

from holdfast.drivers.kubernetes.cluster import Kind
from tests.drivers.kubernetes import schemas
from tests.drivers.kubernetes.cluster.kinds import Kinds
from tests.drivers.kubernetes.cluster.refusal import Body, RefusalError, invalid


class Custom:
    """Definitions that were created, by group, version and kind."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._known: dict[tuple[str, str], schemas.Checker] = {}

    def add(self, definition: Body) -> None:
        """Serve what is defined."""
        spec = definition["spec"]
        names, namespaced = spec["names"], spec["scope"] == "Namespaced"
        for served in spec["versions"]:
            api = f"{spec['group']}/{served['name']}"
            self._kinds.add(Kind(api, names["kind"], names["plural"], namespaced))
            closed = schemas._closed(served["schema"]["openAPIV3Schema"])
            always = {key: {"type": "string"} for key in ("apiVersion", "kind")}
            closed["properties"] = {**always, **closed.get("properties", {})}
            self._known[api, names["kind"]] = schemas.Checker(closed)

    def validate(self, body: Body, *, strict: bool) -> bool:
        """Whether it is one of ours. Raises `RefusalError` if it is, and is wrong."""
        kind = str(body.get("kind"))
        validator = self._known.get((str(body.get("apiVersion")), kind))
        if validator is None:
            return False
        found = schemas._told(validator, body)
        unknown = [p for p in found if "unexpected" in p]
        wrong = [p for p in found if p not in unknown]
        if unknown and strict:
            raise RefusalError(400, f"strict decoding error: unknown field {', '.join(unknown)}")
        if wrong:
            raise invalid(kind, str(body["metadata"].get("name")), "; ".join(wrong))
        return True
