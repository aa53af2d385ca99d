"""How much of the device's arithmetic the model uses: FLOPs of a step, by the device's peak.

A script that logs `flops`, what this rank computes in a step, gets `mfu` in its metrics. It knows
the number by a formula, or has it counted once, because the operations of a model do not change
from step to step. Counting is PyTorch's (`FlopCounterMode`): matrix products, convolutions and
attention, forward and backward, which is what model FLOPs are. Peaks are the vendors' data sheets',
for dense BF16 or FP16; where the device is not among them, nothing is said.
"""

from collections.abc import Callable

import torch

from holdfast.planning.hardware import A100, GPUS, H100

TERA = 1e12
PEAKS: tuple[tuple[str, float], ...] = (
    ("GB300", 2500 * TERA),
    ("GB200", 2500 * TERA),
    ("B200", GPUS["b200-180gb"].peak_flops),
    ("H200", GPUS["h200-141gb"].peak_flops),
    ("H100 NVL", 835 * TERA),
    ("H100 PCIe", 756 * TERA),
    ("H100", H100.peak_flops),
    ("H800", 989 * TERA),
    ("H20", 148 * TERA),
    ("A100", A100.peak_flops),
    ("A800", 312 * TERA),
    ("A40", 149.7 * TERA),
    ("A30", 165 * TERA),
    ("A10G", 70 * TERA),
    ("A10", 125 * TERA),
    ("L40S", 362 * TERA),
    ("L40", 181 * TERA),
    ("L4", 121 * TERA),
    ("V100", 125 * TERA),
    ("MI325X", 1307 * TERA),
    ("MI300X", 1307 * TERA),
)
"""Part of a device's name, and FLOPs per second; the first that is in the name counts."""


def count_flops(work: Callable[[], object]) -> int:
    """FLOPs of one call of `work`: `count_flops(lambda: model(batch).sum().backward())`.

    It is really called, so gradients it leaves have to be cleared. What a compiled or fused kernel
    does inside is not seen: count before `torch.compile`.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def peak_flops(device: torch.device) -> float | None:
    """Of this device, per second; None where that is not known."""
    return peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def peak_of(name: str) -> float | None:
    """By the name of a device as PyTorch tells it."""
    return next((peak for part, peak in PEAKS if part in name), None)
