"""Kinds of devices that train, in one table: what each is called, where, and how many there are.

Everything else asks here: agents count the devices of a machine by files of the kernel, without
loading a vendor's library, because a process that has loaded one cannot fork workers; manifests
take resource names and taints from here; workers the type and backend that PyTorch knows them by.

Sources: PyTorch's default backends (`torch.distributed.Backend.default_device_backend_map`), the
HIP and Level Zero references for variables, the device plug-ins of each vendor for resource names,
GKE's documentation and JAX's `hardware_utils` for TPUs.
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Literal

DeviceKind = Literal["cuda", "rocm", "xpu", "tpu", "cpu"]
DeviceRequest = Literal["auto", "cuda", "rocm", "xpu", "tpu", "cpu"]
VARIABLE = "HOLDFAST_DEVICE"
_HIDDEN = ("", "-1")
_RENDER_MINOR = re.compile(r"^drm_render_minor ([1-9]\d*)$", re.MULTILINE)


@dataclass(frozen=True)
class DeviceTraits:
    """One kind."""

    kind: DeviceKind
    vendor: str
    torch_type: str | None  # of `torch.device`; None: PyTorch needs a package of its own
    backend: str  # of torch.distributed
    library: str  # that carries collectives
    jax_platform: str | None
    visible: tuple[str, ...]  # variables that choose devices; the first that is set counts
    hides: Mapping[str, str]  # and how they choose none
    resources: tuple[str, ...]  # on Kubernetes; the first is the usual one
    taint: str | None  # that clusters put on such machines
    selectors: tuple[str, ...] = ()  # labels that a pod has to choose


DEVICES: dict[DeviceKind, DeviceTraits] = {
    traits.kind: traits
    for traits in (
        DeviceTraits(
            "cuda", "NVIDIA", "cuda", "nccl", "NCCL", "cuda",
            ("CUDA_VISIBLE_DEVICES",), {"CUDA_VISIBLE_DEVICES": ""},
            ("nvidia.com/gpu",), "nvidia.com/gpu",
        ),
        DeviceTraits(
            "rocm", "AMD", "cuda", "nccl", "RCCL", "rocm",
            ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
            {"HIP_VISIBLE_DEVICES": "-1"},
            ("amd.com/gpu",), "amd.com/gpu",
        ),
        DeviceTraits(
            "xpu", "Intel", "xpu", "xccl", "oneCCL", None,
            ("ZE_AFFINITY_MASK",), {},
            ("gpu.intel.com/i915", "gpu.intel.com/xe"), None,
        ),
        DeviceTraits(
            "tpu", "Google", None, "xla", "XLA", "tpu",
            ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"), {},
            ("google.com/tpu",), "google.com/tpu",
            ("cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"),
        ),
        DeviceTraits("cpu", "", "cpu", "gloo", "Gloo", "cpu", (), {}, (), None),
    )
}  # fmt: skip
RESOURCES = tuple(name for traits in DEVICES.values() for name in traits.resources)
"""All resource names that the table knows."""

_GOOGLE, _INTEL = "0x1ae0", "0x8086"
_TPUS = frozenset(("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"))
_INTEL_DRIVERS = ("i915", "xe")


def present(kind: DeviceKind, root: Path = Path("/")) -> int:
    """Devices of a kind in this machine, or in this container's share of it."""
    match kind:
        case "cuda":
            names = (path.name.removeprefix("nvidia") for path in (root / "dev").glob("nvidia*"))
            return sum(name.isdecimal() for name in names)
        case "rocm":
            if not (root / "dev/kfd").exists():
                return 0
            nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")
            minors = (_RENDER_MINOR.search(_text(path)) for path in nodes)  # 0: a processor
            here = root / "dev/dri"
            return sum(bool(m and (here / f"renderD{m[1]}").exists()) for m in minors)
        case "xpu":
            cards = (root / "sys/class/drm").glob("renderD*/device")
            return sum(
                _text(card / "vendor") == _INTEL and _driver(card) in _INTEL_DRIVERS
                for card in cards
                if (root / "dev/dri" / card.parent.name).exists()
            )
        case "tpu":
            chips = (root / "sys/bus/pci/devices").glob("*/vendor")
            return sum(
                _text(path) == _GOOGLE and _text(path.with_name("device")) in _TPUS
                for path in chips
            )
        case "cpu":
            return 0


def count(wish: DeviceRequest, environ: Mapping[str, str], root: Path = Path("/")) -> int:
    """Devices that a worker could use: those that a variable names (up to the first that is none,
    as CUDA and HIP read it), else those that are present.
    `auto`: of the first kind, in the order of the table, of which there are any."""
    kinds = [wish] if wish != "auto" else [kind for kind in DEVICES if kind != "cpu"]
    return next((found for kind in kinds if (found := _usable(kind, environ, root))), 0)


def _usable(kind: DeviceKind, environ: Mapping[str, str], root: Path) -> int:
    chosen = next((environ[name] for name in DEVICES[kind].visible if name in environ), None)
    if chosen is None:
        return present(kind, root)
    names = (name.strip() for name in chosen.split(","))
    return sum(1 for _ in takewhile(lambda name: name not in _HIDDEN, names))


def found(environ: Mapping[str, str], root: Path = Path("/")) -> DeviceTraits:
    """The kind that `auto` stands for on this machine."""
    kinds = (kind for kind in DEVICES if present(kind, root) and _usable(kind, environ, root))
    return DEVICES[next(kinds, "cpu")]


def variables(wish: DeviceRequest, framework: str) -> dict[str, str]:
    """What workers find in their environment where the job names a kind."""
    if wish == "auto":
        return {}
    hidden: dict[str, str] = {}
    if wish == "cpu":
        for traits in DEVICES.values():
            hidden.update(traits.hides)
    platform = DEVICES[wish].jax_platform
    jax = {"JAX_PLATFORMS": platform} if framework == "jax" and platform is not None else {}
    return {**hidden, **jax, VARIABLE: wish}


def by_resource(name: str) -> DeviceTraits | None:
    """The kind behind a resource of Kubernetes: its usual name, or another of the same vendor, as
    for a part of a device."""
    vendor = name.partition("/")[0]
    every = (traits for traits in DEVICES.values() if name in traits.resources)
    same = (t for t in DEVICES.values() if any(r.startswith(f"{vendor}/") for r in t.resources))
    return next(every, next(same, None))


def seen_by(torch: ModuleType) -> tuple[DeviceTraits, int]:
    """The kind that this PyTorch computes on, and how many there are: the CPU where there is none.
    Loads the driver: only for processes that do not fork."""
    accelerator = torch.accelerator
    if not accelerator.is_available():
        return DEVICES["cpu"], 0
    type_ = accelerator.current_accelerator().type
    if type_ == "cuda":
        return DEVICES["rocm" if torch.version.hip else "cuda"], accelerator.device_count()
    known = next((traits for traits in DEVICES.values() if traits.torch_type == type_), None)
    return (known, accelerator.device_count()) if known is not None else (DEVICES["cpu"], 0)


def backend_of(torch_type: str) -> str:
    """What torch.distributed uses between devices of this type."""
    kinds = (traits.backend for traits in DEVICES.values() if traits.torch_type == torch_type)
    return next(kinds, "gloo")


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""


def _driver(card: Path) -> str:
    with contextlib.suppress(OSError):
        return (card / "driver").resolve(strict=True).name
    return ""
