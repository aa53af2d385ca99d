"""How the workers of a job reach each other on a cluster."""

from typing import Literal

from pydantic import Field

from holdfast.spec.section import Flag, Section, Variable, Whole


class Ports(Section):
    """Ports that workers and agents listen on; they matter where pods share the host's network."""

    rendezvous: Whole = Field(default=29400, ge=1024, le=65535)
    """Rendezvous of torchrun, or the coordinator of another framework, in plain mode."""
    agent: Whole = Field(default=7070, ge=1024, le=65535)
    """Health and metrics of an agent."""
    stores: Whole = Field(default=29500, ge=1024, le=65000)
    """First of the ports for the rendezvous stores of attempts."""
    storage: Whole = Field(default=7073, ge=1024, le=65535)
    """Copies of snapshots between nodes."""


class Network(Section):
    """Network of the nodes and the settings of NCCL."""

    host: Flag = False
    """Use the host network (with the matching DNS policy), as InfiniBand and RoCE often require."""
    profile: Literal["tcp", "infiniband", "roce", "efa", "gke-tcpx"] = "tcp"
    """Named settings for NCCL and its transport."""
    interface: str | None = Field(default=None, pattern=r"^[\^=]?[A-Za-z0-9_.,-]+$")
    """Interface for sockets, as NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME take it."""
    nccl: dict[Variable, str] = {}
    """Variables that override or add to those of the profile."""
    rdma_resource: str | None = Field(default=None, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")
    """Counted resource of the RDMA device plugin, as in `rdma/hca_shared_devices_a`."""
    rdma_count: Whole = Field(default=1, ge=1, le=64)
    """Number of `rdma_resource` devices."""
    efa_count: Whole = Field(default=0, ge=0, le=64)
    """EFA interfaces (`vpc.amazonaws.com/efa`) of a node; needed with profile `efa`."""
    tcpx_image: str | None = Field(default=None, min_length=1)
    """Image of the receive-data-path manager that profile `gke-tcpx` runs beside the workers."""
    attach: tuple[str, ...] = ()
    """Additional networks by Multus, as in `sriov/rail-0`: NetworkAttachmentDefinitions."""
    numa: Flag = False
    """Keep each worker on the CPUs next to its GPU: a guaranteed pod with whole cores, and
    NCCL_IGNORE_CPU_AFFINITY=1."""
    mesh: Flag = False
    """Allow sidecar injection by a service mesh. Off: labels tell Istio and Linkerd not to inject a
    proxy."""
    policy: Flag = True
    """A NetworkPolicy: only nodes of this job reach each other. It does not apply to host network.
    """
    ports: Ports = Ports()
    """Ports that agents and training use."""
