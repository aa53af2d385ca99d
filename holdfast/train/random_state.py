"""The random number generators of a worker, as state that a snapshot can hold.

Python, NumPy, torch on the CPU and on this worker's GPU. The 625 words of Python's generator are
kept as an array: walking them one by one would cost more than the rest of a snapshot's bookkeeping.
"""

import random
from typing import Any

import numpy as np
import torch


def capture(device: torch.device) -> dict[str, Any]:
    """The state of every generator."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, np.array(words, dtype=np.uint32), gauss],
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device).get_rng_state(device)
    return state


def restore(state: dict[str, Any], device: torch.device) -> None:
    """Put every generator back. State of a job that had no GPU leaves that of this one as it is."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if device.type != "cpu" and device.type in state:
        torch.get_device_module(device).set_rng_state(state[device.type], device)
