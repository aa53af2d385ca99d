"""What is left out of a step that was given up: the rest of its backward pass, and its updates.

Nothing of such a step is kept, and the next attempt waits for its end. It runs on to the end of
the loop's body, because a generator cannot end that. But a backward pass ends where it would ask
for its next collective, or does not begin at all, and an optimizer finds no gradients, for which
it does nothing. Gradients that were not computed are zero, in memory that is not there until
somebody looks at it.

Only where DDP alone takes part in backward passes: it can be told to begin anew, which FSDP cannot.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from holdfast.train.parallel import SteadyBuckets
from holdfast.train.surviving_group import AttemptBrokenError

Hidden = list[tuple[torch.Tensor, torch.Tensor]]


class GivenUpStep:
    """Of this process. `broken` tells whether the step under way is given up."""

    def __init__(self, broken: Callable[[], bool]) -> None:
        self._broken = broken
        self._modules: weakref.WeakSet[SteadyBuckets] = weakref.WeakSet()
        self._passes = threading.local()
        self._hidden: Hidden = []
        self.by_ddp = False
        """Whether DDP alone takes part in backward passes."""

    def install(self) -> None:
        """From here on backward passes and optimizers of this process ask."""
        engine: Any = torch.autograd
        plain = engine.backward

        def backward(*given: Any, **options: Any) -> None:
            self._pass(lambda: plain(*given, **options))

        engine.backward = backward
        register_optimizer_step_pre_hook(self._hide)
        register_optimizer_step_post_hook(self._show)

    def add(self, module: SteadyBuckets) -> None:
        """It averages gradients in backward passes."""
        self._modules.add(module)

    def cut(self) -> None:
        """A collective is not made because the step is given up: raises `AttemptBrokenError` in a
        backward pass that can be left."""
        if self.by_ddp and getattr(self._passes, "inside", False):
            raise AttemptBrokenError

    def _pass(self, run: Callable[[], None]) -> None:
        if not self.by_ddp:
            run()
            return
        if self._broken():
            self._fill()
            return
        outermost = not getattr(self._passes, "inside", False)
        self._passes.inside = True
        try:
            run()
        except AttemptBrokenError:
            if not outermost:
                raise
            self._passes.inside = False
            for module in self._modules:
                module.begin_again()
            self._fill()
        finally:
            self._passes.inside = not outermost

    def _fill(self) -> None:
        for parameter in (one for module in self._modules for one in module.parameters()):
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = _zeros_like(parameter)

    def _hide(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if not (self.by_ddp and self._broken()):
            return
        listed = [one for group in optimizer.param_groups for one in group["params"]]
        self._hidden = [(one, one.grad) for one in listed if one.grad is not None]
        for parameter, _grad in self._hidden:
            parameter.grad = None

    def _show(self, *_: object) -> None:
        for parameter, grad in self._hidden:
            parameter.grad = grad
        self._hidden = []


def _zeros_like(parameter: torch.Tensor) -> torch.Tensor:
    """`torch.zeros` writes to each page, numpy leaves that to the kernel."""
    memory = torch.from_numpy(np.zeros(parameter.nbytes, np.uint8))
    return memory.view(parameter.dtype).view(parameter.shape)
