"""Network of a pod: host network, devices, further interfaces, and NCCL settings by profile.

A profile is a named set of variables that is known to work for a fabric; `network.nccl` overrides
any of them. Sources: NVIDIA's list of NCCL variables, the EFA notes of aws-ofi-nccl, and Google's
instructions for GPUDirect-TCPX.
"""

import json

from holdfast.drivers.kubernetes.manifests.part import Part
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.spec import Job

EFA = "vpc.amazonaws.com/efa"
TCPX_CARDS = 4  # data interfaces eth1..eth4, beside eth0
TCPX_LIBRARIES = "/usr/local/nvidia/lib64"
TCPX_SOCKETS = "/run/tcpx"

PROFILES: dict[str, dict[str, str]] = {
    "tcp": {"NCCL_IB_DISABLE": "1"},
    "infiniband": {"NCCL_IB_HCA": "mlx5", "NCCL_IB_TIMEOUT": "22"},
    "roce": {
        "NCCL_IB_HCA": "mlx5",
        "NCCL_IB_GID_INDEX": "3",  # RoCE v2 over IPv4 on most machines
        "NCCL_IB_TC": "106",
        "NCCL_IB_TIMEOUT": "22",
    },
    "efa": {
        "FI_PROVIDER": "efa",
        "FI_EFA_USE_DEVICE_RDMA": "1",
        "FI_EFA_USE_HUGE_PAGE": "0",  # huge pages and fork() do not go together
    },
    "gke-tcpx": {
        "LD_LIBRARY_PATH": TCPX_LIBRARIES,
        "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0",
        "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2,eth3,eth4",
        "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX": TCPX_SOCKETS,
        "NCCL_NET": "GPUDirectTCPX_v7",
        "NCCL_CROSS_NIC": "0",
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "Simple",
    },
}


def env(job: Job, part: Part) -> list[Body]:
    """Variables of the profile, the interface and the overrides, for what computes."""
    network = job.network
    if part.small or not (job.resources.gpus or job.resources.claims or _asked(job)):
        return []
    name = network.interface or ("eth0" if network.profile == "gke-tcpx" else None)
    sockets = {"NCCL_SOCKET_IFNAME": name, "GLOO_SOCKET_IFNAME": name} if name else {}
    numa = {"NCCL_IGNORE_CPU_AFFINITY": "1"} if network.numa else {}
    found = {**PROFILES[network.profile], **sockets, **numa, **network.nccl}
    return [{"name": key, "value": value} for key, value in found.items()]


def _asked(job: Job) -> bool:
    """Whether the job says anything about NCCL itself."""
    network = job.network
    return bool(network.profile != "tcp" or network.interface or network.numa or network.nccl)


def pod(job: Job) -> Body:
    """Keys of a pod's spec."""
    if not job.network.host:
        return {}
    return {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}


def devices(job: Job) -> dict[str, str]:
    """Counted network devices of a node."""
    network = job.network
    rdma = {network.rdma_resource: str(network.rdma_count)} if network.rdma_resource else {}
    efa = {EFA: str(network.efa_count)} if network.efa_count else {}
    return {**rdma, **efa}


def annotations(job: Job) -> dict[str, str]:
    """Annotations of a pod: no proxy of a mesh, and the further networks."""
    network = job.network
    found = mesh(job)
    if network.attach:
        found["k8s.v1.cni.cncf.io/networks"] = ",".join(network.attach)
    if network.profile == "gke-tcpx":
        found |= _tcpx_interfaces()
    return found


def mesh(job: Job) -> dict[str, str]:
    """Annotations that keep the proxy of a service mesh out of a pod."""
    off = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
    return {} if job.network.mesh else off


def _tcpx_interfaces() -> dict[str, str]:
    cards = [{"interfaceName": "eth0", "network": "default"}]
    cards += [{"interfaceName": f"eth{n}", "network": f"vpc{n}"} for n in range(1, TCPX_CARDS + 1)]
    return {
        "networking.gke.io/default-interface": "eth0",
        "networking.gke.io/interfaces": json.dumps(cards),
    }


def sidecars(job: Job, part: Part) -> list[Body]:
    """Native sidecars: what TCPX needs beside the workers."""
    if job.network.profile != "gke-tcpx" or part.small:
        return []
    start = (
        "/tcpgpudmarxd/build/app/tcpgpudmarxd --gpu_nic_preset a3vm --gpu_shmem_type fd "
        f"--uds_path {TCPX_SOCKETS}"
    )
    return [
        {
            "name": "tcpx",
            "image": job.network.tcpx_image,
            "restartPolicy": "Always",
            "command": ["sh", "-c", f"chmod 755 {TCPX_LIBRARIES}; exec {start}"],
            "env": [{"name": "LD_LIBRARY_PATH", "value": TCPX_LIBRARIES}],
            "securityContext": {"privileged": True, "runAsNonRoot": False, "runAsUser": 0},
            "volumeMounts": mounts(job, part),
        }
    ]


def volumes(job: Job, part: Part) -> list[Body]:
    """Volumes of the profile."""
    if job.network.profile != "gke-tcpx" or part.small:
        return []
    host = {"path": "/home/kubernetes/bin/nvidia/lib64"}
    return [
        {"name": "tcpx-libraries", "hostPath": host},
        {"name": "tcpx-sockets", "emptyDir": {}},
    ]


def mounts(job: Job, part: Part) -> list[Body]:
    """Where they are."""
    if job.network.profile != "gke-tcpx" or part.small:
        return []
    return [
        {"name": "tcpx-libraries", "mountPath": TCPX_LIBRARIES},
        {"name": "tcpx-sockets", "mountPath": TCPX_SOCKETS},
    ]
