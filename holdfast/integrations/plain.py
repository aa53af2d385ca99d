"""State dicts of other libraries as plain data: what a snapshot can hold, without the rest.

Some of them contain objects (a loss scaler, an enum, a description of slices) that follow from how
the library was set up, or whose attributes are the state. These are left out, or taken by their
attributes, and filled in again from the state dict that the library gives when it is restored.
"""

from collections import OrderedDict
from typing import Any

import numpy as np
import torch

_SCALARS = (type(None), bool, int, float, str, bytes, torch.Tensor, np.ndarray)
_ATTRIBUTES = "holdfast.attributes"
_LEFT_OUT = "holdfast.left_out"


def plain(value: Any) -> Any:
    """`value` with what a snapshot cannot hold replaced."""
    if type(value) in _SCALARS or isinstance(value, torch.Tensor):
        return value.detach() if isinstance(value, torch.Tensor) else value
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return [plain(one) for one in value]
    attributes = getattr(value, "__dict__", {})
    numbers = {n: v for n, v in attributes.items() if type(v) in (bool, int, float)}
    return [_ATTRIBUTES, numbers] if numbers else [_LEFT_OUT]


def filled(kept: Any, now: Any) -> Any:
    """What `plain` has kept, in the form of `now`, the same thing as it is at present."""
    if isinstance(kept, dict):
        before = now if isinstance(now, dict) else {}
        merged = {key: filled(one, before.get(key)) for key, one in kept.items()}
        return OrderedDict(merged) if isinstance(now, OrderedDict) else merged
    if isinstance(kept, list):
        if kept and kept[0] == _LEFT_OUT:
            return now
        if kept and kept[0] == _ATTRIBUTES:
            vars(now).update(kept[1])
            return now
        known = isinstance(now, list | tuple) and len(now) == len(kept)
        parts = [filled(one, now[at] if known else None) for at, one in enumerate(kept)]
        return tuple(parts) if isinstance(now, tuple) else parts
    return kept
