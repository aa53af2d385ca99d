"""The names of all tracked parameters, as snapshots and optimizer states have them.

A path is the name of the tracked module and that of the parameter in it, without wrappers
(`names`). Optimizer states use the name alone, unless two modules share it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from holdfast.train import optimizers as states
from holdfast.train.names import Names


class ParameterNames:
    """`_trained` are names by parameter, of those that an optimizer has; `_paths` are the paths by
    those names."""

    def __init__(
        self, modules: Mapping[str, torch.nn.Module], optimizers: Mapping[str, Optimizer]
    ) -> None:
        self._modules = modules
        self._optimizers = optimizers
        self.canonical = {name: Names(module) for name, module in modules.items()}
        """For each module, what tells the name of a parameter or buffer without wrappers."""
        self.parameters = self.now()
        """All parameters by path, as they were when they were tracked."""
        self._trained: dict[int, str] = {}
        self._paths: dict[str, str] = {}

    def now(self) -> dict[str, torch.Tensor]:
        """All parameters by path."""
        return {
            f"{name}.{key}": parameter
            for name in self._modules
            for key, parameter in self.of_module(name)
        }

    def of_module(self, name: str) -> list[tuple[str, torch.Tensor]]:
        """The parameters of a module by name; shared ones more than once."""
        names = self.canonical[name]
        listed = self._modules[name].named_parameters(remove_duplicate=False)
        return [(names(raw), parameter) for raw, parameter in listed]

    def of_optimizer(self, name: str) -> dict[Any, torch.Tensor]:
        """The parameters of an optimizer, by name; those of no tracked module by number."""
        return states.parameters(self._optimizers[name], self.name_of)

    def meant_by(self, optimizer: str) -> states.Meant:
        """Tells the parameter which a key of a saved state means here, also one that this
        optimizer does not have yet; None for one that is in no tracked module on this rank."""
        held = self.of_optimizer(optimizer)
        trained = {id(parameter) for parameter in held.values()}
        short: dict[str, dict[int, torch.Tensor]] = {}
        for path, parameter in self.parameters.items():
            short.setdefault(path.partition(".")[2], {})[id(parameter)] = parameter

        def meant(key: Any) -> torch.Tensor | None:
            if key in held or not isinstance(key, str):
                return held.get(key)
            if key in self.parameters:
                return self.parameters[key]
            alike = list(short.get(key, {}).values())
            ours = [one for one in alike if id(one) in trained] if len(alike) > 1 else alike
            return ours[0] if len(ours) == 1 else None

        return meant

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """The name of a parameter in its model; None for one of no tracked module."""
        found = self._trained.get(id(parameter))
        if found is None:
            self._trained = self._find_names()
            found = self._trained.get(id(parameter))
        return found

    def is_trained(self, parameter: torch.Tensor) -> bool:
        """Whether an optimizer is known to have it."""
        return id(parameter) in self._trained

    def path_of_state(self, name: str) -> str | None:
        """The path of the parameter to which this leaf of an optimizer's state belongs."""
        while name := name.rpartition(".")[0]:
            if name in self._paths:
                return self._paths[name]
        return None

    def _find_names(self) -> dict[int, str]:
        """By name without that of the module, unless two parameters share it: whether they are
        trained does not matter, because that may change."""
        groups = [group for o in self._optimizers.values() for group in o.param_groups]
        trained = {id(p) for group in groups for p in group["params"]}
        named = [
            (name, self.canonical[name](raw), id(parameter))
            for name, module in self._modules.items()
            for raw, parameter in module.named_parameters()
        ]
        unique = len({key for _, key, _ in named}) == len(named)
        paths = {number: (f"{name}.{key}", key) for name, key, number in named if number in trained}
        found = {number: key if unique else path for number, (path, key) in paths.items()}
        self._paths = {found[number]: path for number, (path, _) in paths.items()}
        return found
