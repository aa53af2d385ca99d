"""What NVML says of a real GPU is what happens on it."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from holdfast.agent.health import gpus
from holdfast.detection.health import Reading

pytestmark = pytest.mark.gpu

MORE_BYTES = 2 << 30


def test_nvml_sees_what_a_process_does_on_a_gpu(
    cuda: torch.device, measured: Callable[..., None]
) -> None:
    watched = gpus.find(Path("/"))
    assert isinstance(watched, gpus.Gpus), watched
    torch.zeros(1, device=cuda)
    idle = _by_kind(watched.read())
    work = torch.ones(MORE_BYTES // 4, device=cuda)
    for _ in range(200):
        work.mul_(1.0001)
    torch.cuda.synchronize(cuda)
    began = time.perf_counter()
    busy = _by_kind(watched.read())
    measured("NVML", "a look at one GPU", 1e3 * (time.perf_counter() - began), "ms")
    assert busy["gpu-memory-used"].value - idle["gpu-memory-used"].value >= MORE_BYTES
    assert busy["gpu-memory-total"].value >= torch.cuda.get_device_properties(cuda).total_memory
    assert busy["gpu-energy"].value > idle["gpu-energy"].value
    assert busy["gpu-power"].value > 0 and 0 < busy["gpu"].value < 120
    sound = ("gpu-lost", "gpu-ecc", "gpu-remap-failed", "gpu-reset-needed")
    assert [busy[kind].value for kind in sound if kind in busy] == [0.0] * len(sound)
    names = {r.text for r in busy.values() if r.kind == "gpu-info"}
    assert all(name.startswith("GPU-") for name in names) and len(names) == 1
    del work
    torch.cuda.empty_cache()


def _by_kind(readings: list[Reading]) -> dict[str, Reading]:
    """Of one GPU."""
    return {reading.kind: reading for reading in readings}
