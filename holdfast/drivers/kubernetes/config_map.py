"""The ConfigMaps that a controller writes: one shape for records, journals, logs and their shards.

All carry the label of the job, by which they are found and deleted with it, and an owner, with
which they go. What is large is labelled as that, so that listing jobs does not transfer it.
"""

import base64
from collections.abc import Mapping
from typing import NamedTuple

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, Cluster
from holdfast.drivers.kubernetes.manifests.names import BULK, JOB, MANAGED_BY
from holdfast.drivers.kubernetes.manifests.request import Body


class Content(NamedTuple):
    """What a ConfigMap holds."""

    data: Mapping[str, str] = {}
    binary: Mapping[str, bytes] = {}

    @property
    def size_bytes(self) -> int:
        """As the API server counts it."""
        return sum(map(len, (*self.data.values(), *self.binary.values())))


def config_map(
    cluster: Cluster, job: str, name: str, owner: Body, content: Content, *, bulk: bool
) -> Body:
    """A ConfigMap of a job in the namespace of the cluster."""
    labels = {JOB: job, MANAGED_BY: "holdfast", **({BULK: "true"} if bulk else {})}
    metadata = {
        "name": name,
        "namespace": cluster.namespace,
        "labels": labels,
        "ownerReferences": [owner],
    }
    body = {"apiVersion": CONFIG_MAPS.api, "kind": CONFIG_MAPS.kind, "metadata": metadata}
    binary = {key: base64.b64encode(value).decode() for key, value in content.binary.items()}
    return {**body, "data": dict(content.data), "binaryData": binary}


def binary_of(body: Body) -> dict[str, bytes]:
    """The `binaryData` of a ConfigMap. Raises `ValueError` for what is no base64."""
    return {key: base64.b64decode(value) for key, value in (body.get("binaryData") or {}).items()}
