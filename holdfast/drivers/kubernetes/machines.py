"""Machines of a cluster (Nodes, in Kubernetes' words) as the API tells of them.

A cordon of ours is a taint of our own key. Not the `unschedulable` flag, which people and
autoscalers use for their own ends: it is never set, never removed, and says nothing of a machine.
"""

import msgspec

from holdfast.drivers.kubernetes.pods import Condition

TAINT = "holdfast.dev/unhealthy"
OWNER, REASON = "holdfast.dev/cordoned-by", "holdfast.dev/cordon-reason"
EXPIRES = "holdfast.dev/cordon-expires"
MEMORY = "holdfast.dev/machine-memory"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
RACKS = (
    "fabric.topograph.run/tier-0",
    "network.topology.nvidia.com/leaf",
    "oci.oraclecloud.com/host.rack_id",
    "cloud.google.com/gce-topology-subblock",
    "topology.k8s.aws/network-node-layer-3",
)
"""Labels of a machine that name its rack, or the switch nearest to it; the first that is there."""


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    """Metadata."""

    name: str
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Taint(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """One taint."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class _Spec(msgspec.Struct, frozen=True):
    """Taints."""

    taints: list[Taint] = []
    unschedulable: bool = False


class _NodeInfo(msgspec.Struct, frozen=True):
    """What runs there."""

    boot_id: str = msgspec.field(default="", name="bootID")


class _Status(msgspec.Struct, frozen=True):
    """What the kubelet and others say of it."""

    conditions: list[Condition] = []
    allocatable: dict[str, str] = {}
    node_info: _NodeInfo = msgspec.field(default_factory=_NodeInfo, name="nodeInfo")


class Machine(msgspec.Struct, frozen=True):
    """A machine of the cluster (a Node, in Kubernetes' words)."""

    metadata: _Meta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def cordoned(self) -> bool:
        """Whether it carries our taint."""
        return any(taint.key == TAINT for taint in self.spec.taints)

    @property
    def identity(self) -> tuple[str, str]:
        """Which Node object it is, and since which start of the machine."""
        return self.metadata.uid, self.status.node_info.boot_id
