"""What a cluster is made of: GPUs, links, storage, what it costs and how often it fails.

The peaks are those of the data sheets. What matrix products reach of them in training, and what
collectives reach of a link, is calibrated: docs/concepts/planning.md says on what.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.errors import Error, shown

GIB = float(1 << 30)  # memory sold as 80 GB is 80 GiB of cells


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU. Bytes, seconds and FLOP/s; links are for one direction."""

    name: str
    peak_flops: float
    memory_bytes: float
    memory_bytes_per_s: float
    node_bytes_per_s: float
    network_bytes_per_s: float
    matmul_share: float
    calibrated: bool
    """Whether `matmul_share` was compared with published trainings on this kind."""


A100 = Gpu("a100-80gb", 312e12, 80 * GIB, 2.0e12, 300e9, 25e9, 0.65, True)
H100 = Gpu("h100-80gb", 989e12, 80 * GIB, 3.35e12, 450e9, 50e9, 0.57, True)
GPUS = {
    gpu.name: gpu
    for gpu in (
        replace(A100, name="a100-40gb", memory_bytes=40 * GIB, memory_bytes_per_s=1.55e12),
        A100,
        H100,
        replace(
            H100,
            name="h200-141gb",
            memory_bytes=141e9,
            memory_bytes_per_s=4.8e12,
            calibrated=False,
        ),
        Gpu("b200-180gb", 2250e12, 180e9, 7.7e12, 900e9, 50e9, 0.57, False),
    )
}


@dataclass(frozen=True)
class PlannedCluster:
    """What a plan needs to know of the cluster. Each default says where it is from."""

    gpu: Gpu = H100
    gpus_per_node: int = 8
    link_share: float = 0.8
    """Of the bandwidth of a link that a collective reaches. Assumed."""
    host_memory_bytes: float = 1.0e12
    """Of a node. Assumed."""
    host_bytes_per_s: float = 25e9
    """From one GPU to the memory of its node: about half of a PCIe 5 link. Assumed."""
    local_bytes_per_s: float = 5e9
    """A node's disk. Assumed: two NVMe disks."""
    shared_bytes_per_s: float = 100e9
    """Shared storage, all nodes together. Assumed."""
    archive_bytes_per_s: float = 20e9
    """Object store, all nodes together. Assumed."""
    failures_per_1000_node_days: float = 6.5
    """Source: RSC-1, Kokolis et al., arXiv 2410.21680."""
    lost_s: float = 120.0
    """Of an incident, beside the steps done again: detection, stop, start, restore. Assumed."""
    replace_s: float = 360.0
    """Until the engine has given a new node. As in the simulator's scenarios: 60 + 240 + 60 s."""
    price_per_gpu_hour: float = 0.0
    """In any currency; 0 is not known."""


CLUSTER_KEYS = tuple(name for name in PlannedCluster.__dataclass_fields__ if name != "gpu")
GPU_KEYS = tuple(name for name in Gpu.__dataclass_fields__ if name not in ("name", "calibrated"))


def gpu_named(name: str) -> Gpu:
    """A kind that is known here. Raises `Error` plan-invalid."""
    if name.lower() in GPUS:
        return GPUS[name.lower()]
    raise Error(
        "plan-invalid",
        f"GPU {shown(name)} is not known",
        why=f"known are {', '.join(GPUS)}",
        help="describe it under `gpu` in a cluster file: docs/concepts/planning.md",
    )


@dataclass(frozen=True)
class ClusterFile:
    """A cluster file, checked: numbers by key, and what it says of the GPU."""

    numbers: Mapping[str, float]
    gpu: Mapping[str, float] = field(default_factory=dict)

    def applied(self, gpu: Gpu) -> PlannedCluster:
        """The cluster with this kind of GPU, where the file says nothing else of it."""
        kind = replace(gpu, **self.gpu, calibrated=gpu.calibrated and not self.gpu)  # type: ignore[arg-type]
        numbers = dict(self.numbers)
        per_node = int(numbers.pop("gpus_per_node", 8))
        return PlannedCluster(gpu=kind, gpus_per_node=per_node, **numbers)


def cluster_file(data: Mapping[str, Any], where: str) -> ClusterFile:
    """What a cluster file says. Raises `Error` plan-invalid, with all problems at once."""
    about_gpu = data.get("gpu", {})
    if not isinstance(about_gpu, Mapping):
        raise _invalid(where, [f"gpu: must have keys of its own, not {shown(about_gpu)}"])
    rest = {key: value for key, value in data.items() if key != "gpu"}
    problems = [*_problems(rest, CLUSTER_KEYS, ""), *_problems(about_gpu, GPU_KEYS, "gpu.")]
    if problems:
        raise _invalid(where, problems)
    return ClusterFile(rest, dict(about_gpu))


def _problems(data: Mapping[str, Any], known: tuple[str, ...], before: str) -> list[str]:
    """One line for each key that is unknown or no sensible number."""
    found = []
    for key, value in data.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if key not in known:
            found.append(f"{before}{key}: unknown key; known here: {', '.join(known)}")
        elif not number or not 0 <= value < 1e30:
            found.append(f"{before}{key}: must be a number from 0, not {shown(value)}")
        elif key.endswith("_share") and not 0 < value <= 1:
            found.append(f"{before}{key}: must be a share, over 0 and at most 1, not {value:g}")
        elif value == 0 and key not in ("price_per_gpu_hour", "failures_per_1000_node_days"):
            found.append(f"{before}{key}: must be more than 0")
        elif key == "gpus_per_node" and not isinstance(value, int):
            found.append(f"{key}: must be a whole number, not {value:g}")
    return found


def _invalid(where: str, problems: list[str]) -> Error:
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return Error(
        "plan-invalid",
        f"{where}: {count}",
        why="\n    ".join(problems if len(problems) == 1 else ["", *problems]),
        help="docs/concepts/planning.md lists every key of a cluster file",
    )
