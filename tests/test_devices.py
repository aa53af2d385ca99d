"""Devices are counted by what the kernel shows, and every kind is known by its own names."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from holdfast import devices
from holdfast.devices import DEVICES, DeviceKind, DeviceRequest


def machine(root: Path, files: dict[str, str]) -> Path:
    """A root with these files; a text `-> X` is a link to X."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            target = root / text[3:]
            target.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)
        else:
            path.write_text(text)
    return root


NVIDIA = dict.fromkeys(("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm"), "")
KFD = "sys/class/kfd/kfd/topology/nodes"
AMD = {
    "dev/kfd": "",
    "dev/dri/renderD128": "",
    "dev/dri/renderD129": "",
    f"{KFD}/0/properties": "cpu_cores_count 64\ndrm_render_minor 0\n",
    f"{KFD}/1/properties": "simd_count 304\ndrm_render_minor 128\n",
    f"{KFD}/2/properties": "simd_count 304\ndrm_render_minor 129\n",
    f"{KFD}/3/properties": "simd_count 304\ndrm_render_minor 130\n",  # of another container
}
INTEL = {
    "dev/dri/renderD128": "",
    "sys/class/drm/renderD128/device/vendor": "0x8086\n",
    "sys/class/drm/renderD128/device/driver": "-> sys/bus/pci/drivers/xe",
    "sys/class/drm/renderD129/device/vendor": "0x1234\n",
}
GOOGLE = {
    f"sys/bus/pci/devices/{number}/{name}": text
    for number in range(4)
    for name, text in (("vendor", "0x1ae0\n"), ("device", "0x0063\n"))
} | {"sys/bus/pci/devices/9/vendor": "0x1ae0\n", "sys/bus/pci/devices/9/device": "0x001f\n"}


@pytest.mark.parametrize(
    ("kind", "files", "count"),
    [("cuda", NVIDIA, 2), ("rocm", AMD, 2), ("xpu", INTEL, 1), ("tpu", GOOGLE, 4), ("cpu", {}, 0)],
)
def test_each_kind_is_found_by_its_own_files(
    kind: DeviceKind, files: dict[str, str], count: int, tmp_path: Path
) -> None:
    root = machine(tmp_path, files)
    here = {other: devices.present(other, root) for other in DEVICES}
    assert here == {**dict.fromkeys(DEVICES, 0), kind: count}
    assert devices.found({}, root).kind == kind
    assert devices.count("auto", {}, root) == count
    assert devices.count("cpu", {}, root) == 0


@pytest.mark.parametrize(
    ("kind", "files", "variable"),
    [
        ("cuda", NVIDIA, "CUDA_VISIBLE_DEVICES"),
        ("rocm", AMD, "HIP_VISIBLE_DEVICES"),
        ("rocm", AMD, "ROCR_VISIBLE_DEVICES"),
        ("xpu", INTEL, "ZE_AFFINITY_MASK"),
        ("tpu", GOOGLE, "TPU_VISIBLE_CHIPS"),
    ],
)
def test_the_variable_of_a_kind_chooses_among_its_devices(
    kind: DeviceRequest, files: dict[str, str], variable: str, tmp_path: Path
) -> None:
    root = machine(tmp_path, files)
    for wish in ("auto", kind):
        assert devices.count(wish, {variable: "1"}, root) == 1
        assert devices.count(wish, {variable: "0,-1,1"}, root) == 1
        assert devices.count(wish, {variable: ""}, root) == 0
    assert devices.found({variable: ""}, root).kind == "cpu"


def test_backends_are_those_that_pytorch_itself_chooses() -> None:
    chosen = dist.Backend.default_device_backend_map
    for traits in DEVICES.values():
        if traits.torch_type is not None:
            assert chosen[traits.torch_type] == traits.backend
            assert devices.backend_of(traits.torch_type) == traits.backend


def test_resources_of_parts_belong_to_their_vendor() -> None:
    kinds = {
        "nvidia.com/gpu": "cuda",
        "nvidia.com/mig-3g.40gb": "cuda",
        "amd.com/gpu": "rocm",
        "gpu.intel.com/xe": "xpu",
        "google.com/tpu": "tpu",
    }
    found = {name: devices.by_resource(name) for name in kinds}
    assert {name: one.kind for name, one in found.items() if one is not None} == kinds
    assert devices.by_resource("rdma/hca") is None


def test_pytorch_of_this_machine_is_recognised() -> None:
    traits, count = devices.seen_by(torch)
    assert (traits.kind == "cpu") == (count == 0) == (not torch.accelerator.is_available())


@pytest.mark.parametrize(
    ("type_", "hip", "kind"),
    [("cuda", None, "cuda"), ("cuda", "7.0", "rocm"), ("xpu", None, "xpu"), ("mps", None, "cpu")],
)
def test_other_builds_of_pytorch_are_told_apart(type_: str, hip: str | None, kind: str) -> None:
    accelerator = SimpleNamespace(
        is_available=lambda: True,
        current_accelerator=lambda: SimpleNamespace(type=type_),
        device_count=lambda: 4,
    )
    build = SimpleNamespace(accelerator=accelerator, version=SimpleNamespace(hip=hip))
    traits, _ = devices.seen_by(build)  # type: ignore[arg-type]
    assert traits.kind == kind


def test_workers_are_told_the_kind_that_a_job_names_and_nothing_else() -> None:
    assert devices.variables("auto", "jax") == {}
    assert devices.variables("tpu", "jax") == {"JAX_PLATFORMS": "tpu", "HOLDFAST_DEVICE": "tpu"}
    hidden = devices.variables("cpu", "pytorch")
    assert hidden.pop("HOLDFAST_DEVICE") == "cpu"
    for traits in DEVICES.values():
        if traits.hides:
            assert devices._usable(traits.kind, hidden, Path("/none")) == 0
