"""Names of parameters that do not depend on what is wrapped around a module.

DDP, `torch.compile` and activation checkpointing put a level of their own into the names of
parameters. Without it a name means the same in any layout and without Holdfast.
"""

from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

_ALWAYS = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})
_WRAPPERS = (DistributedDataParallel, DataParallel)


def unwrapped(module: Any) -> Any:
    """The module inside DDP and `torch.compile`."""
    while True:
        if isinstance(module, DistributedDataParallel):
            module = module.module
        elif hasattr(module, "_orig_mod"):
            module = module._orig_mod
        else:
            return module


class Names:
    """The names in one module, looked up once each."""

    def __init__(self, module: torch.nn.Module) -> None:
        inner = {n: m for n, m in module.named_modules() if isinstance(m, _WRAPPERS)}
        self._wrappers = {f"{name}.module".removeprefix(".") for name in inner}
        self._known: dict[str, str] = {}
        raw = [name for name, _ in module.named_parameters(remove_duplicate=False)]
        self._as_they_are = len({self._strip(name) for name in raw}) < len(set(raw))

    def __call__(self, raw: str) -> str:
        """The name without wrappers."""
        found = self._known.get(raw)
        if found is None:
            found = self._known[raw] = raw if self._as_they_are else self._strip(raw)
        return found

    def _strip(self, raw: str) -> str:
        parts, path = [], ""
        for part in raw.split("."):
            path = f"{path}.{part}".removeprefix(".")
            if part not in _ALWAYS and path not in self._wrappers:
                parts.append(part)
        return ".".join(parts)
