"""How much state an optimizer is going to make, before its first step.

Snapshots want their memory before training starts, and an optimizer like Adam makes two thirds of
all state in its first step. The same optimizer over one tiny parameter shows how many tensors of a
parameter's shape it keeps for each; nothing of the real one is touched.
"""

import inspect
from typing import Any

import torch
from torch.optim import Optimizer

_TINY = (2, 3)


def coming_bytes(optimizer: Optimizer) -> int:
    """Bytes of state that this optimizer will make for parameters it has none for yet.

    0 for optimizers that cannot be tried out: their memory is then found in their first step.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    missing = [p for p in parameters if p.requires_grad and not optimizer.state.get(p)]
    if not missing:
        return 0
    return _tensors_per_parameter(optimizer) * sum(_bytes(parameter) for parameter in missing)


def _tensors_per_parameter(optimizer: Optimizer) -> int:
    parameter = torch.nn.Parameter(torch.zeros(_TINY))
    parameter.grad = torch.zeros(_TINY)
    try:
        trial: Optimizer = type(optimizer)([parameter], **_options(optimizer))
        trial.step()
    except Exception:  # one of somebody else may want anything
        return 0
    return sum(getattr(value, "shape", None) == _TINY for value in trial.state[parameter].values())


def _options(optimizer: Optimizer) -> dict[str, Any]:
    known = inspect.signature(type(optimizer).__init__).parameters
    return {k: v for k, v in optimizer.defaults.items() if k in known and k != "fused"}


def _bytes(parameter: torch.Tensor) -> int:
    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return int(local.numel() * local.element_size())
