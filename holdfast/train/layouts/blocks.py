"""The block that a model repeats: what is sharded, recomputed, compiled and put on stages.

Found as the container whose children are all of one class and have the most parameters; or named by
the script, as in `blocks="model.layers"`.
"""

from typing import NamedTuple

import torch
from torch import nn

from holdfast.errors import Error

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


class Blocks(NamedTuple):
    """`path` is the name of their container; empty where the model is one, or has none."""

    path: str
    modules: list[nn.Module]


def find_blocks(model: nn.Module, named: str | None) -> Blocks:
    """The repeated blocks of `model`; none where it repeats nothing.

    Raises `Error` (layout-invalid) where `named` is no container of the model.
    """
    containers = {n: m for n, m in model.named_modules() if isinstance(m, _CONTAINERS)}
    if named is not None:
        if named not in containers:
            raise Error(
                "layout-invalid",
                f"the model has no container of blocks {named!r}",
                why=f"its ModuleLists, Sequentials and ModuleDicts: {', '.join(containers) or '-'}",
                help='name one of them: run.parallelize(model, blocks="layers")',
            )
        return Blocks(named, [*containers[named].children()])
    repeated = {n: m for n, m in containers.items() if _repeats(m)}
    if not repeated:
        return Blocks("", [])
    path = max(repeated, key=lambda name: size_of(repeated[name]))
    return Blocks(path, [*repeated[path].children()])


def _repeats(container: nn.Module) -> bool:
    children = [*container.children()]
    return len(children) > 1 and len({type(child) for child in children}) == 1


def size_of(module: nn.Module) -> int:
    """Number of elements of its parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def has_parameters(module: nn.Module | None) -> bool:
    """Whether there are any in it."""
    return module is not None and next(module.parameters(), None) is not None


def require_blocks(blocks: Blocks, wish: str) -> list[nn.Module]:
    """The modules. Raises `Error` (layout-invalid) where there are none."""
    if not blocks.modules:
        raise Error(
            "layout-invalid",
            f"{wish} needs the blocks of the model",
            why="the model has no ModuleList or Sequential of several modules of one class",
            help='name their container: run.parallelize(model, blocks="layers")',
        )
    return blocks.modules


def wrap_forward(module: nn.Module, around: object) -> None:
    """Have `around(forward, *args, **kwargs)` called in place of `forward`."""
    forward = module.forward

    def wrapped(*args: object, **kwargs: object) -> torch.Tensor:
        out: torch.Tensor = around(forward, *args, **kwargs)  # type: ignore[operator]
        return out

    module.forward = wrapped
