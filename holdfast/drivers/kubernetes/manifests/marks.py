"""Labels and annotations that are added to a body which may have some already."""

from holdfast.drivers.kubernetes.manifests.request import Body


def marked(
    body: Body, *, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None
) -> Body:
    """A copy of `body`, an object or a template, with these in its metadata."""
    metadata: Body = dict(body.get("metadata", {}))
    for kind, added in (("labels", labels), ("annotations", annotations)):
        if added:
            metadata[kind] = {**metadata.get(kind, {}), **added}
    return {**body, "metadata": metadata}


def with_spec(body: Body, **keys: object) -> Body:
    """A copy of `body` with these keys at the head of its spec."""
    rest = {key: value for key, value in body["spec"].items() if key not in keys}
    return {**body, "spec": {**keys, **rest}}
